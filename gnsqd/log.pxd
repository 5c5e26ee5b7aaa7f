cimport cython

cdef class _Sink:
    cdef public Py_ssize_t dropped, reported
    cdef object _stream, _write
    cdef bytes _rest

    @cython.locals(data=bytes, count=Py_ssize_t, begin=Py_ssize_t)
    cdef bint put(self, str line) except -1
    cpdef _open_and_write(self, bytes data)

cdef class Logger:
    cdef public str prefix
    cdef public object level
    cdef _Sink _sink
    cdef long long _second
    cdef readonly str _date
    cdef list _followers

    @cython.locals(derived=Logger)
    cpdef Logger derive(self, str prefix)
    @cython.locals(sink=_Sink, now=cython.longlong, second=cython.longlong, microseconds=cython.longlong, count=Py_ssize_t)
    cdef _output(self, level, str format, tuple args, str stack=*)
    cpdef str _line(self, long long microseconds, level, str format, tuple args, str stack)

