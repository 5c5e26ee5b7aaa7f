from cpython.object cimport PyObject

cpdef long long time_ns() noexcept
cpdef long long monotonic_ns() noexcept
cpdef double monotonic() noexcept
cpdef list new_frames(long long id, long long timestamp, list bodies)

cdef struct Id:
    unsigned long long high  # half of the 16 bytes
    unsigned long long low

cpdef Id id_at(const unsigned char *data, Py_ssize_t at) noexcept

cdef struct Entry:
    Id id
    PyObject *message  # NULL once it is removed

cdef class MessagesById:
    cdef Entry *_entries  # in the order of insertion; those from _first to _end are in use
    cdef int *_slots  # by hash: the number of an entry from 1 on, in this slot or the next that was free; or 0
    cdef Py_ssize_t _room  # for entries; there are twice as many slots, so that most ids have their own
    cdef Py_ssize_t _first
    cdef Py_ssize_t _end
    cdef Py_ssize_t _expected  # the entry that was found last or, if it was removed, the next one
    cdef Py_ssize_t _length

    cdef get(self, Id id)
    cdef pop(self, Id id)
    cdef setdefault(self, Id id, message)
    cdef Entry *_find(self, Id id) noexcept
    cdef Py_ssize_t _hash(self, Id id) noexcept
    cdef void _enter(self, Id id, Py_ssize_t number) noexcept
    cdef _make_room(self, Py_ssize_t room)

cpdef MessagesById new_by_id()
