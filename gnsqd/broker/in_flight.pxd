cimport cython

from gnsqd.net.native cimport Id, MessagesById, id_at, new_by_id
from gnsqd.queues.message cimport Message

cdef Py_ssize_t ID_AT
cdef Py_ssize_t FIN_ID_AT
cdef Py_ssize_t FIN_LENGTH

cdef class InFlight:
    cdef dict _by_timeout
    cdef MessagesById _touched
    cdef list _heap, _where

    @cython.locals(by_id=MessagesById, others=MessagesById, message=Message, before=Py_ssize_t)
    cpdef list push(self, list messages, long long client_id, long long now, long long timeout)
    @cython.locals(popped=list, at=Py_ssize_t, id=Id, messages=MessagesById, message=Message)
    cpdef list pop_run(self, bytes fins, long long client_id)
    @cython.locals(key=Id, messages=MessagesById, message=Message)
    cpdef Message pop(self, bytes id, long long client_id)
    @cython.locals(message=Message)
    cpdef long long touch(self, bytes id, long long client_id, long long deadline, long long max_timeout) except? -1
    @cython.locals(due=list, messages=MessagesById, message=Message, message_or_none=Message, id=bytes)
    cpdef list pop_due(self, long long now, Py_ssize_t limit)
