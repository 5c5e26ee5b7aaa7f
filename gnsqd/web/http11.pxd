cimport cython

from gnsqd.net.native cimport time_ns


cdef class Request:
    cdef public str method, target, path, query
    cdef public dict headers
    cdef public bint http10, announced, keep_alive, expects, encoded, too_big, broken, may_yield
    cdef public Py_ssize_t limit, received
    cdef public bytes body
    cdef public object buffer

    cpdef Request with_body(self, bytes body)


cdef class RequestReader:
    cdef public bint done
    cdef public bytes refusal
    cdef public Request request
    cdef object _body_limit, _line
    cdef dict _heads
    cdef bytes _head, _last_head, _buffer
    cdef Request _last
    cdef Py_ssize_t _searched, _rest, _silence
    cdef list _ready
    cdef bint _progress

    @cython.locals(last=Request, body=bytes, size=Py_ssize_t, position=Py_ssize_t, before=Py_ssize_t)
    cpdef list feed(self, bytes data)
    @cython.locals(known=Request, head=bytes, start=Py_ssize_t, end=Py_ssize_t, body_end=Py_ssize_t)
    cdef bytes _take_known(self, bytes data)
    cpdef list feed_eof(self)
    cdef list _take_ready(self)
    cpdef bint is_idle(self) except -1
    cpdef bytes take_reply(self)


cpdef bytes render(Request request, int status, bytes body, bytes headers=*)
