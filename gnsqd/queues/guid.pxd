cimport cython

cdef long long _EPOCH
cdef long long _SEQUENCE_END
cdef list _SUFFIXES

cdef class GuidFactory:
    cdef long long _node_id, _tick, _sequence
    cdef public bytes prefix

    @cython.locals(bits=cython.longlong, tick=cython.longlong, suffixes=list)
    cpdef list next_suffixes(self, long long now, Py_ssize_t count)
