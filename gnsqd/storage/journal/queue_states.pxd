cimport cython

from gnsqd.storage.journal.records cimport Encoder

cdef class QueueStates:
    cdef public dict queues
    cdef public object snapshot
    cdef Encoder _encoder
    cdef long long _next_index
    cdef object _open_files, _on_dirty
    cdef list _changes
    cdef dict _noted

    cpdef note(self, queue)
    cpdef tuple records(self, follow)
    cpdef forget_records(self)
