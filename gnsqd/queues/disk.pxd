cimport cython

from gnsqd.queues.message cimport Message, message_from_payload
from gnsqd.queues.queue cimport Queue

cdef class DiskBackedQueue(Queue):
    cdef public object backend
    cdef object _set_health
    cdef bint _temporary
    cdef long long _longest

    cpdef Py_ssize_t stored(self) except -1
    cpdef store(self, list messages)
    @cython.locals(payloads=list)
    cpdef list read(self, Py_ssize_t limit, Py_ssize_t max_bytes)
    cpdef finish(self, list messages)
    cpdef wait_synced(self)
    @cython.locals(message=Message, messages=list, ready=list)
    cpdef list take(self, Py_ssize_t limit, Py_ssize_t max_bytes)

@cython.locals(message=Message)
cpdef write_messages(list messages, backend)
@cython.locals(message=Message)
cpdef keep_delays(list messages, backend)
@cython.locals(message=Message)
cpdef list read_messages(list payloads, backend, longest)
