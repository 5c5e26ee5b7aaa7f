cimport cython

from gnsqd.broker.channel cimport Channel
from gnsqd.broker.topic cimport Topic
from gnsqd.wire.client_v2 cimport ClientV2
from gnsqd.wire.codec cimport Command, Decoder

cdef class ProtocolV2:
    cdef object _registry
    cdef object _options
    cdef object _log
    cdef object _tls_context
    cdef object _gate
    cdef bint _tls_required

    @cython.locals(decoder=Decoder, command=Command)
    cpdef _serve(self, ClientV2 client)
    cpdef _execute(self, ClientV2 client, Command command)
    @cython.locals(channel=Channel, messages=list, window=cython.longlong, debugging=cython.bint)
    cpdef _pump(self, ClientV2 client)
    cdef bytes _publish(self, ClientV2 client, topic_name, list bodies, long long deferred, name)
    @cython.locals(channel=Channel)
    cpdef FIN(self, ClientV2 client, Command command)
