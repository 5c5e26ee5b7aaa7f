cimport cython

from gnsqd.web.http11 cimport Request


cdef class Router:
    cdef object _options, _log
    cdef dict _endpoints, _canonical, _patterns

    @cython.locals(rows=dict)
    cdef tuple _find(self, Request request)
    cpdef respond(self, Request request, str remote_address)


cpdef bytes render_result(Request request, int status, result, bint v1)
