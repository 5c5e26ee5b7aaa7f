cdef class Polling:
    cdef object _idle
    cdef double _last
    cdef readonly bint looking

    cpdef note(self)
    cpdef _look(self)
