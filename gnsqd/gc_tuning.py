"""Decides when Python collects garbage that reference counts do not free: objects that form reference cycles.

A collection stops all else, and takes time for every object that could be in a cycle. Without compiled modules each
message is one, and a full collection, which Python starts often while a backlog grows, would stop the daemon for
hundreds of milliseconds. So objects from the start are excluded for good, and Python collects only young objects of
later ones, which nearly all garbage is; a full collection runs once a minute if it is quick, else once an hour.
"""

import gc
import sys
from time import monotonic

INTERVAL_SECONDS = 60.0

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
