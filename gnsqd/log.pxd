cimport cython

cdef class _Sink:
    cdef public Py_ssize_t dropped, reported
    cdef object _stream, _write
    cdef bytes _rest

    cdef bint put(self, str line) except -1

cdef class Logger:
    cdef public object level, prefix
    cdef public Py_ssize_t damages
    cdef public _Sink _sink
    cdef long long _second
    cdef readonly str _date
    cdef list _followers

    @cython.locals(sink=_Sink, now=cython.longlong, second=cython.longlong)
    cdef _output(self, level, str format, tuple args, str stack=*)
    cpdef str _line(self, long long microseconds, level, str format, tuple args, str stack)
