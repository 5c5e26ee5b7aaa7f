cpdef long long time_ns() noexcept
cpdef long long monotonic_ns() noexcept
cpdef double monotonic() noexcept
cpdef list new_frames(long long id, long long timestamp, list bodies)
