from gnsqd.storage.journal.log cimport Log
from gnsqd.storage.journal.queue_states cimport QueueStates

cdef class Retention:
    cdef public Log log
    cdef public object max_bytes, max_age, begin, absent
    cdef public Py_ssize_t rewinds
    cdef public bint is_own
    cdef QueueStates _states
    cdef object _commit, _max_segment

    cpdef bint is_aged(self) except -1
    cpdef floor(self)

cdef class Compactor:
    cdef Log _log
    cdef Retention _retention
    cdef object _flush, _commit, _greenlet
    cdef dict _floors
    cdef object _floor
    cdef double _compact_at
    cdef bint _closed

    cpdef note_written(self)
    cpdef reclaim(self)
