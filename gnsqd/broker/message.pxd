cdef class Message:
    cdef public bytes id
    cdef public bytes frame
    cdef public long long attempts
    cdef public long long deferred
    cdef public long long client_id
    cdef public long long delivered_at
    cdef public long long deadline

    cpdef Message copy(self)
    cpdef Py_ssize_t body_size(self)
    cpdef bytes next_delivery(self)
    cpdef bytes payload(self)

cpdef Message new_message(bytes id, long long timestamp, bytes body, long long deferred=*)
cpdef Message message_from_payload(bytes payload)
