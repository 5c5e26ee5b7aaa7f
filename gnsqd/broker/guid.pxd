cimport cython

cdef long long _EPOCH
cdef long long _SEQUENCE_END
cdef list _SUFFIXES

cdef class GuidFactory:
    cdef long long _node_id, _tick, _sequence
    cdef bytes _prefix

    @cython.locals(tick=cython.longlong, ids=list, suffixes=list, prefix=bytes, suffix=bytes)
    cpdef list next_ids(self, long long now, Py_ssize_t count)
    cdef _start_tick(self, long long tick)
