cdef class Endpoint:
    cdef readonly bint watches
    cdef object _socket, _on_readable, _watcher

    cpdef watch(self)
    cpdef stop(self)
    cpdef bytes receive(self)
    cpdef Py_ssize_t send(self, bytes data, Py_ssize_t start) except -1
    cpdef close(self)
