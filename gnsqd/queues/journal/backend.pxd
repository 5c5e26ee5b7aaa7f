cimport cython

from gnsqd.net.native cimport monotonic_ns, time_ns
from gnsqd.queues.backend cimport Backend
from gnsqd.queues.journal.journal cimport Journal
from gnsqd.queues.message cimport Message
from gnsqd.queues.journal.states cimport QueueNotes, runs_of

cdef class JournalBackend(Backend):
    cdef public Journal journal
    cdef public object rewinding
    cdef public QueueNotes notes
    cdef public long long rewound_end
    cdef object _log, _runs
    cdef long long _longest, _frames_at, _frames_due
    cdef list _frames
    cdef tuple _first_seen

    @cython.locals(message=Message)
    cpdef put(self, list messages)
    @cython.locals(start=cython.longlong, end=cython.longlong)
    cpdef put_spans(self, spans)
    @cython.locals(message=Message, messages=list, frames=list, frame=bytes, size=cython.longlong, reads=cython.longlong, start=cython.longlong, end=cython.longlong, stop=cython.longlong, offset=cython.longlong, number=cython.longlong, delay=cython.longlong, attempts=dict)
    cpdef list read(self, Py_ssize_t limit, Py_ssize_t max_bytes)
    @cython.locals(start=cython.longlong, end=cython.longlong)
    cpdef finish(self, list messages)
    cpdef delivered(self, list given, list messages)

@cython.locals(message=Message, first=Py_ssize_t, end=Py_ssize_t, frames=list, number=cython.longlong)
cpdef journal_messages(Journal journal, list messages)
