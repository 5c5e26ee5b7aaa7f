cimport cython

cdef class Command:
    cdef public list params
    cdef public object size
    cdef public bytes body

cdef long long _int32(bytes buffer, Py_ssize_t at)

cdef class Decoder:
    cdef bytes _buffer
    cdef Py_ssize_t _position
    cdef Py_ssize_t _length
    cdef list _pieces
    cdef Py_ssize_t _pieces_length
    cdef Py_ssize_t _count
    cdef list _bodies
    cdef Py_ssize_t _total

    cpdef feed(self, bytes data)
    cdef _join(self)
    cdef bint _has(self, Py_ssize_t count) except -1
    cdef bytes _take(self, Py_ssize_t count)
    @cython.locals(start=Py_ssize_t, end=Py_ssize_t, known=Py_ssize_t, command=Command)
    cpdef Command next_command(self)
    cpdef size(self)
    cpdef bytes body(self, Py_ssize_t size)
    @cython.locals(bodies=list, size=cython.longlong, start=Py_ssize_t)
    cpdef list messages(self, long long max_body_size, long long max_msg_size)
