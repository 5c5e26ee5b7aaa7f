"""Reports to the service manager: that the daemon serves, its status, that it still works, that it exits.

The protocol is that of sd_notify(3): lines of `NAME=value` in a datagram to the unix socket in $NOTIFY_SOCKET, an
abstract one if the path begins with `@`. Without that variable nothing is sent. With $WATCHDOG_USEC a greenlet feeds
the watchdog (sd_watchdog_enabled(3)), which proves that greenlets still run.
"""

import os

import gevent.socket
from gevent import sleep

from gnsqd.broker.drain import Drain
from gnsqd.broker.registry import Registry
from gnsqd.log import Logger
from gnsqd.net.addresses import unix_name

STATUS_SECONDS = 5.0
SEND_SECONDS = 5.0


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
        timeout = _watchdog_seconds()
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
        try:
            if not self._address.startswith(("/", "@")):  # such as a hypervisor's vsock
                raise OSError("not the address of a unix socket")
            with gevent.socket.socket(gevent.socket.AF_UNIX, gevent.socket.SOCK_DGRAM) as sock:
                sock.settimeout(SEND_SECONDS)
                sock.connect(unix_name(self._address))
                sock.send("\n".join(lines).encode())
        except OSError as error:
            self._log.warn("SYSTEMD: failed to send %s to %s - %s", lines[0], self._address, error)


def _watchdog_seconds() -> float:
    """Returns how long the manager waits for a sign of life of this process; 0 if it does not."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    usec = os.environ.get("WATCHDOG_USEC", "")
    return int(usec) / 1e6 if usec.isdecimal() else 0.0
