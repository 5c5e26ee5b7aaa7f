cimport cython

cdef class Encoder:
    cdef public long long salt
    cdef bytes _mark

    @cython.locals(start=cython.longlong, end=cython.longlong)
    cpdef bytes spans(self, int type, long long queue, list spans)
    @cython.locals(head=bytes)
    cpdef bytes record(self, int type, bytes payload=*)
    @cython.locals(payload=bytes)
    cpdef tuple put(self, long long first, frames, long long due)

cdef class PutBatch:
    cdef public list lasts, puts, marks
    cdef public Py_ssize_t puts_size
    cdef Encoder _encoder
    cdef list _frames
    cdef long long _frames_first
    cdef Py_ssize_t _frames_size

    @cython.locals(frame=bytes, size=Py_ssize_t, full=cython.bint)
    cpdef long long put(self, long long first, list frames, long long due) except -1
    cpdef close_record(self)
    @cython.locals(head=bytes, payload=bytes)
    cdef _add(self, long long first, list frames, long long due)

@cython.locals(data="const unsigned char *", begin=Py_ssize_t, end=Py_ssize_t, size=Py_ssize_t, frames=list)
cpdef list split_frames(bytes payload, Py_ssize_t position, Py_ssize_t skip)
