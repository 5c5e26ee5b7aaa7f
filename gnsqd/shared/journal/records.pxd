cimport cython

cdef class Encoder:
    cdef public object salt
    cdef bytes _mark

    @cython.locals(payload=bytes)
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
    cpdef put(self, long long first, frames, long long due)
    cpdef close_record(self)
    @cython.locals(head=bytes, payload=bytes)
    cdef _add(self, long long first, frames, long long due)

@cython.locals(data="const unsigned char *", begin=Py_ssize_t, end=Py_ssize_t, size=Py_ssize_t, frames=list)
cpdef list split_frames(bytes payload, Py_ssize_t position, Py_ssize_t skip)
