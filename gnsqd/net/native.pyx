"""What compiled modules do without Python in between: the clocks, whose functions stand in for those of `time`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_SetFromErrno
from libc.errno cimport EAGAIN, errno
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec

from gnsqd.net.endpoint cimport Endpoint

cdef extern from "sys/socket.h":
    int MSG_NOSIGNAL
    Py_ssize_t recv(int fd, void *buffer, size_t size, int flags)
    Py_ssize_t send(int fd, const void *data, size_t size, int flags)

cdef char _buffer[65536]  # of all connections, each for a single call


cpdef long long time_ns() noexcept:
    return _nanoseconds(CLOCK_REALTIME)


cpdef long long monotonic_ns() noexcept:
    return _nanoseconds(CLOCK_MONOTONIC)


cpdef double monotonic() noexcept:
    return _nanoseconds(CLOCK_MONOTONIC) * 1e-9


cdef inline long long _nanoseconds(int clock) noexcept:
    cdef timespec now
    clock_gettime(clock, &now)
    return <long long>now.tv_sec * 1_000_000_000 + now.tv_nsec


cdef class NativeEndpoint(Endpoint):
    """An endpoint that makes the calls of the system itself."""

    cdef int _fd

    def __init__(self, sock, on_readable):
        Endpoint.__init__(self, sock, on_readable)
        self._fd = sock.fileno()

    cpdef bytes receive(self):
        cdef Py_ssize_t length = recv(self._fd, _buffer, sizeof(_buffer), 0)
        if length >= 0:
            return PyBytes_FromStringAndSize(_buffer, length)
        if errno == EAGAIN:
            return None
        PyErr_SetFromErrno(OSError)

    cpdef bytes send(self, list frames):
        cdef bytes data = frames[0] if len(frames) == 1 else b"".join(frames)
        cdef Py_ssize_t sent = send(self._fd, PyBytes_AS_STRING(data), len(data), MSG_NOSIGNAL)
        if sent == len(data):
            return b""
        if sent < 0:
            if errno != EAGAIN:
                PyErr_SetFromErrno(OSError)
            sent = 0
        return data[sent:]
