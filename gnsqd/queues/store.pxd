from gnsqd.queues.queue cimport Queue

cdef class Store:
    cdef public str topic
    cdef public object context, log
    cdef public Queue queue

    cpdef append(self, list messages)
    cpdef commit(self)
