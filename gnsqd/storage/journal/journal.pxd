cimport cython

from gnsqd.storage.journal.compactor cimport Compactor, Retention
from gnsqd.storage.journal.log cimport Log
from gnsqd.storage.journal.queue_states cimport QueueStates
from gnsqd.storage.journal.records cimport Batch

cdef class Journal:
    cdef public str topic
    cdef public bint closed
    cdef public object replay
    cdef public Log log
    cdef public QueueStates states
    cdef public Retention retention
    cdef public Compactor compactor
    cdef object _logger, _on_dirty, _write_failed
    cdef bint _dirty

    cpdef _note_dirty(self)
    cpdef commit(self)
    cpdef flush(self, bint advance=*)
    @cython.locals(log=Log, states=QueueStates, batch=Batch)
    cdef _flush(self, bint advance)
