cimport cython

from gnsqd.broker.in_flight cimport InFlight
from gnsqd.net.native cimport monotonic_ns, time_ns
from gnsqd.queues.message cimport Message
from gnsqd.queues.queue cimport Queue

cdef list _NONE

cdef class WaitingConsumers:
    cdef public dict line
    cdef public set woken

    cpdef Py_ssize_t leave(self, client) except -1
    @cython.locals(first=list)
    cpdef wake(self, Py_ssize_t count)

cdef class Channel:
    cdef public str topic_name, name
    cdef public bint ephemeral, paused, exiting, may_refuse
    cdef public dict clients
    cdef public long long idle_since, emptied, readers
    cdef public long long message_count, finish_count, requeue_count, timeout_count
    cdef public object deferred, latencies, dead_messages, limiter, rules, configured_rules
    cdef public object idle_timeout, idle_policy, on_taken
    cdef public Queue queue
    cdef public InFlight in_flight
    cdef object _environment, _options, _on_last_client
    cdef public WaitingConsumers waiting
    cdef long long _alarm

    cdef Py_ssize_t _available(self) except -1
    cpdef put_messages(self, list messages, list deferred=*, bint settle=*)
    @cython.locals(candidates=list, chosen=list, taken=list, now=cython.longlong, queue=Queue, waiting=WaitingConsumers,
                   promised=Py_ssize_t, depth=Py_ssize_t, limit=Py_ssize_t, others=Py_ssize_t)
    cpdef list take(self, client, Py_ssize_t window, long long timeout, long long sample_rate)
    @cython.locals(messages=list)
    cpdef Py_ssize_t finish_run(self, long long client_id, bytes fins) except -1
    @cython.locals(message=Message, now=cython.longlong)
    cdef _note_finished(self, list messages)
    cdef _wake_at(self, long long due)
    @cython.locals(waiting=WaitingConsumers)
    cpdef bint waits(self, client) except -1
    cpdef stop_waiting(self, client)
    cdef _wake(self, Py_ssize_t count)
