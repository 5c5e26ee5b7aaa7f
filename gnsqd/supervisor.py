"""Starts every greenlet, by name, and watches it.

A greenlet that dies of a defect is logged with its stack and counted. Its work is then unfinished, so the daemon ends
by its clean exit. The death of a greenlet that serves one client ends only that client.

The hub reports all deaths, also of its own callbacks and of greenlets that others started. So there is no frame beneath
a greenlet's own, which would take memory for each of a thousand idle clients.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from traceback import format_exception
from types import TracebackType
from typing import Any

from gevent import Greenlet, get_hub
from gevent.event import Event
from greenlet import greenlet

from gnsqd.log import Logger
from gnsqd.net.listener import ListenerBroken
from gnsqd.shared.version import lane

_BUSY = 0.5  # of a core


class Supervisor:
    """Owns the greenlets that run. `end()` requests the daemon's exit; `crashes` counts the dead by the kind of
    greenlet, as in `messagePump` for `messagePump:topic`."""

    def __init__(self, log: Logger, end: Callable[[], None]) -> None:
        self.crashes: Counter[str] = Counter()
        self._log = log
        self._end = end
        self._running: set[Greenlet[..., None]] = set()

    def spawn(self, name: str, body: Callable[[], None]) -> "Greenlet[..., None]":
        """Starts a greenlet that the daemon cannot do without."""
        started = _start(Greenlet(body), name)
        self._running.add(started)
        started.rawlink(self._running.discard)
        return started

    def spawn_for_client(self, name: str, body: Callable[[], None]) -> "Greenlet[..., None]":
        """Starts a greenlet that serves one client; `body` itself ensures that the client is gone when it ends."""
        return _start(_ForClient(body), name)

    def run(self, name: str, body: Callable[[], None]) -> None:
        """Calls `body` here, with the error handling of a greenlet of `spawn`."""
        try:
            body()
        except Exception as error:
            self._died(name, error)

    def _died(self, name: str, error: Exception, for_client: bool = False) -> None:
        if isinstance(error, ListenerBroken):
            self._log.fatal("%s", error)
        else:
            self.crashes[name.partition(":")[0]] += 1
            log = self._log.error if for_client else self._log.fatal
            log("greenlet %s died", name, stack="".join(format_exception(error)))
        if not for_client:
            self._end()

    def watch(self) -> None:
        """Registers with the hub for errors of greenlets."""
        hub: Any = get_hub()
        report = hub.handle_error

        def handle_error(
            context: object, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
        ) -> None:
            # An error in a thread is raised where its result is waited for; the hub only gets a copy.
            in_thread = isinstance(context, tuple) and isinstance(context[0], greenlet)
            if in_thread or not isinstance(error, Exception):
                report(context, kind, error, traceback)
            else:
                name = context.name if isinstance(context, Greenlet) else "hub"
                self._died(name, error, isinstance(context, _ForClient))

        hub.handle_error = handle_error


class DaemonProcess(ABC):
    """The only one of a process: `start`, then `wait`, then `exit`. Owns the supervisor of its greenlets."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._exit_code = 0
        self._exit_requested = Event()
        self._is_plain = lane() == "plain"
        self._supervisor = Supervisor(log, lambda: self.request_exit(1))

    @abstractmethod
    def start(self) -> None:
        """Starts everything; raises StartError."""

    def request_exit(self, code: int) -> None:
        """Requests the clean exit; the first code other than 0 stays."""
        self._exit_code = self._exit_code or code
        self._exit_requested.set()

    def terminate(self) -> None:
        """Handles SIGTERM."""
        self.request_exit(0)

    def wait(self, timeout: float) -> bool:
        """Returns when the exit is requested, or after `timeout` seconds; True if it is requested."""
        return bool(self._exit_requested.wait(timeout))

    def note_use(self, share: float) -> None:
        """Logs once, if `share` of a core was in use and no module is compiled, how to have them compiled."""
        if self._is_plain and share > _BUSY:
            self._is_plain = False
            self._log.info(
                "NSQ: busy, and nothing is compiled: a compiled wheel, or GNSQD_COMPILE=1 at `pip install`, needs half "
                "of the CPU time or less"
            )

    @abstractmethod
    def exit(self) -> int:
        """Stops everything, and returns the exit code."""


class _ForClient(Greenlet):  # type: ignore[misc]  # gevent has no types at run time
    """Serves one client."""


def _start(started: "Greenlet[..., None]", name: str) -> "Greenlet[..., None]":
    started.name = name
    started.start()
    return started
