cimport cython

from gnsqd.broker.backend cimport read_messages, write_messages
from gnsqd.broker.channel cimport Channel
from gnsqd.hub.doorbell cimport Doorbell
from gnsqd.broker.guid cimport GuidFactory
from gnsqd.broker.journaled cimport JournaledQueue
from gnsqd.broker.message cimport Message, new_messages

cdef Py_ssize_t BODY_AT

cdef class Topic:
    cdef public str name
    cdef public bint ephemeral
    cdef public dict channels
    cdef public bint paused
    cdef public bint exiting
    cdef public bint draining
    cdef public long long message_count
    cdef public long long message_bytes
    cdef public object backend
    cdef public object bounded
    cdef public object bounds
    cdef object _environment
    cdef object _log
    cdef GuidFactory _ids
    cdef object _on_last_channel
    cdef Py_ssize_t _capacity
    cdef long long _max_delay
    cdef object _memory
    cdef bint _backend_first
    cdef bint _started
    cdef Doorbell _doorbell
    cdef object _pump
    cdef object _journal
    cdef JournaledQueue _journaled

    @cython.locals(now=cython.longlong)
    cpdef list new_messages(self, list bodies, long long deferred=*)
    @cython.locals(first=Py_ssize_t)
    cpdef publish(self, list bodies, long long deferred=*)
    @cython.locals(channel=Channel)
    cdef bint _nothing_before(self, Py_ssize_t count) except -1
    cdef bint _flowing(self) except -1
    cpdef bint _pump_batch(self) except -1
    @cython.locals(room=Py_ssize_t, message=Message, size=cython.longlong)
    cpdef put_messages(self, list messages)
    @cython.locals(message=Message, channel=Channel, deferred=list)
    cdef _hand_over(self, list messages, bint from_disk=*)
