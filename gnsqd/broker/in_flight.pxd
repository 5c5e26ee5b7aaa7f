cimport cython

from gnsqd.net.native cimport MessagesById, new_by_id
from gnsqd.queues.message cimport Message

cdef Py_ssize_t ID_AT
cdef Py_ssize_t BODY_AT

cdef class InFlight:
    cdef dict _by_timeout
    cdef MessagesById _touched
    cdef list _heap, _where

    @cython.locals(by_id=MessagesById, others=MessagesById, message=Message, data="const unsigned char *", before=Py_ssize_t)
    cpdef list push(self, list messages, long long client_id, long long now, long long timeout)
    @cython.locals(popped=list, id=bytes, messages=MessagesById, message=Message)
    cpdef list pop_run(self, list ids, long long client_id)
    @cython.locals(messages=MessagesById, message=Message)
    cpdef Message pop(self, bytes id, long long client_id)
    @cython.locals(message=Message)
    cpdef long long touch(self, bytes id, long long client_id, long long deadline, long long max_timeout) except? -1
