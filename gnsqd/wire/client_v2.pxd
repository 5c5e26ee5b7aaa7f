cimport cython

from gnsqd.broker.channel cimport Channel
from gnsqd.hub.doorbell cimport Doorbell
from gnsqd.queues.message cimport Message
from gnsqd.broker.topic cimport Topic
from gnsqd.wire.codec cimport Decoder
from gnsqd.net.connection cimport Connection

cdef class ClientV2:
    cdef public long long id
    cdef public Connection connection
    cdef public str remote_address
    cdef public Decoder decoder
    cdef public int state
    cdef public bint exiting
    cdef public object connect_time
    cdef public object remote_ip
    cdef public object client_id
    cdef public object hostname
    cdef public object user_agent
    cdef public long long heartbeat_interval
    cdef public Py_ssize_t output_buffer_size
    cdef public long long output_buffer_timeout
    cdef public long long sample_rate
    cdef public long long msg_timeout
    cdef public object tls
    cdef public bint deflate
    cdef public bint snappy
    cdef public bytes auth_secret
    cdef public object auth_state
    cdef public Channel channel
    cdef public long long ready_count
    cdef public long long in_flight_count
    cdef public long long message_count
    cdef public long long finish_count
    cdef public long long requeue_count
    cdef public dict pub_counts
    cdef public dict uncommitted
    cdef public str last_topic_name
    cdef public bytes last_topic_word
    cdef public bint identified
    cdef public Channel delivers_from
    cdef public long long delivery_msg_timeout
    cdef public long long delivery_sample_rate
    cdef public bint heartbeat_due
    cdef object _heartbeat_timer
    cdef double _flush_interval
    cdef double _next_flush
    cdef public Doorbell doorbell
    cdef list _replies
    cdef list _output
    cdef Py_ssize_t _output_size

    cpdef long long window(self) except? -1
    cpdef set_deadlines(self)
    cpdef set_ready_count(self, long long count)
    cpdef finished_messages(self, long long count)
    cpdef requeued_message(self)
    cpdef timed_out_message(self)
    cdef _left_flight(self, long long count)
    cpdef wake(self)
    cpdef published(self, Topic topic, Py_ssize_t count)
    cpdef reply(self, bytes frame)
    cpdef send_replies(self)
    @cython.locals(message=Message, frames=list)
    cpdef send_messages(self, list messages)
    cpdef flush(self)
