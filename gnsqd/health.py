"""Tracks whether the disk can be written to, and reports to the service manager: that the daemon serves, its status,
that it still works, that it exits.

/ping reports the last failure of the disk, and a probe detects when it is over. Publishers avoid a daemon that is not
healthy, so without the probe nothing might be written again.

The protocol of the service manager is that of sd_notify(3): lines of `NAME=value` in a datagram to the unix socket in
$NOTIFY_SOCKET, an abstract one if the path begins with `@`. Without that variable nothing is sent. With $WATCHDOG_USEC
a greenlet feeds the watchdog (sd_watchdog_enabled(3)), which proves that greenlets still run.
"""

import os
from collections.abc import Callable
from contextlib import suppress

from gevent import sleep
from gevent.event import Event

from gnsqd.broker.drain import Drain
from gnsqd.broker.registry import Registry
from gnsqd.hub.doorbell import Doorbell
from gnsqd.log import Logger
from gnsqd.net.addresses import unix_name
from gnsqd.shared.errors import StorageError
from gnsqd.storage.files import temporary_path, try_write
from gnsqd.storage.syncer import Syncer

PROBE_SECONDS = 1.0
PROBE_SIZE = 1 << 20  # bytes at most
STATUS_SECONDS = 5.0
SEND_SECONDS = 5.0


class DiskHealth:
    """Owns the probe, a file beside `path` that takes a message of the largest size, or 1 MiB of it."""

    def __init__(self, registry: Registry, max_msg_size: int, path: str, syncer: Syncer, log: Logger) -> None:
        self._registry = registry
        self._data = bytes(min(max(max_msg_size, 0), PROBE_SIZE))
        self._path = temporary_path(path)
        self._syncer = syncer
        self._log = log
        self._bell = Doorbell()
        self._stopped = Event()
        self.is_store_away: Callable[[], bool] = lambda: False  # and publishers wait for it

    def note(self, error: Exception | None) -> None:
        """Reports the result of a disk write: its error, or None."""
        self._registry.error = error
        if error is not None:
            self._bell.ring()

    def loop(self) -> None:
        """Probes the disk after each failed write, until a probe succeeds; returns after `stop`."""
        while not self._stopped.wait(PROBE_SECONDS):
            error = self._registry.error
            if error is None:
                self._bell.wait()
                continue
            with suppress(StorageError):
                self._syncer.run(try_write, self._path, self._data)
                if self._registry.error is error and not self.is_store_away():
                    self._log.info("NSQ: the disk can be written to again")
                    self._registry.error = None

    def stop(self) -> None:
        self._stopped.set()
        self._bell.ring()


class ServiceManager:
    """Owns the status that was sent last."""

    def __init__(self, registry: Registry, drain: Drain, log: Logger) -> None:
        self._registry = registry
        self._drain = drain
        self._log = log
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        self._sent = ""
        self._exiting = False

    def ready(self) -> None:
        self._sent = self._status()
        self._send("READY=1", f"STATUS={self._sent}")

    def stopping(self) -> None:
        """Reports that the exit has begun. From here on the manager requires only that the exit ends in time."""
        self._exiting = True
        self._send("STOPPING=1", "STATUS=writing to disk what is left")

    def report_loop(self) -> None:
        """Feeds the watchdog twice as often as it requires, and reports the status when it changes."""
        timeout = 0.0  # of the watchdog
        usec = os.environ.get("WATCHDOG_USEC", "")
        if usec.isdecimal() and os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
            timeout = int(usec) / 1e6
        while self._address:
            sleep(min(STATUS_SECONDS, timeout / 2) if timeout else STATUS_SECONDS)
            if self._exiting:
                return
            lines = ["WATCHDOG=1"] if timeout else []
            if (status := self._status()) != self._sent:
                self._sent = status
                lines.append(f"STATUS={status}")
            if lines:
                self._send(*lines)

    def _status(self) -> str:
        """Returns the daemon's state, for people. May yield."""
        return f"draining, {self._drain.state()['messages']} messages left" if self._registry.draining else "serving"

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        import gevent.socket  # late, as only a service manager needs it

        try:
            if not self._address.startswith(("/", "@")):  # such as a hypervisor's vsock
                raise OSError("not the address of a unix socket")
            with gevent.socket.socket(gevent.socket.AF_UNIX, gevent.socket.SOCK_DGRAM) as sock:
                sock.settimeout(SEND_SECONDS)
                sock.connect(unix_name(self._address))
                sock.send("\n".join(lines).encode())
        except OSError as error:
            self._log.warn("SYSTEMD: failed to send %s to %s - %s", lines[0], self._address, error)
