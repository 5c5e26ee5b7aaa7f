"""The single event that a pump waits for.

The doorbell replaces Go's `select` over many channels: each event that concerns a pump rings it, and the pump wakes
once and checks everything. No ring is lost, but the pump may wake without a cause.
"""

from collections.abc import Callable

from gevent import get_hub
from greenlet import getcurrent, greenlet


class Doorbell:
    """One waiting greenlet at most, any number of ringers, all in the same thread."""

    def __init__(self) -> None:
        self._hub = get_hub()
        self._run_callback = self._hub.loop.run_callback  # looked up once
        self._rung = False
        self._waiter: greenlet | None = None
        self._answer: Callable[[], bool] | None = None  # of the waiter

    def ring(self) -> None:
        """Wakes the waiter, or lets its next wait return at once."""
        if not self._rung:
            self._rung = True
            if self._waiter is not None:
                self._run_callback(self._wake)

    def wait(self, timeout: float = -1.0, answer: Callable[[], bool] | None = None) -> None:
        """Waits until the bell was rung, or `timeout` seconds (negative: no limit). Yields unless it was rung.

        A switch to the waiter and back takes longer than most work that a ring causes. So the hub first calls `answer`,
        which must not yield: if it returns True, the waiter goes on waiting."""
        if not self._rung:
            timer = None if timeout < 0 else self._hub.loop.timer(timeout)
            if timer is not None:
                timer.start(self._wake)
            self._waiter = getcurrent()
            self._answer = answer
            try:
                self._hub.switch()
            finally:
                self._waiter = self._answer = None
                if timer is not None:
                    timer.close()
        self._rung = False

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is None:
            return
        if self._answer is not None:
            self._rung = False  # before the call, so that a ring during the call is not lost
            try:
                if self._answer():
                    return
            except Exception as error:
                self._waiter = None
                waiter.throw(error)
                return
        self._waiter = None
        waiter.switch()
