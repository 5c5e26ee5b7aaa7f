cimport cython

from gnsqd.broker.channel cimport Channel
from gnsqd.hub.doorbell cimport Doorbell
from gnsqd.queues.message cimport Message
from gnsqd.net.connection cimport Connection
from gnsqd.net.native cimport monotonic

cdef double _NS
cdef Py_ssize_t _AT_ONCE

cdef class PubCount:
    cdef public long long count

cdef class ClientV2:
    cdef public long long id, heartbeat_interval, output_buffer_timeout, sample_rate, msg_timeout, ready_count
    cdef public long long in_flight_count, message_count, finish_count, requeue_count, delivery_msg_timeout
    cdef public long long delivery_sample_rate
    cdef public Connection connection
    cdef public str remote_address
    cdef public int state, locality, rank
    cdef public bint exiting, deflate, snappy, identified, heartbeat_due
    cdef public object connect_time, remote_ip, client_id, hostname, user_agent, tls, auth_state, topology_region, topology_zone
    cdef public Py_ssize_t output_buffer_size
    cdef public bytes auth_secret
    cdef public Channel channel, delivering
    cdef public dict counters
    cdef object _heartbeat_timer
    cdef readonly object flush_timer
    cdef double _flush_interval, _next_flush
    cdef public Doorbell doorbell
    cdef list _output
    cdef Py_ssize_t _output_size

    cpdef long long window(self) except? -1
    @cython.locals(seconds=double)
    cpdef set_deadlines(self)
    cpdef set_ready_count(self, long long count)
    cpdef left_flight(self, long long count)
    @cython.locals(message=Message, output=list, delivery=bytes, size=Py_ssize_t)
    cpdef bint buffer_messages(self, list messages) except -1
    @cython.locals(late=double)
    cpdef wait_or_flush(self, deliver, double timeout=*)
    @cython.locals(output=list)
    cpdef flush(self, frames=*)
    @cython.locals(output=list)
    cpdef bint flush_at_once(self, list frames) except -1
