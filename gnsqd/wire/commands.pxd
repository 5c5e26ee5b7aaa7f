cimport cython

from gnsqd.broker.channel cimport Channel
from gnsqd.broker.topic cimport Topic
from gnsqd.wire.client_v2 cimport ClientV2, PubCount
from gnsqd.wire.codec cimport Command, CommandSpec

cdef class Commands:
    cdef readonly dict table, first_table
    cdef object _registry, _options, _log, _new_tls, _authenticate
    cdef dict _topics
    cdef readonly bint debugging

    @cython.locals(spec=CommandSpec)
    cpdef check(self, ClientV2 client, Command command)
    cdef _authorize(self, ClientV2 client, Command command, str topic_name, str channel_name=*)
    @cython.locals(params=list, topic_name=str)
    cpdef check_publish(self, ClientV2 client, Command command)
    @cython.locals(topic=Topic, bodies=list, counter=PubCount)
    cpdef bytes publish(self, ClientV2 client, Command command)
    cdef Topic _new_topic(self, Command command)
    @cython.locals(channel=Channel)
    cpdef FIN(self, ClientV2 client, Command command)

cdef _require_state(ClientV2 client, str name, int state)
cdef str _topic_name(bytes raw, str name)
@cython.locals(id=bytes)
cdef tuple _addressed(ClientV2 client, Command command, Py_ssize_t words)
