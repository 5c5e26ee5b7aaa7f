cimport cython

from gnsqd.broker.message cimport Message

cdef class JournaledQueue:
    cdef public object journal
    cdef public str name
    cdef public long long index
    cdef public long long depth
    cdef public object finished
    cdef public object held_messages
    cdef object _log
    cdef public long long longest
    cdef object _runs
    cdef list _deferred
    cdef dict _attempts
    cdef list _frames
    cdef long long _frames_at
    cdef long long _frames_due
    cdef tuple _seen
    cdef bint _noted
    cdef list _finished_notes
    cdef list _taken_notes
    cdef dict _held_notes

    @cython.locals(message=Message, number=cython.longlong, start=cython.longlong, end=cython.longlong)
    cpdef put(self, list messages)
    @cython.locals(message=Message, messages=list, frames=list, frame=bytes, size=cython.longlong, reads=cython.longlong, start=cython.longlong, end=cython.longlong, stop=cython.longlong, offset=cython.longlong, number=cython.longlong, delay=cython.longlong)
    cpdef list take(self, Py_ssize_t limit, Py_ssize_t max_bytes)
    @cython.locals(bounds=list, at=Py_ssize_t)
    cpdef note_finished(self, list messages)
    cpdef note_finished_span(self, long long start, long long end)
    @cython.locals(message=Message, again=cython.bint)
    cpdef note_taken(self, list messages)
    cpdef note_held(self, Message message, long long due)

@cython.locals(bounds=list, message=Message, number=cython.longlong, start=cython.longlong, end=cython.longlong)
cdef list _bounds(list messages)
@cython.locals(message=Message, first=Py_ssize_t, end=Py_ssize_t, frames=list, number=cython.longlong)
cpdef journal_messages(journal, list messages)
