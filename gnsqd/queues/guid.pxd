cimport cython

cdef long long _EPOCH, NODE_ID_BITS, SEQUENCE_BITS

cdef class GuidFactory:
    cdef long long _node_id, _tick, _sequence

    @cython.locals(tick=cython.longlong, first=cython.longlong)
    cpdef long long reserve(self, long long now, Py_ssize_t count) except -1
