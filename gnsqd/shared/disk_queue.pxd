cimport cython

cdef class RecordReader:
    cdef str _path
    cdef Py_ssize_t _min_size, _max_size, _buffer_size
    cdef int _descriptor
    cdef bytes _buffer
    cdef long long _start

    cpdef feed(self, long long pos, bytes data)
    @cython.locals(needed=Py_ssize_t, payloads=list, ends=list)
    cpdef tuple read(self, long long pos, long long end, Py_ssize_t limit, Py_ssize_t max_bytes)
    @cython.locals(buffer=bytes, start=cython.longlong, available=Py_ssize_t, offset=Py_ssize_t, body=Py_ssize_t, size=Py_ssize_t, room=Py_ssize_t)
    cdef Py_ssize_t _parse(self, long long pos, long long end, Py_ssize_t limit, Py_ssize_t max_bytes, list payloads, list ends) except -1
    cdef _check_size(self, Py_ssize_t size, long long behind, long long end)
    @cython.locals(buffer=bytes, available=Py_ssize_t, offset=Py_ssize_t, size=Py_ssize_t, edges=list, min_size=Py_ssize_t, max_size=Py_ssize_t)
    cdef tuple _edges(self, long long end)
    @cython.locals(size=Py_ssize_t, length=bytes)
    cdef bint _is_followed(self, long long pos, long long end) except -1
    cdef _fill(self, long long pos, Py_ssize_t needed, long long end)
