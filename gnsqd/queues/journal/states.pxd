cimport cython

from gnsqd.net.native cimport monotonic_ns, time_ns
from gnsqd.queues.message cimport Message

from gnsqd.shared.journal.records cimport Encoder

cdef class QueueNotes:
    cdef public str name
    cdef public object queue, finished, deferred
    cdef public dict attempts
    cdef public list logs
    cdef public long long index
    cdef QueueStates _states
    cdef bint _noted
    cdef list _finished, _taken
    cdef dict _held

    @cython.locals(notes=list)
    cpdef note_finished_span(self, long long start, long long end)
    @cython.locals(message=Message, again=cython.bint)
    cpdef note_taken(self, list messages)
    cpdef note_held(self, Message message, long long due)
    cdef _note(self)
    @cython.locals(records=list)
    cpdef list notes(self, Encoder encoder, bint total)
    cpdef forget_notes(self)

cdef class QueueStates:
    cdef public dict queues, noted
    cdef public object snapshot
    cdef public long long next_index
    cdef public list changes
    cdef Encoder _encoder
    cdef object _open_files, _on_dirty

    cdef note(self, QueueNotes queue)
    @cython.locals(queue=QueueNotes, notes=list)
    cpdef tuple records(self, follow)
    @cython.locals(queue=QueueNotes)
    cpdef forget_records(self)

@cython.locals(runs=list, message=Message, number=cython.longlong, start=cython.longlong, end=cython.longlong)
cpdef list runs_of(list messages)
