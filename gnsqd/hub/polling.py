"""Polls for input a little longer before the loop sleeps.

Some ten microseconds pass between an answer and the client's next command, and to sleep and wake up takes as long
again. So while input comes quickly, the loop polls instead of sleeping, for WINDOW at most, and yields the processor
between two polls. The gap between the last two inputs decides; if input comes slowly, the loop sleeps.
"""

import os
from functools import partial
from time import monotonic, sleep
from typing import Any
from weakref import WeakKeyDictionary

from gevent import get_hub
from gevent.hub import Hub

WINDOW = 50e-6  # seconds

_offer_processor: Any = getattr(os, "sched_yield", partial(sleep, 0))  # not every system has it


class Polling:
    """Shared by all connections of a hub. While `looking` is true, the loop does not sleep."""

    __slots__ = ("_idle", "_last", "looking")

    def __init__(self) -> None:
        self._idle: Any = get_hub().loop.idle()  # called as long as there is nothing else to do
        self._last = 0.0
        self.looking = False

    def note(self) -> None:
        """Reports that there was input."""
        now = monotonic()
        if not self.looking and now - self._last < WINDOW:
            self.looking = True
            self._idle.start(self._look)
        self._last = now

    def _look(self) -> None:
        _offer_processor()
        if monotonic() - self._last > WINDOW:
            self.looking = False
            self._idle.stop()


_by_hub: WeakKeyDictionary[Hub, Polling] = WeakKeyDictionary()


def shared_polling() -> Polling:
    """Returns the object of this thread's hub."""
    hub = get_hub()
    polling = _by_hub.get(hub)
    if polling is None:
        polling = _by_hub[hub] = Polling()
    return polling
