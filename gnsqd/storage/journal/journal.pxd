cimport cython

from gnsqd.storage.journal.log cimport Log
from gnsqd.shared.journal.records cimport Batch

cdef class Journal:
    cdef public str topic
    cdef public bint closed
    cdef public object replay, states, retention, compactor
    cdef public Log log
    cdef object _on_dirty, _write_failed
    cdef bint _dirty

    cpdef _note_dirty(self)
    cpdef commit(self)
    cpdef flush(self, bint advance=*)
    @cython.locals(log=Log, batch=Batch)
    cdef _flush(self, bint advance)
