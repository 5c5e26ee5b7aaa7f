cimport cython

from gnsqd.net.connection cimport Connection, Receiver
from gnsqd.net.native cimport monotonic
from gnsqd.web.http11 cimport Request, RequestReader


cdef class HTTPSession(Receiver):
    cdef object _server, _responder, _parts
    cdef Connection _connection
    cdef RequestReader _reader
    cdef list _requests, _answers
    cdef Request _request
    cdef double _turn_end, _began
    cdef bint _is_turn_over, _are_parts_marked

    cpdef serve(self)
    @cython.locals(answers=list, answered=cython.bint)
    cpdef bint receive_data(self, bytes data) except -1
    @cython.locals(requests=list, size=Py_ssize_t, request=Request, reply=bytes)
    cdef bint _execute(self, bint may_yield) except -1
    cdef bint _has_used_turn(self) except -1
    cdef _go_on(self)
    cdef _send(self)
    cdef _send_parts(self, parts)
    @cython.locals(connection=Connection, reader=RequestReader, request=Request)
    cdef _set_deadline(self, bint answered)
