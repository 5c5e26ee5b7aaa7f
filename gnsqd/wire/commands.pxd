cimport cython

from gnsqd.broker.channel cimport Channel
from gnsqd.broker.topic cimport Topic
from gnsqd.wire.client_v2 cimport ClientV2
from gnsqd.wire.codec cimport Command, Decoder

cdef class Commands:
    cdef object _registry, _options, _log, _new_tls, _authenticate
    cdef dict _topics, _handlers
    cdef bint _tls_required

    cpdef execute(self, ClientV2 client, Command command)
    cdef _more(self, ClientV2 client)
    @cython.locals(size=cython.longlong)
    cdef long long _size(self, ClientV2 client, Command command, str code, str name, long long limit) except? -1
    @cython.locals(body=bytes, size=cython.longlong)
    cdef bytes _body(self, ClientV2 client, Command command, str code, str name, long long limit)
    @cython.locals(decoder=Decoder, bodies=list)
    cdef list _bodies(self, ClientV2 client)
    @cython.locals(topic=Topic)
    cdef bytes _publish(self, ClientV2 client, str topic_name, list bodies, long long deferred, str name)
    @cython.locals(topic=Topic)
    cdef Topic _get_topic(self, ClientV2 client, str topic_name, str name)
    cdef _authorize(self, ClientV2 client, str name, str topic_name, str channel_name=*)
    @cython.locals(topic_name=str, body=bytes)
    cpdef PUB(self, ClientV2 client, Command command)
    @cython.locals(topic_name=str)
    cpdef MPUB(self, ClientV2 client, Command command)
    @cython.locals(channel=Channel)
    cpdef FIN(self, ClientV2 client, Command command)

cdef _require_state(ClientV2 client, str name, int state)
cdef Channel _subscribed_channel(ClientV2 client, str name)
cdef str _topic_name(bytes raw, str name)
@cython.locals(raw=bytes)
cdef str _publish_topic(ClientV2 client, Command command, str name, Py_ssize_t words)
@cython.locals(id=bytes)
cdef bytes _message_id(Command command, str name, Py_ssize_t words)
