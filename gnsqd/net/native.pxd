cpdef long long time_ns() noexcept
cpdef long long monotonic_ns() noexcept
cpdef double monotonic() noexcept
cpdef Py_ssize_t find_line_end(bytes data, Py_ssize_t start) noexcept
cpdef list new_frames(long long id, long long timestamp, list bodies)
