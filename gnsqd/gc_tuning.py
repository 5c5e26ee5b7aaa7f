"""When Python looks for the garbage that reference counts do not free: objects that refer to each other in a circle.

Nothing else runs meanwhile, and it takes time for every object that could be in a circle. Without compiled modules each
message is one, and looking through all of them, as Python by itself does again and again while a backlog grows, would
stop the daemon for hundreds of milliseconds. So what start-up made is left out for good; of what is made later only the
young is looked through by itself, where nearly all garbage is; and the rest is looked through once a minute as long as
that is quick, else once an hour.
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


def settle() -> None:
    """The daemon has started: leave what it is made of out of all further collections."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _NEVER, _NEVER)


def collect() -> None:
    """Free as much as is quick; everything once an hour."""
    global _last_full
    full = sys.getallocatedblocks() < _QUICK or monotonic() - _last_full > _PATIENCE_SECONDS
    gc.collect(2 if full else 0)
    if full:
        _last_full = monotonic()
