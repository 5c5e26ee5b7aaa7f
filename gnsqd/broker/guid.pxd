cimport cython

cdef long long _EPOCH
cdef long long _SEQUENCE_END
cdef list _SUFFIXES

cdef class GuidFactory:
    cdef long long _node_id, _tick, _sequence
    cdef bytes _prefix

    @cython.locals(tick=cython.longlong, ids=list)
    cpdef list next_ids(self, long long now, Py_ssize_t count)
    @cython.locals(suffixes=list, prefix=bytes, suffix=bytes)
    cdef list _ids_of_tick(self, Py_ssize_t count)
    @cython.locals(bits=cython.longlong)
    cdef _start_tick(self, long long tick)
