cdef class Doorbell:
    cdef object _hub, _waiter
    cdef bint _rung

    cpdef ring(self)
    cpdef wait(self, double timeout=*)
    cpdef _wake(self)
