cimport cython

from gnsqd.net.plain cimport Endpoint
from gnsqd.net.native cimport monotonic


cdef class Polling:
    cdef object _idle
    cdef double _last, _window
    cdef readonly bint looking

    cpdef note(self)
    cpdef _look(self)


cdef class Receiver:
    cdef bytes data

    cpdef bint receive_data(self, bytes data) except -1


cdef class Connection:
    cdef public str remote_address
    cdef public double read_deadline, write_timeout
    cdef object _layer, _socket, _hub, _reader, _timer
    cdef public bint resetting, paused
    cdef bint _closed
    cdef list _senders
    cdef Endpoint _endpoint
    cdef bytes _unread, _unsent
    cdef str _write_error
    cdef Polling _polling
    cdef Receiver _receiver
    cdef double _last, _timer_at

    cpdef bint pause(self) except -1
    cpdef end_feed(self)
    cpdef feed(self, Receiver receiver)
    @cython.locals(receiver=Receiver)
    cpdef bytes receive(self)
    cdef _decode(self, layer, bytes data)
    cdef _wait(self, Receiver receiver)
    @cython.locals(data=bytes, receiver=Receiver)
    cdef _take_input(self, bint expired)
    cpdef check_open(self)
    cdef _ended(self)
    cdef _watch_deadline(self)
    cdef _start_timer(self)
    cdef _stop_timer(self)
    cpdef _on_timer(self)
    cpdef bint is_sending(self) except -1
    cpdef bint send_at_once(self, list frames) except -1
    @cython.locals(data=bytes)
    cpdef send(self, list frames)
    cdef _send_slowly(self, bytes data)
    @cython.locals(timeout=double, end=double)
    cdef _send(self, bytes data)
