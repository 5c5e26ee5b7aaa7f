"""What compiled modules do without Python in between: the clocks, whose functions stand in for those of `time`."""

from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec


cpdef long long time_ns() noexcept:
    return _nanoseconds(CLOCK_REALTIME)


cpdef long long monotonic_ns() noexcept:
    return _nanoseconds(CLOCK_MONOTONIC)


cpdef double monotonic() noexcept:
    return _nanoseconds(CLOCK_MONOTONIC) * 1e-9


cdef inline long long _nanoseconds(int clock) noexcept:
    cdef timespec now
    clock_gettime(clock, &now)
    return <long long>now.tv_sec * 1_000_000_000 + now.tv_nsec
