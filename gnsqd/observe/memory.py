"""The figures of this process's memory, and of the garbage collector's pauses."""

import gc
import resource
import sys
from collections import deque
from math import floor
from time import perf_counter_ns


class MemoryStats:
    """Owns the record of the garbage collector's pauses, from `start` on.

    The names are those of Go's runtime; what CPython and Linux have that comes closest stands behind them:

        heap_objects          blocks the interpreter's allocator has given out
        heap_in_use_bytes     resident memory that is not shared with files
        heap_idle_bytes       memory reserved for data that is not resident
        heap_released_bytes   how far resident memory is below its peak
        gc_pause_usec_*       of the last 256 collections
        next_gc_bytes         0: collections start by number of objects, not of bytes
        gc_total_runs         collections of all generations
    """

    def __init__(self) -> None:
        self.pause_count = 0  # since `start`
        self.pause_total = 0  # ns
        self._pauses: deque[int] = deque(maxlen=256)
        self._started = 0

    def start(self) -> None:
        gc.callbacks.append(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._started = perf_counter_ns()
        else:
            pause = perf_counter_ns() - self._started
            self._pauses.append(pause)
            self.pause_count += 1
            self.pause_total += pause

    def gc_pause(self, percent: int) -> int:
        """Returns a percentile of the last 256 pauses, in ns; 0 if there were none."""
        ordered = sorted(self._pauses)
        return ordered[min(floor(percent / 100 * len(ordered) + 0.5), len(ordered) - 1)] if ordered else 0

    def resident(self) -> int:
        """Returns the bytes of the process in memory, without files."""
        return _memory_bytes()[1]

    def row(self) -> dict[str, int]:
        """Returns the `memory` object of /stats."""
        data, resident, peak = _memory_bytes()
        return {
            "heap_objects": sys.getallocatedblocks(),
            "heap_idle_bytes": max(data - resident, 0),
            "heap_in_use_bytes": resident,
            "heap_released_bytes": max(peak - resident, 0),
            "gc_pause_usec_100": self.gc_pause(100) // 1000,
            "gc_pause_usec_99": self.gc_pause(99) // 1000,
            "gc_pause_usec_95": self.gc_pause(95) // 1000,
            "next_gc_bytes": 0,
            "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
        }


def _memory_bytes() -> tuple[int, int, int]:
    """Returns bytes reserved for data and stacks, bytes resident without files (proc(5), statm), and the most that ever
    were resident; three times the last where there is no /proc."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    try:
        with open("/proc/self/statm", "rb", buffering=0) as statm:
            _, resident, shared, _, _, data, _ = map(int, statm.read().split())
    except FileNotFoundError:
        return peak, peak, peak
    page = resource.getpagesize()
    return data * page, (resident - shared) * page, peak
