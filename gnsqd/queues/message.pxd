cimport cython

from gnsqd.net.native cimport new_frames

cdef long long _EPOCH, _MAX_ATTEMPTS, NODE_ID_BITS, SEQUENCE_BITS

@cython.freelist(1024)  # the memory of finished messages is used for new ones
cdef class Message:
    cdef public bytes frame
    cdef public long long attempts, deferred, number, client_id, delivered_at, deadline

    @cython.locals(message=Message)
    cpdef Message copy(self)
    @cython.locals(attempts=cython.longlong)
    cpdef bytes next_delivery(self)
    cpdef bytes payload(self)

cdef class GuidFactory:
    cdef long long _node_id, _tick, _sequence

    @cython.locals(tick=cython.longlong, first=cython.longlong)
    cpdef long long reserve(self, long long now, Py_ssize_t count) except -1

@cython.locals(message=Message, messages=list, frame=bytes, position=Py_ssize_t)
cpdef list new_messages(long long id, long long timestamp, list bodies, long long deferred=*)
cpdef Message message_from_payload(bytes payload)
