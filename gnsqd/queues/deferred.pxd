cimport cython

from gnsqd.queues.message cimport Message

cdef class Deferred:
    cdef public long long resume_at
    cdef dict _messages
    cdef object _by_due

    @cython.locals(message=Message, now=cython.longlong, due=cython.longlong)
    cpdef defer(self, list messages)
    cpdef bint hold(self, Message message, long long due) except -1
    @cython.locals(message=Message)
    cpdef list take_due(self, long long now, Py_ssize_t limit)
