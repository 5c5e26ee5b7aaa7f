cimport cython

cdef class Command:
    cdef public list params
    cdef public object size
    cdef public bytes body

cdef bytes _FIN
cdef Py_ssize_t _FIN_LENGTH
cdef set _HAS_SIZE
cdef set _HAS_BODY

@cython.locals(data="const unsigned char *")
cdef long long _int32(bytes buffer, Py_ssize_t at)

cdef class Decoder:
    cdef bytes _buffer
    cdef Py_ssize_t _position, _length, _pieces_length, _count, _total
    cdef list _pieces, _bodies

    cpdef feed(self, bytes data)
    cdef _join(self)
    cdef bint _has(self, Py_ssize_t count) except -1
    @cython.locals(data="const unsigned char *", start=Py_ssize_t)
    cdef bytes _take(self, Py_ssize_t count)
    @cython.locals(buffer=bytes, data="const unsigned char *", start=Py_ssize_t, count=Py_ssize_t, end=Py_ssize_t, at=Py_ssize_t, place=Py_ssize_t, character=bytes, column=bytes)
    cpdef list finished_ids(self)
    cpdef take_back(self, Py_ssize_t count)
    @cython.locals(data="const unsigned char *", line=bytes, start=Py_ssize_t, end=Py_ssize_t, known=Py_ssize_t, command=Command)
    cpdef Command next_command(self)
    @cython.locals(start=Py_ssize_t)
    cpdef size(self)
    cpdef bytes body(self, Py_ssize_t size)
    @cython.locals(bodies=list, data="const unsigned char *", size=cython.longlong, total=cython.longlong, start=Py_ssize_t, end=Py_ssize_t)
    cpdef list messages(self, long long max_body_size, long long max_msg_size)
    @cython.locals(size=cython.longlong)
    cdef bint _has_message(self, long long max_body_size, long long max_msg_size) except -1
