cimport cython

from gnsqd.queues.message cimport Message

cdef Py_ssize_t FRAME_SURPLUS

cdef class Deferred:
    cdef dict _messages
    cdef object _by_due

    cpdef bint push(self, Message message, long long due) except -1
    @cython.locals(message=Message)
    cpdef list pop_due(self, long long now, Py_ssize_t limit)

cdef class Queue:
    cdef public str name, label
    cdef public object memory, log, outside, on_refused, on_more, arranging
    cdef public Deferred deferred
    cdef public bint blocked, closed, ordered
    cdef public Py_ssize_t unsettled, capacity
    cdef public long long dropped, expired, rejected, ttl, resume_at
    cdef bint _store_first

    cpdef Py_ssize_t count(self) except -1
    cpdef bint has_room(self, Py_ssize_t count) except -1
    @cython.locals(room=Py_ssize_t)
    cpdef put(self, list messages, Py_ssize_t takers=*)
    cpdef put_all(self, list messages, Py_ssize_t takers=*)
    @cython.locals(message=Message, messages=list, size=Py_ssize_t, position=Py_ssize_t)
    cpdef list next(self, Py_ssize_t limit, Py_ssize_t max_bytes)
    cpdef list take(self, Py_ssize_t limit, Py_ssize_t max_bytes)
    cpdef taken(self, list messages, list given)
    cpdef finish(self, list messages)
    @cython.locals(message=Message, now=cython.longlong)
    cpdef defer(self, list messages, bint stored=*)
    cpdef hold(self, Message message, long long due)
    cpdef list fresh(self, list messages)
    cpdef Py_ssize_t stored(self) except -1
    cpdef store(self, list messages)
    cpdef list read(self, Py_ssize_t limit, Py_ssize_t max_bytes)
    cpdef wait_synced(self)

cdef class EphemeralQueue(Queue):
    @cython.locals(room=Py_ssize_t)
    cpdef put(self, list messages, Py_ssize_t takers=*)
