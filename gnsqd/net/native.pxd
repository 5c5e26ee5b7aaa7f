cpdef long long time_ns() noexcept
cpdef long long monotonic_ns() noexcept
cpdef double monotonic() noexcept
