from gnsqd.queues.queue cimport Queue

cdef class Store:
    cdef public str topic
    cdef public object context, log, write_ahead
    cdef public Queue queue
