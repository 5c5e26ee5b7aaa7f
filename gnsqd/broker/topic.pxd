cimport cython

from gnsqd.broker.channel cimport Channel
from gnsqd.hub.doorbell cimport Doorbell
from gnsqd.net.native cimport monotonic, time_ns
from gnsqd.queues.message cimport GuidFactory, Message, new_messages
from gnsqd.queues.queue cimport Queue

cdef Py_ssize_t BODY_AT, MAX_BATCH, MAX_PUT, MAX_PUT_BYTES
cdef list _NONE

@cython.locals(body=bytes, size=Py_ssize_t)
cdef bint _is_large(list bodies) except -1

cdef class Topic:
    cdef public str name
    cdef public bint ephemeral, paused, exiting, draining
    cdef public dict channels
    cdef public long long message_count, message_bytes
    cdef public Queue queue
    cdef public object bounds, write_ahead
    cdef object _environment, _log, _on_last_channel, _pump, _store, _turn_end
    cdef list _reports
    cdef GuidFactory _ids
    cdef bint _started
    cdef Doorbell _doorbell

    @cython.locals(now=cython.longlong)
    cpdef list new_messages(self, list bodies, long long deferred=*)
    cpdef bint commits_at_once(self) except -1
    cpdef bint publishes_at_once(self, list bodies) except -1
    cpdef bint puts_surely(self, Py_ssize_t count) except -1
    cpdef commit(self)
    cpdef bint commit_soon(self, report) except -1
    @cython.locals(messages=list, channel=Channel, reports=list)
    cpdef write(self)
    cpdef wait_synced(self)
    @cython.locals(large=cython.bint)
    cpdef publish(self, list bodies, long long deferred=*, bint may_yield=*)
    @cython.locals(first=Py_ssize_t, last=Py_ssize_t, size=Py_ssize_t, part=list)
    cdef _publish_in_parts(self, list bodies, long long deferred)
    cdef bint _flowing(self) except -1
    @cython.locals(queue=Queue, flowing=cython.bint, skips_pump=cython.bint, count=Py_ssize_t, channel=Channel)
    cpdef put_messages(self, list messages)
    @cython.locals(message=Message, size=cython.longlong)
    cdef _count(self, list messages, int sign)
    @cython.locals(message=Message, channel=Channel, ready=list, deferred=list)
    cdef _hand_over(self, list messages)
