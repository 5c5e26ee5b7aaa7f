cimport cython

cdef class Endpoint:
    cdef readonly bint watches
    cdef object _socket, _on_readable, _watcher

    cpdef watch(self)
    cpdef stop(self)
    cpdef bytes receive(self)
    @cython.locals(data=bytes)
    cpdef bytes send(self, list frames)
    cpdef close(self)
