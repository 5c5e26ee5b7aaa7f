cimport cython

from gnsqd.broker.backend cimport read_messages, write_messages
from gnsqd.broker.journaled cimport JournaledQueue
from gnsqd.broker.in_flight cimport Deferred, InFlight
from gnsqd.broker.message cimport Message

cdef class Channel:
    cdef public str topic_name
    cdef public str name
    cdef public bint ephemeral
    cdef public dict clients
    cdef public bint paused
    cdef public bint exiting
    cdef public long long message_count
    cdef public long long requeue_count
    cdef public long long timeout_count
    cdef public long long dead_letter_count
    cdef public bint blocked
    cdef public object latencies
    cdef public object backend
    cdef public object bounded
    cdef JournaledQueue _journaled
    cdef object _environment
    cdef object _log
    cdef object _options
    cdef object _on_last_client
    cdef object _on_blocked
    cdef Py_ssize_t _capacity
    cdef object _memory
    cdef InFlight _in_flight
    cdef Deferred _deferred
    cdef long long _max_attempts
    cdef dict _aside
    cdef dict _waiting
    cdef set _woken
    cdef bint _backend_first

    cpdef bint has_room(self, Py_ssize_t count) except -1
    cpdef put_messages(self, list messages)
    cdef _enqueue(self, list messages)
    @cython.locals(candidates=list, chosen=list, taken=list, now=cython.longlong, promised=Py_ssize_t)
    cpdef list take(self, client, Py_ssize_t window, long long timeout, long long sample_rate)
    @cython.locals(message=Message)
    cdef _note_taken(self, list candidates, list taken)
    @cython.locals(message=Message, messages=list, depth=Py_ssize_t, backend_depth=Py_ssize_t, limit=Py_ssize_t, size=Py_ssize_t, position=Py_ssize_t)
    cdef list _next_messages(self, Py_ssize_t window, Py_ssize_t promised)
    @cython.locals(message=Message, messages=list, ready=list)
    cdef list _read_backend(self, Py_ssize_t limit)
    @cython.locals(messages=list)
    cpdef Py_ssize_t finish_run(self, long long client_id, list ids) except -1
    cpdef finish(self, long long client_id, bytes id)
    @cython.locals(message=Message)
    cdef _note_finished(self, list messages)
    cpdef _held_messages(self)
    cpdef _wake_waiting(self, Py_ssize_t count)
