cimport cython

from gnsqd.broker.in_flight cimport InFlight
from gnsqd.queues.message cimport Message
from gnsqd.queues.queue cimport Queue

cdef class WaitingConsumers:
    cdef dict _waiting
    cdef set _woken
    cdef bint _ranked

    cpdef Py_ssize_t leave(self, client) except -1
    cpdef join(self, client)
    @cython.locals(first=list)
    cpdef wake(self, Py_ssize_t count)

cdef class Channel:
    cdef public str topic_name, name
    cdef public bint ephemeral, paused, exiting
    cdef public dict clients
    cdef public long long message_count, finish_count, requeue_count, timeout_count, dead_letter_count
    cdef public object latencies, dead_letters
    cdef public Queue queue
    cdef public object limiter, local_counts
    cdef object _environment, _log, _options, _on_last_client, _configured
    cdef InFlight _in_flight
    cdef WaitingConsumers _waiting
    cdef long long _alarm

    cpdef Py_ssize_t available(self) except -1
    cpdef bint has_more(self) except -1
    cpdef put_messages(self, list messages)
    cdef _enqueue(self, list messages)
    @cython.locals(candidates=list, held_back=Py_ssize_t, chosen=list, taken=list, now=cython.longlong, queue=Queue, waiting=WaitingConsumers, promised=Py_ssize_t)
    cpdef list take(self, client, Py_ssize_t window, long long timeout, long long sample_rate)
    @cython.locals(depth=Py_ssize_t, limit=Py_ssize_t, others=Py_ssize_t)
    cdef list _next_messages(self, Py_ssize_t window, Py_ssize_t promised)
    @cython.locals(messages=list)
    cpdef Py_ssize_t finish_run(self, long long client_id, list ids) except -1
    cpdef finish(self, long long client_id, bytes id)
    @cython.locals(message=Message)
    cdef _note_finished(self, list messages)
    cdef _wake_at(self, long long due)
    cpdef process_due(self, long long now)
    cpdef wait(self, client)
    cpdef _wake(self, Py_ssize_t count)
