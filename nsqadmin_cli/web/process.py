"""The page of a daemon, in a process of its own, so that no work for the page takes the interpreter from the daemon.

The daemon listens, and starts the process when somebody connects. The process inherits the listening socket, accepts
and serves, with low priority. The two are connected by a pair of sockets: the daemon sends the settings, and changes of
the log level; the process ends when the daemon has closed its end or is gone. The process also ends when nobody has
looked for some minutes, which gives back its memory, and the next connection starts another one.
"""

import json
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

import gevent.socket
from gevent import getcurrent, sleep

from gnsqd.log import Logger
from gnsqd.net.addresses import split_host_port
from gnsqd.net.listener import Listener
from gnsqd.shared.errors import reason_of
from nsqadmin_cli.web.security import is_loopback_host

if TYPE_CHECKING:
    from subprocess import Popen

_IDLE_SECONDS = 600.0  # without a connection, until the process ends; it stays as long as somebody is logged in
_END_SECONDS = 1.0  # for the end of the process at the daemon's exit
_PAUSES = (1.0, 60.0)  # seconds without a page after the process has failed; doubled each time, up to a maximum
_ANYWHERE = ("", "0.0.0.0", "::")


class PageProcess:
    """Listens when it is made; raises StartError. The page is that of nsqlookupd in this process if it has an address,
    else of this nsqd alone. `listed` is host and port of this nsqd's HTTP as nsqlookupd lists them, without a host that
    of nsqlookupd itself. `token_files` are those of --http-auth-token-file."""

    def __init__(
        self,
        address: str,
        http_address: str,
        listed: tuple[str, int],
        lookupd_http_address: str,
        token_files: Sequence[str],
        log: Logger,
    ) -> None:
        self._listener = Listener(address, tcp_only=True)
        self._log = log
        self._closed = False
        self._greenlet: Any = None
        self._control: socket.socket | None = None
        self._settings: dict[str, Any] = {
            "descriptor": self._listener.fileno(),
            "nsqd": reachable(http_address),
            "listed": listed,
            "nsqlookupd": reachable(lookupd_http_address),
            "token_files": list(token_files),
            "log_prefix": log.prefix,
            "log_format": log.format,
            "idle_seconds": _IDLE_SECONDS,
        }
        log.follow(lambda level: self._send({"log_level": level}))
        warn_unless(bool(token_files), self._listener, log)

    @property
    def url(self) -> str:
        """The page's address for this machine."""
        return url_of(self._listener)

    def serve(self) -> None:
        """Starts the process whenever it is needed, until `stop`. Yields to the hub."""
        self._greenlet = getcurrent()
        self._log.info("ADMIN: listening on %s", self._listener.address)
        pause, longest = _PAUSES
        while not self._closed:
            gevent.socket.wait_read(self._listener.fileno())
            started = monotonic()
            if not (reason := self._run()):
                continue
            if monotonic() - started > longest:
                pause = _PAUSES[0]
            self._log.error("ADMIN: the page's process %s; the next one starts after %g s", reason, pause)
            sleep(pause)
            pause = min(2 * pause, longest)

    def stop(self) -> None:
        """Stops listening, and begins to end the process. Never yields."""
        self._closed = True
        self._listener.close()
        if self._greenlet is not None:
            self._greenlet.kill(block=False)
        self._log.info("ADMIN: closing %s", self._listener.address)

    def join(self) -> None:
        """Waits until the process has ended. Yields to the hub."""
        if self._greenlet is not None:
            self._greenlet.join()

    def _run(self) -> str:
        """Runs one process to its end, and returns how it failed, "" if it did not."""
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        try:
            from subprocess import DEVNULL, Popen  # most daemons have no page; there may be no descriptor left

            self._control, theirs = socket.socketpair()
            with theirs:
                process = Popen(
                    [sys.executable, "-P", "-m", "nsqadmin_cli.web"],
                    stdin=theirs.fileno(),
                    stdout=DEVNULL,
                    pass_fds=[self._listener.fileno()],
                    env={**os.environ, "PYTHONPATH": path},
                    process_group=0,  # Ctrl-C is for the daemon
                )
        except OSError as error:
            self._close_control()
            return f"cannot be started: {reason_of(error)}"
        self._control.setblocking(False)
        try:
            self._log.info("ADMIN: process %d serves the page", process.pid)
            self._send({**self._settings, "log_level": self._log.level})
            gevent.socket.wait_read(self._control.fileno())  # it never sends, but closes its end
        finally:
            self._close_control()
            code = _end(process)
        return f"ended by signal {-code}" if code < 0 else f"ended with code {code}" if code else ""

    def _close_control(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None

    def _send(self, message: dict[str, Any]) -> None:
        if self._control is not None:
            with suppress(OSError):  # it has ended, or is stopped
                self._control.sendall(json.dumps(message).encode() + b"\n")


def _end(process: "Popen[bytes]") -> int:
    """Waits for the end of a process, or kills it, and returns its exit code. Yields to the hub."""
    end = monotonic() + _END_SECONDS
    while (code := process.poll()) is None:
        if monotonic() > end:
            process.kill()
        sleep(0.01)
    return code


def reachable(address: str) -> str:
    """Returns the address of a listener, as this machine can connect to it."""
    try:
        host, port = split_host_port(address)
    except ValueError:  # the path of a unix socket
        return os.path.abspath(address) if address and not address.startswith("@") else address
    return f"127.0.0.1:{port}" if host in _ANYWHERE else address


def url_of(listener: Listener) -> str:
    return f"http://{reachable(listener.address)}"


def is_loopback(listener: Listener) -> bool:
    """Returns True if only this machine can connect."""
    return is_loopback_host(split_host_port(listener.address)[0])


def warn_unless(protected: bool, listener: Listener, log: Logger) -> None:
    """Logs a warning if other machines can connect, and the page is not protected by tokens or read-only."""
    if not (protected or is_loopback(listener)):
        log.warn("ADMIN: everybody who reaches %s can change the cluster", url_of(listener))
