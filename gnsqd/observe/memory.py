"""The memory of this process: its figures, and when Python collects garbage that reference counts do not free.

That is objects which form reference cycles. A collection stops all else, and takes time for every object that could be
in a cycle. Without compiled modules each message is one, and a full collection, which Python starts often while a
backlog grows, would stop the daemon for hundreds of milliseconds. So objects from the start are excluded for good, and
Python collects only young objects of later ones, which nearly all garbage is; a full collection runs once a minute if
it is quick, else once an hour.
"""

import gc
import resource
import sys
from collections import deque
from math import floor
from time import monotonic, perf_counter_ns

COLLECT_SECONDS = 60.0

_YOUNG = 20_000  # objects, a millisecond or two
_NEVER = 1_000_000_000
_QUICK = 300_000  # blocks of memory, half of them from the start; with more, a full collection takes over 10 ms
_PATIENCE_SECONDS = 3600.0

_last_full = monotonic()


def freeze() -> None:
    """Excludes all objects of the started daemon from further collections."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _NEVER, _NEVER)


def collect() -> None:
    """Runs a full collection if it is quick or an hour has passed, else one of young objects."""
    global _last_full
    full = sys.getallocatedblocks() < _QUICK or monotonic() - _last_full > _PATIENCE_SECONDS
    gc.collect(2 if full else 0)
    if full:
        _last_full = monotonic()


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
