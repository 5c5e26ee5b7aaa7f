cimport cython

from gnsqd.queues.backend cimport Backend
from gnsqd.queues.message cimport Message

cdef Py_ssize_t FRAME_SURPLUS

cdef class Queue:
    cdef public str name, label
    cdef public object deferred, memory, arranging, log, outside, on_refused, on_more
    cdef public Backend backend
    cdef object _append
    cdef public bint backend_next, blocked, closed, passed_over, ordered
    cdef public Py_ssize_t capacity
    cdef public long long dropped, rejected, expired, ttl

    cpdef Py_ssize_t count(self) except -1
    cpdef bint has_room(self, Py_ssize_t count) except -1
    @cython.locals(room=Py_ssize_t, backend=Backend)
    cpdef put(self, list messages, Py_ssize_t takers=*, bint keep=*)
    @cython.locals(backend=Backend, message=Message, messages=list, size=Py_ssize_t, position=Py_ssize_t)
    cpdef list take(self, Py_ssize_t limit, Py_ssize_t max_bytes)
    @cython.locals(message=Message, taken=list, early=list, expired=list, horizon=cython.longlong)
    cdef list _deliverable(self, list messages)
    @cython.locals(backend=Backend)
    cpdef finish(self, list messages)
