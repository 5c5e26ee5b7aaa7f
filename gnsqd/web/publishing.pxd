cimport cython

from gnsqd.web.http11 cimport Request


cdef class Publishing:
    cdef object _options, _registry, _log

    cpdef pub(self, Request request)
    cdef long long _parse_defer(self, dict parameters) except? -1
    @cython.locals(bodies=list)
    cpdef mpub(self, Request request)
    @cython.locals(longest=Py_ssize_t, size=Py_ssize_t, line=bytes, body=bytes, bodies=list)
    cdef list _split_lines(self, Request request)
    cdef _put(self, Request request, topic, list bodies, long long deferred)
    cpdef get_topic(self, Request request, dict parameters)
