cimport cython

cdef class CommandSpec:
    cdef readonly str name, code
    cdef readonly object check, handler
    cdef readonly tuple limits
    cdef readonly long long limit, message_limit
    cdef readonly bint has_messages, after_commit, publishes

cdef class Command:
    cdef public list params, bodies
    cdef public CommandSpec spec
    cdef public long long size, deferred
    cdef public bint checked, may_yield
    cdef public str topic_name
    cdef public object counter, topic, upgrade

cdef list _NO_BODIES
cdef Py_ssize_t FIN_LENGTH, _MAX_FINS, _MAX_PUBS, _MAX_REPEATED, MAX_LINE

@cython.locals(data="const unsigned char *")
cdef long long _int32(bytes buffer, Py_ssize_t at)

cdef class Decoder:
    cdef bytes _buffer
    cdef Py_ssize_t _position, _length, _pieces_length, _count, _total
    cdef list _pieces, _bodies
    cdef public dict table
    cdef object _end
    cdef Command _repeated
    cdef bytes _line

    cpdef feed(self, bytes data)
    cdef _join(self)
    cdef bint _has(self, Py_ssize_t count) except -1
    @cython.locals(data="const unsigned char *", start=Py_ssize_t)
    cpdef bytes magic(self)
    @cython.locals(data="const unsigned char *", start=Py_ssize_t, end=Py_ssize_t, last=Py_ssize_t)
    cpdef bytes next_fins(self)
    cpdef put_back(self, Py_ssize_t size)
    @cython.locals(data="const unsigned char *", start=Py_ssize_t, last=Py_ssize_t, at=Py_ssize_t, size=cython.longlong, bodies=list)
    cpdef add_repeated(self, Command command, Py_ssize_t most)
    @cython.locals(start=Py_ssize_t, command=Command)
    cpdef Command next_command(self)
    @cython.locals(data="const unsigned char *", line=bytes, start=Py_ssize_t, end=Py_ssize_t, params=list, spec=CommandSpec, command=Command)
    cdef Command _new_command(self)
    @cython.locals(spec=CommandSpec, data="const unsigned char *", start=Py_ssize_t, end=Py_ssize_t, size=cython.longlong, bodies=list)
    cpdef bint complete(self, Command command) except -1
    @cython.locals(spec=CommandSpec)
    cdef bint _wait(self, Command command) except -1
    @cython.locals(bodies=list, data="const unsigned char *", size=cython.longlong, total=cython.longlong, start=Py_ssize_t, end=Py_ssize_t)
    cpdef list messages(self, long long max_body_size, long long max_msg_size)
    @cython.locals(size=cython.longlong)
    cdef bint _has_message(self, long long max_body_size, long long max_msg_size) except -1
