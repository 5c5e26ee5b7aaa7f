cimport cython

@cython.locals(frame=bytes, size=Py_ssize_t)
cpdef Py_ssize_t size_of(frames) except -1
@cython.locals(data="const unsigned char *", begin=Py_ssize_t, end=Py_ssize_t, size=Py_ssize_t, frames=list)
cpdef list split_frames(bytes payload, Py_ssize_t position, Py_ssize_t skip)
