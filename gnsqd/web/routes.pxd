cimport cython

from gnsqd.web.http11 cimport Request


cdef class Router:
    cdef object _options, _log
    cdef dict _endpoints, _canonical
    cdef set _open_ended

    @cython.locals(rows=dict)
    cdef tuple _find(self, Request request)
    cpdef respond(self, Request request, str remote_address)


cdef bytes _render_result(Request request, int status, result, bint v1)
