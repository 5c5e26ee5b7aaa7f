cimport cython

from gnsqd.broker.channel cimport Channel
from gnsqd.broker.topic cimport Topic
from gnsqd.hub.doorbell cimport Doorbell
from gnsqd.net.connection cimport Connection, Receiver
from gnsqd.net.native cimport monotonic
from gnsqd.wire.client_v2 cimport ClientV2, PubCount
from gnsqd.wire.codec cimport Command, Decoder
from gnsqd.wire.commands cimport Commands

cdef Py_ssize_t FIN_LENGTH, _TURN_COMMANDS

cdef class Session(Receiver):
    cdef readonly ClientV2 client
    cdef readonly Decoder decoder
    cdef Commands _commands
    cdef Command _command
    cdef object _log, _spawn
    cdef Doorbell _pump_ended
    cdef bint _has_executed
    cdef double _turn_end
    cdef list _failed, _replies
    cdef dict _uncommitted

    @cython.locals(decoder=Decoder, channel=Channel, command=Command, published=Command, topic=Topic, debugging=cython.bint, left=Py_ssize_t,
                   fins=bytes, count=Py_ssize_t, answer=bytes, bodies=list, counter=PubCount)
    cpdef bint execute(self) except -1
    cdef bint _is_turn_over(self) except -1
    @cython.locals(connection=Connection, topic=Topic)
    cdef bint _commit_soon(self) except -1
    @cython.locals(connection=Connection)
    cpdef _end_commit(self, error)
    cpdef bint receive_data(self, bytes data) except -1
    @cython.locals(replies=list)
    cdef bint _reply_at_once(self) except -1
    @cython.locals(client=ClientV2)
    cdef _note_answered(self)
    @cython.locals(client=ClientV2, topic=Topic, name=str, failed=list, replies=list, uncommitted=dict)
    cpdef commit_and_reply(self)
    cpdef _serve(self)
    @cython.locals(command=Command)
    cdef _go_on(self)
    cdef bint _receive(self) except -1
    @cython.locals(client=ClientV2, channel=Channel, messages=list, window=cython.longlong, debugging=cython.bint,
                   is_full=cython.bint)
    cpdef messagePump(self)
    @cython.locals(client=ClientV2, channel=Channel, messages=list, window=cython.longlong)
    cpdef bint _deliver(self) except -1
