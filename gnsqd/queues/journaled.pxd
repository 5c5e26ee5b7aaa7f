cimport cython

from gnsqd.queues.message cimport Message
from gnsqd.queues.queue cimport Queue

cdef class JournaledQueue(Queue):
    cdef public object journal, finished
    cdef public list logs
    cdef public long long index
    cdef long long _longest, _depth, _frames_at, _frames_due, _rewound_end
    cdef object _runs, _held, _rewinding
    cdef list _frames, _finished_notes, _taken_notes
    cdef dict _attempts, _held_notes
    cdef tuple _seen
    cdef bint _noted

    cpdef Py_ssize_t stored(self) except -1
    @cython.locals(message=Message, start=cython.longlong, end=cython.longlong)
    cpdef store(self, list messages)
    cdef _append(self, long long start, long long end)
    @cython.locals(message=Message, messages=list, frames=list, frame=bytes, size=cython.longlong, reads=cython.longlong, start=cython.longlong, end=cython.longlong, stop=cython.longlong, offset=cython.longlong, number=cython.longlong, delay=cython.longlong)
    cpdef list read(self, Py_ssize_t limit, Py_ssize_t max_bytes)
    @cython.locals(message=Message, messages=list)
    cpdef list take(self, Py_ssize_t limit, Py_ssize_t max_bytes)
    cpdef hold(self, Message message, long long due)
    @cython.locals(start=cython.longlong, end=cython.longlong)
    cpdef finish(self, list messages)
    @cython.locals(notes=list)
    cpdef note_finished_span(self, long long start, long long end)
    @cython.locals(message=Message, again=cython.bint)
    cpdef taken(self, list messages, list given)
    cpdef note_held(self, Message message, long long due)
    cdef _note(self)

@cython.locals(runs=list, message=Message, number=cython.longlong, start=cython.longlong, end=cython.longlong)
cdef list _runs_of(list messages)
@cython.locals(message=Message, first=Py_ssize_t, end=Py_ssize_t, frames=list, number=cython.longlong)
cpdef journal_messages(journal, list messages)
