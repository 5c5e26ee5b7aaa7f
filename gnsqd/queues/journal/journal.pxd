cimport cython

from gnsqd.queues.journal.log cimport Log
from gnsqd.queues.journal.states cimport QueueStates
from gnsqd.shared.journal.records cimport PutBatch

cdef class Journal:
    cdef public str topic
    cdef public bint closed
    cdef public object replay, retention, compactor
    cdef public QueueStates states
    cdef public Log log
    cdef object _on_dirty, _write_failed, _reserve
    cdef bint _dirty

    cpdef _note_dirty(self)
    cpdef commit(self)
    cpdef wait_synced(self)
    cpdef flush(self, bint advance=*)
    cdef bint _flush(self, bint advance) except -1
    @cython.locals(log=Log, states=QueueStates, batch=PutBatch, is_empty=cython.bint, head=bytes, notes=list)
    cdef _write(self, bint advance)
