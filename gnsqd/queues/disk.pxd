cimport cython

from gnsqd.net.native cimport time_ns
from gnsqd.queues.backend cimport Backend
from gnsqd.queues.message cimport Message, message_from_payload

cdef class DiskBackend(Backend):
    cdef public object disk_queue
    cdef object _log, _set_health
    cdef bint _temporary
    cdef long long _longest

    cdef _changed(self)
    cpdef put(self, list messages)
    @cython.locals(payloads=list)
    cpdef list read(self, Py_ssize_t limit, Py_ssize_t max_bytes)
    cpdef finish(self, list messages)
    cpdef wait_synced(self)

@cython.locals(message=Message)
cpdef write_messages(list messages, disk_queue)
@cython.locals(message=Message, now=cython.longlong)
cpdef list read_messages(list payloads, disk_queue, longest)
