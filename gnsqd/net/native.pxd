from cpython.object cimport PyObject

cpdef long long time_ns() noexcept
cpdef long long monotonic_ns() noexcept
cpdef double monotonic() noexcept
cpdef list new_frames(long long id, long long timestamp, list bodies)

cdef struct Entry:
    unsigned long long high  # half of the id
    unsigned long long low
    PyObject *message  # NULL once it is removed

cdef class MessagesById:
    cdef Entry *_entries  # in the order of insertion; those from _first to _end are in use
    cdef int *_slots  # by hash: the number of an entry from 1 on, in this slot or the next that was free; or 0
    cdef Py_ssize_t _room  # for entries; there are twice as many slots, so that most ids have their own
    cdef Py_ssize_t _first
    cdef Py_ssize_t _end
    cdef Py_ssize_t _length

    cpdef get(self, bytes id)
    cpdef pop(self, bytes id)
    cpdef setdefault(self, bytes id, message)
    cdef Entry *_find(self, bytes id) noexcept
    cdef Py_ssize_t _hash(self, Entry *entry) noexcept
    cdef void _enter(self, Entry *entry, Py_ssize_t number) noexcept
    cdef _make_room(self, Py_ssize_t room)

cpdef MessagesById new_by_id()
