cdef class Doorbell:
    cdef object _answer, _hub, _run_callback, _waiter
    cdef bint _rung

    cpdef ring(self)
    cpdef wait(self, double timeout=*, answer=*)
    cpdef _wake(self)
