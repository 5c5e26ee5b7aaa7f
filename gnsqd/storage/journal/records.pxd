cimport cython

@cython.locals(frame=bytes, size=Py_ssize_t)
cpdef Py_ssize_t size_of(frames) except -1
