"""Every greenlet is started here, by name, and watched.

One that dies of a defect is logged with its stack and counted. Nobody knows then what it leaves undone, so the daemon
ends, by its clean exit: what it has is written to disk, and whoever started it starts it again. A greenlet that serves
one client ends with that client alone.

What dies elsewhere, such as a callback of the hub or a greenlet that is waited for where it was started, comes to the
hub, and from there here.
"""

from collections import Counter
from collections.abc import Callable
from traceback import format_exc, format_exception
from types import TracebackType
from typing import Any

from gevent import Greenlet, get_hub
from greenlet import greenlet

from gnsqd.log import Logger
from gnsqd.wire.listener import ListenerBroken

Body = Callable[[], None]


class Supervisor:
    """Owns the greenlets that run. `end()` asks for the daemon's exit; `crashes` counts the dead by the kind of
    greenlet, as in `messagePump` for `messagePump:topic`."""

    def __init__(self, log: Logger, end: Callable[[], None]) -> None:
        self.crashes: Counter[str] = Counter()
        self._log = log
        self._end = end
        self._running: set[Greenlet[..., None]] = set()

    def spawn(self, name: str, body: Body) -> "Greenlet[..., None]":
        """Start a greenlet that the daemon cannot do without."""
        return self._start(self.run, name, body)

    def spawn_for_client(self, name: str, body: Body) -> "Greenlet[..., None]":
        """Start a greenlet that serves one client; `body` itself sees to it that the client is gone when it ends."""
        return self._start(self._run_for_client, name, body)

    def _start(self, run: Callable[[str, Body], None], name: str, body: Body) -> "Greenlet[..., None]":
        started = Greenlet(run, name, body)
        started.name = name
        self._running.add(started)
        started.rawlink(self._running.discard)
        started.start()
        return started

    def run(self, name: str, body: Body) -> None:
        """Do what a greenlet of `spawn` would do, at once."""
        try:
            body()
        except ListenerBroken as error:
            self._log.fatal("%s", error)
            self._end()
        except Exception:
            self._died(name, format_exc())

    def _run_for_client(self, name: str, body: Body) -> None:
        try:
            body()
        except Exception:
            self._note(name)
            self._log.error("greenlet %s died\n%s", name, format_exc())

    def _died(self, name: str, stack: str) -> None:
        self._note(name)
        self._log.fatal("greenlet %s died\n%s", name, stack)
        self._end()

    def _note(self, name: str) -> None:
        self.crashes[name.partition(":")[0]] += 1

    def watch(self) -> None:
        """Hear from the hub of everything else that dies."""
        hub: Any = get_hub()
        report = hub.handle_error

        def handle_error(
            context: object, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
        ) -> None:
            # What a function raises in a thread goes to who waits for it, and only by the way to the hub.
            in_thread = isinstance(context, tuple) and isinstance(context[0], greenlet)
            expected = (*hub.NOT_ERROR, *hub.SYSTEM_ERROR)
            if in_thread or issubclass(kind, expected) or not isinstance(error, Exception):
                report(context, kind, error, traceback)
                return
            name = context.name if isinstance(context, Greenlet) else "hub"
            self._died(name, "".join(format_exception(kind, error, traceback)))

        hub.handle_error = handle_error
