cimport cython

cdef class Request:
    cdef public str method
    cdef public str target
    cdef public str path
    cdef public str query
    cdef public dict headers
    cdef public bint http10
    cdef public bint keep_alive
    cdef public bint expects
    cdef public long long limit
    cdef public bytes body
    cdef public bytearray buffer
    cdef public long long received
    cdef public bint announced
    cdef public bint too_big
    cdef public bint broken

    @cython.locals(request=Request)
    cpdef Request again(self, bytes body)

cdef class RequestReader:
    cdef public bint done
    cdef public bytes refusal
    cdef object _body_limit
    cdef object _parser
    cdef Request _request
    cdef list _ready
    cdef Py_ssize_t _silence
    cdef Py_ssize_t _lines
    cdef Py_ssize_t _size
    cdef bint _progress

    cdef dict _heads
    cdef bytes _head

    cpdef list feed(self, bytes data)
    @cython.locals(start=Py_ssize_t, end=Py_ssize_t, body_end=Py_ssize_t, known=Request)
    cdef bytes _take_known(self, bytes data)
    cdef _locate(self, Request request)
    cdef _measure(self, Py_ssize_t size)
    cdef _finish(self, Request request)

cpdef bytes render(Request request, int status, bytes body, bytes headers=*)
