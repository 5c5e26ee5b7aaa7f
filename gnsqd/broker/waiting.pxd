cdef class WaitingConsumers:
    cdef dict _waiting
    cdef set _woken

    cpdef Py_ssize_t leave(self, client) except -1
    cpdef join(self, client)
    cpdef wake(self, Py_ssize_t count)
