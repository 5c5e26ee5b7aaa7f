cdef long long _EPOCH
cdef long long _SEQUENCE_END
cdef list _SUFFIXES

cdef class GuidFactory:
    cdef long long _node_id
    cdef long long _tick
    cdef long long _sequence
    cdef bytes _prefix

    cpdef bytes next_id(self, long long now)
    cdef _start_tick(self, long long tick)
