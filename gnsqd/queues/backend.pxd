cdef class Backend:
    cdef public bint keeps, journaled, unsynced
    cdef public long long count
    cdef public Py_ssize_t unsettled

    cpdef put(self, list messages)
    cpdef list read(self, Py_ssize_t limit, Py_ssize_t max_bytes)
    cpdef finish(self, list messages)
    cpdef delivered(self, list given, list messages)
    cpdef wait_synced(self)
