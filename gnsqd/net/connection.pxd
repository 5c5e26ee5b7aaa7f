from gnsqd.hub.polling cimport Polling


cdef class Connection:
    cdef public str remote_address
    cdef public double read_deadline
    cdef public object write_timeout
    cdef object _stream
    cdef bint _upgraded
    cdef bytes _unread
    cdef object _socket
    cdef str _local_address
    cdef object _hub
    cdef Polling _polling
    cdef object _readable
    cdef bint _armed
    cdef object _reader
    cdef object _timer
    cdef double _timer_at
    cdef bint _expired
    cdef object _sending

    cpdef bytes receive(self)
    cdef _decode(self, bytes data)
    cdef _receive(self)
    cdef bint _wait_readable(self) except -1
    cpdef _on_readable(self)
    cdef _start_timer(self)
    cdef _stop_timer(self)
    cpdef _on_timer(self)
    cpdef send(self, bytes data)
    cdef _send(self, bytes data)
    cdef Py_ssize_t _try_send(self, data) except -1
