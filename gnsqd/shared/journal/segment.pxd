cimport cython

from gnsqd.shared.journal.records cimport PutBatch

cdef class Segment:
    cdef public str path
    cdef public long long salt, first, end, size, count, body_size, newest, latest_due
    cdef public object due, _descriptor, _gaps, _numbers, _offsets
    cdef bytes _mark

    @cython.locals(number=cython.longlong)
    cpdef note_put(self, long long first, long long count, long long offset, long long due)
    @cython.locals(first=cython.longlong, count=cython.longlong, position=cython.longlong, due=cython.longlong)
    cpdef note_batch(self, PutBatch batch, long long offset, long long size)
