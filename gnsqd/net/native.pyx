"""What compiled modules do without Python in between: the clocks stand in for those of `time`, and what is for messages
for that of `plain`, which describes it."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_SetFromErrno
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EAGAIN, EINTR, errno
from libc.string cimport memcpy
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec

from gnsqd.net.plain cimport Endpoint
from gnsqd.shared import protocol

cdef extern from "arpa/inet.h":
    unsigned int htonl(unsigned int) noexcept

cdef extern from "sys/socket.h":
    int MSG_NOSIGNAL
    Py_ssize_t recv(int fd, void *buffer, size_t size, int flags)
    Py_ssize_t send(int fd, const void *data, size_t size, int flags)

cdef char _buffer[65536]  # of all connections, each for a single call
cdef unsigned int FRAME_TYPE_MESSAGE = protocol.FRAME_TYPE_MESSAGE


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
        if errno in (EAGAIN, EINTR):
            return None
        PyErr_SetFromErrno(OSError)

    cpdef bytes send(self, list frames):
        cdef bytes data = frames[0] if len(frames) == 1 else b"".join(frames)
        cdef Py_ssize_t sent = send(self._fd, PyBytes_AS_STRING(data), len(data), MSG_NOSIGNAL)
        if sent == len(data):
            return b""
        if sent < 0:
            if errno not in (EAGAIN, EINTR):
                PyErr_SetFromErrno(OSError)
            sent = 0
        return data[sent:]

    cpdef close(self):
        self._fd = -1  # the number may soon be another connection's
        Endpoint.close(self)


ctypedef int (*SSLFunction)(void *ssl_or_bio, void *data, int size)
cdef SSLFunction _bio_read, _bio_write, _ssl_read, _ssl_write
cdef long (*_bio_get_mem_data)(void *bio, void *pointer)
cdef object _ffi


def use_openssl(ffi, lib):
    """Takes the addresses of OpenSSL's functions from cryptography's bindings. Raises AttributeError or TypeError
    if those are not as expected."""
    global _bio_get_mem_data, _bio_read, _bio_write, _ffi, _ssl_read, _ssl_write
    _ffi = ffi
    _bio_get_mem_data = <long (*)(void *, void *)>_address(ffi.addressof(lib, "BIO_get_mem_data"))
    _bio_read = <SSLFunction>_address(ffi.addressof(lib, "BIO_read"))
    _bio_write = <SSLFunction>_address(ffi.addressof(lib, "BIO_write"))
    _ssl_read = <SSLFunction>_address(ffi.addressof(lib, "SSL_read"))
    _ssl_write = <SSLFunction>_address(ffi.addressof(lib, "SSL_write"))


cdef void *_address(pointer) except NULL:
    return <void *><size_t>int(_ffi.cast("uintptr_t", pointer))


cdef class NativeRecords:
    """Decodes and encodes as `tls.Records`, which it replaces."""

    cdef public bint pending
    cdef object _owners
    cdef void *_ssl
    cdef void *_input
    cdef void *_output

    def __init__(self, ssl, input, output):
        self._owners = ssl, input, output
        self._ssl = _address(ssl)
        self._input = _address(input)
        self._output = _address(output)

    def decode(self, bytes data):
        cdef bytes plain = b""
        cdef int length
        self.pending = False
        if data:
            _bio_write(self._input, PyBytes_AS_STRING(data), <int>len(data))
        while True:
            length = _ssl_read(self._ssl, _buffer, sizeof(_buffer))
            if length <= 0:
                self.failed(length, True)
                return plain
            record = PyBytes_FromStringAndSize(_buffer, length)
            plain = plain + record if plain else record
            if not _bio_get_mem_data(self._input, NULL):
                return plain

    def encode(self, bytes data):
        cdef char *rest = PyBytes_AS_STRING(data)
        cdef int size = <int>len(data)
        cdef int length
        while size:  # OpenSSL writes one record in a call
            length = _ssl_write(self._ssl, rest, size)
            if length <= 0:
                self.failed(length, False)
                break
            rest += length
            size -= length
        encoded = b""
        while (length := _bio_read(self._output, _buffer, sizeof(_buffer))) > 0:
            piece = PyBytes_FromStringAndSize(_buffer, length)
            encoded = encoded + piece if encoded else piece
        return encoded


cpdef list new_frames(long long id, long long timestamp, list bodies):
    cdef unsigned char head[34]
    cdef unsigned char *to
    cdef bytes body, frame
    cdef Py_ssize_t size, position = 0
    cdef list frames = PyList_New(len(bodies))
    _put_int32(head + 4, FRAME_TYPE_MESSAGE)
    _put_int32(head + 8, timestamp >> 32)
    _put_int32(head + 12, timestamp)
    head[16], head[17] = 0, 1
    _put_hex(head + 18, 13, id >> 12)
    for body in bodies:
        size = PyBytes_GET_SIZE(body)
        _put_int32(head, 30 + size)
        _put_hex(head + 31, 3, id)
        id += 1
        frame = PyBytes_FromStringAndSize(NULL, 34 + size)
        to = <unsigned char *>PyBytes_AS_STRING(frame)
        memcpy(to, head, 34)
        memcpy(to + 34, PyBytes_AS_STRING(body), size)
        Py_INCREF(frame)
        PyList_SET_ITEM(frames, position, frame)
        position += 1
    return frames


cdef inline void _put_int32(unsigned char *to, long long value) noexcept:
    cdef unsigned int big_endian = htonl(<unsigned int>value)
    memcpy(to, &big_endian, 4)


cdef inline void _put_hex(unsigned char *to, int digits, long long value) noexcept:
    while digits:
        digits -= 1
        to[digits] = b"0123456789abcdef"[value & 15]
        value >>= 4


cpdef Id id_at(const unsigned char *data, Py_ssize_t at) noexcept:
    cdef Id id
    memcpy(&id, data + at, sizeof(Id))
    return id


cpdef MessagesById new_by_id():
    return MessagesById()


cdef Py_ssize_t LEAST_ROOM = 16  # a power of two


cdef class MessagesById:
    """A dict as `plain.new_by_id` returns. Messages are none of the garbage collector's objects, so neither is this."""

    def __dealloc__(self):
        cdef Py_ssize_t number
        for number in range(self._first, self._end):
            if self._entries[number].message:
                Py_DECREF(<object>self._entries[number].message)
        PyMem_Free(self._entries)
        PyMem_Free(self._slots)

    def __len__(self):
        return self._length

    def values(self):
        cdef Py_ssize_t number = self._first
        while number < self._end:
            if self._entries[number].message:
                yield <object>self._entries[number].message
            number += 1

    cdef get(self, Id id):
        cdef Entry *entry = self._find(id)
        return None if entry is NULL else <object>entry.message

    cdef pop(self, Id id):
        cdef Entry *entry = self._find(id)
        if entry is NULL:
            raise KeyError
        message = <object>entry.message
        Py_DECREF(message)
        entry.message = NULL
        self._length -= 1
        self._expected += 1
        while self._first < self._end and self._entries[self._first].message is NULL:
            self._first += 1
        if not self._length and self._room > LEAST_ROOM:
            PyMem_Free(self._entries)
            PyMem_Free(self._slots)
            self._entries, self._slots = NULL, NULL
            self._room = self._first = self._end = 0
        return message

    cdef setdefault(self, Id id, message):
        cdef Entry *entry = self._find(id)
        if entry is not NULL:
            return <object>entry.message
        if self._end == self._room:
            self._make_room(max(LEAST_ROOM, 2 * self._room if 2 * self._length > self._room else self._room))
        entry = &self._entries[self._end]
        entry.id = id
        Py_INCREF(message)
        entry.message = <PyObject *>message
        self._end += 1
        self._length += 1
        self._enter(id, self._end)
        return message

    cdef Entry *_find(self, Id id) noexcept:
        cdef Entry *entry
        cdef Py_ssize_t slot
        if not self._length:
            return NULL
        # Most messages are finished in the order of their delivery, and each is looked up again to be removed.
        entry = &self._entries[self._expected]
        if self._expected < self._end and entry.id.low == id.low and entry.id.high == id.high and entry.message:
            return entry
        slot = self._hash(id)
        while self._slots[slot]:
            entry = &self._entries[self._slots[slot] - 1]
            if entry.id.low == id.low and entry.id.high == id.high and entry.message:
                self._expected = self._slots[slot] - 1
                return entry
            slot = (slot + 1) & (2 * self._room - 1)
        return NULL

    cdef inline Py_ssize_t _hash(self, Id id) noexcept:
        # A product moves bits upwards only, and the last digits, which differ most, are in the upper bytes.
        cdef unsigned long long mixed = id.high * 0x9E3779B97F4A7C15ULL ^ id.low
        mixed = (mixed ^ mixed >> 32) * 0xC2B2AE3D27D4EB4FULL
        return <Py_ssize_t>(mixed >> 32) & (2 * self._room - 1)

    cdef inline void _enter(self, Id id, Py_ssize_t number) noexcept:
        cdef Py_ssize_t slot = self._hash(id)
        while self._slots[slot] and self._entries[self._slots[slot] - 1].message:  # else its entry was removed
            slot = (slot + 1) & (2 * self._room - 1)
        self._slots[slot] = <int>number

    cdef _make_room(self, Py_ssize_t room):
        """Leaves out removed entries. Raises MemoryError."""
        cdef int *slots = <int *>PyMem_Calloc(2 * room, sizeof(int))
        cdef Entry *entries = <Entry *>PyMem_Realloc(self._entries, room * sizeof(Entry))
        cdef Py_ssize_t number, end = 0
        if entries is not NULL:
            self._entries = entries
        if entries is NULL or slots is NULL:
            PyMem_Free(slots)
            raise MemoryError
        PyMem_Free(self._slots)
        self._slots, self._room = slots, room
        for number in range(self._first, self._end):
            if entries[number].message:
                entries[end] = entries[number]
                end += 1
                self._enter(entries[end - 1].id, end)
        self._first, self._end, self._expected = 0, end, 0
