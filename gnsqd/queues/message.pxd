cimport cython

cdef class Message:
    cdef public bytes frame
    cdef public long long attempts, deferred, number, client_id, delivered_at, deadline

    @cython.locals(message=Message)
    cpdef Message copy(self)
    cpdef bytes next_delivery(self)
    cpdef bytes payload(self)

@cython.locals(message=Message, messages=list, suffix=bytes, body=bytes, head=bytes, size=Py_ssize_t, position=Py_ssize_t)
cpdef list new_messages(bytes prefix, list suffixes, long long timestamp, list bodies, long long deferred=*)
cpdef Message message_from_payload(bytes payload)
