cimport cython

from gnsqd.broker.channel cimport Channel
from gnsqd.wire.client_v2 cimport ClientV2
from gnsqd.wire.codec cimport Command, Decoder
from gnsqd.wire.commands cimport Commands

cdef class ProtocolV2:
    cdef Commands _commands
    cdef object _log, _spawn

    @cython.locals(decoder=Decoder, command=Command, channel=Channel, done=Py_ssize_t, executed=Py_ssize_t, turn_end=double, data=bytes)
    cpdef _serve(self, ClientV2 client)
    cdef _send_replies(self, ClientV2 client)
    cdef double _share_turn(self, ClientV2 client, double end) except? -1
    @cython.locals(decoder=Decoder, ids=list, count=Py_ssize_t)
    cdef Py_ssize_t _finish_run(self, ClientV2 client, Channel channel) except -1
    @cython.locals(channel=Channel, messages=list, window=cython.longlong, debugging=cython.bint)
    cpdef _pump(self, ClientV2 client)
