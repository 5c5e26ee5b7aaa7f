"""Listens on an address such as `--tcp-address`, and accepts clients.

An address is `host:port`, else the path of a unix socket, which HTTPS does not have; an IP address, `localhost` or a
number alone is an error. A socket that a killed daemon left at a path is replaced. No host, and `0.0.0.0`, mean every
interface, IPv6 included, as in Go; of a name's addresses one is used, of IPv4 if there is one. On Linux, an empty path
lets the kernel choose an abstract name. Errors have Go's texts (NSQD-COMPAT section 1.4, row 10).
"""

import errno
import os
import re
import socket
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic
from typing import Any, Protocol

from gevent import Greenlet, get_hub, joinall, sleep

from gnsqd.hub.doorbell import Doorbell
from gnsqd.log import Logger
from gnsqd.net.addresses import HIGHEST_PORT, format_address, split_host_port, unix_name
from gnsqd.shared.errors import NSQError, StartError, reason_of

CLOSE_SECONDS = 1.0  # at exit, for clients to have what is under way
CUT_SECONDS = 0.25  # and to notice that their connections are gone

_BACKLOG = 4096
_KEEPALIVE_SECONDS = 15
_TCP_KEEPIDLE = getattr(socket, "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE")  # of macOS
_ACCEPT_PAUSE_SECONDS = 0.1
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_READ = 1
HINT_SECONDS = 60.0
HTTP_MAGICS = (b"GET ", b"HEAD", b"POST", b"PUT ")  # what a client of HTTP sends in place of a magic


class ListenerBroken(NSQError):
    """The listener cannot accept any more clients; str() is Go's text."""


class Listener:
    """Owns one listening socket and the `greenlets` of its clients. `address` may also be the descriptor of another
    process's socket, from which it only accepts; `port` is -1 for a unix socket. `other` is the daemon's listener
    of the other protocol, if it has one. Raises StartError."""

    def __init__(self, address: str | int, *, tcp_only: bool = False) -> None:
        self._inherited = isinstance(address, int)
        try:
            self._socket = socket.socket(fileno=address) if isinstance(address, int) else _listen(address, tcp_only)
        except StartError as error:
            raise StartError(f"listen ({address}) failed - {error}") from error
        self._socket.setblocking(False)
        self._closed = False
        self.other: Listener | None = None
        self._next_hint = 0.0
        self._readable = get_hub().loop.io(self._socket.fileno(), _READ)
        self._doorbell = Doorbell()
        self.greenlets: set[Greenlet[..., None]] = set()
        self._family = int(self._socket.family)
        if self._family != socket.AF_UNIX:  # accepted sockets inherit these, without four calls of the system for each
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._socket.setsockopt(socket.IPPROTO_TCP, _TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_SECONDS)
        name = self._socket.getsockname()
        self.address = format_address(name)
        self.port = int(name[1]) if isinstance(name, tuple) else -1
        self._path = name if isinstance(name, str) else ""  # of a file

    def serve(
        self, kind: str, log: Logger, spawn: Callable[[socket.socket, str], "Greenlet[..., None]"], limit: int
    ) -> None:
        """Calls `spawn`, which starts a greenlet, in the hub with each client's socket and address, until `close`.
        Closes new sockets while there are `limit` greenlets, 0 for no limit. Raises ListenerBroken if accepting fails
        for good."""
        if not self._inherited:
            log.info("%s: listening on %s", kind, self.address)
        was_full = False
        failure: OSError | None = None

        def accept() -> None:
            """Accepts one client. The loop calls this again for the next, after all other watchers and callbacks."""
            nonlocal failure, was_full
            try:
                # `accept` converts the family and the type to enums, which takes longer than the system call.
                descriptor, peer = self._socket._accept()  # type: ignore[attr-defined]
            except BlockingIOError:  # another process was faster
                return
            except OSError as error:
                failure = error
                self._readable.stop()
                self._doorbell.ring()
                return
            accepted = socket.socket(self._family, socket.SOCK_STREAM, 0, descriptor)
            is_full = 0 < limit <= len(self.greenlets)
            if not is_full:
                if self.port >= 0 and not hasattr(socket, "TCP_KEEPIDLE"):  # macOS: this option is not inherited
                    with suppress(OSError):  # nor can it be set for a client that is gone already
                        accepted.setsockopt(socket.IPPROTO_TCP, _TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
                greenlet = spawn(accepted, format_address(peer))
                self.greenlets.add(greenlet)
                greenlet.rawlink(self.greenlets.discard)
            else:
                accepted.close()
                if not was_full:
                    log.warn("%s: closing new connections, there are as many as may be", kind)
            was_full = is_full

        while not self._closed:
            self._readable.start(accept)
            self._doorbell.wait()  # for an error or `close`
            error, failure = failure, None
            if error is None or error.errno == errno.ECONNABORTED:
                continue
            if error.errno not in _OUT_OF_RESOURCES:
                call = "listener.Accept()" if kind == "TCP" else "http.Serve()"
                where = f"unix {self.address}" if self.port < 0 else f"tcp {self.address}"
                raise ListenerBroken(f"{call} error - accept {where}: accept4: {reason_of(error)}") from error
            log.warn("%s: temporary Accept() failure - %s", kind, error)
            sleep(_ACCEPT_PAUSE_SECONDS)
        if not self._inherited:
            log.info("%s: closing %s", kind, self.address)

    def hint(self, log: Logger, kind: str, client: str, protocol: str) -> None:
        """Warns of a client whose protocol is that of the other listener, once in HINT_SECONDS. Never yields."""
        if self.other is not None and (now := monotonic()) >= self._next_hint:
            self._next_hint = now + HINT_SECONDS
            log.warn("%s: client(%s) uses %s, which is at %s", kind, client, protocol, self.other.address)

    def fileno(self) -> int:
        return int(self._socket.fileno())

    def close(self) -> None:
        """Refuses new clients at once: gevent's socket would accept them until a waiting `accept` has returned."""
        if self._closed:
            return
        self._closed = True
        if not self._inherited:
            if self._path:
                with suppress(OSError):
                    os.unlink(self._path)  # before another daemon can have put its own there
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # also if another process has inherited it
        self._readable.stop()
        self._readable.close()
        self._socket.close()
        self._doorbell.ring()


class Server(Protocol):
    listener: Listener

    def shutdown(self, at_once: bool) -> None:
        """Stops accepting, and ends the connections, unless `at_once` when their clients have had what is under way.
        Never yields."""


def close_servers(servers: Iterable[Server]) -> None:
    """Ends the servers; returns when their clients are gone, at the latest CUT_SECONDS after the last connections have
    ended. Whatever clients have sent, the rest of an exit does not wait for it any longer. Yields."""
    servers = list(servers)
    for at_once, seconds in ((False, CLOSE_SECONDS), (True, CUT_SECONDS)):
        for server in servers:
            server.shutdown(at_once)
        joinall([greenlet for server in servers for greenlet in server.listener.greenlets], seconds)


def _listen(address: str, tcp_only: bool) -> socket.socket:
    try:
        host, port = split_host_port(address)
    except ValueError as error:
        if tcp_only:
            raise StartError(f"listen tcp: address {address}: {error}") from error
        if _lacks_port(address):
            hint = f"(a unix socket of this name would be ./{address})"
            raise StartError(f"listen tcp: address {address}: missing port in address {hint}") from error
        family, bind_address, shown = int(socket.AF_UNIX), unix_name(address), f"unix {address}"
    else:
        family, bind_address, shown = _resolve(host, _port_number(port))
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise StartError(f"listen {shown}: socket: {reason_of(error)}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            listener.bind(bind_address)
        except OSError as error:
            if family != socket.AF_UNIX or error.errno != errno.EADDRINUSE or not is_stale(bind_address):
                raise
            os.unlink(bind_address)
            listener.bind(bind_address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = reason_of(error) if error.errno else "invalid argument"  # a path that Python finds too long
        raise StartError(f"listen {shown}: bind: {reason}") from error
    return listener


def _lacks_port(address: str) -> bool:
    """Returns True if `address` is meant as a host or a port, and not as the path of a unix socket."""
    from ipaddress import ip_address

    with suppress(ValueError):
        ip_address(address.removeprefix("[").removesuffix("]"))
        return True
    return address.lower() == "localhost" or address.isdecimal()


def is_stale(path: bytes) -> bool:
    """Returns True for a unix socket where nobody listens, as a killed daemon leaves it."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        # Any other error: the one who listens has too much to do, or has bound a socket of another type.
        return stat.S_ISSOCK(os.lstat(path).st_mode) and client.connect_ex(path) == errno.ECONNREFUSED
    return False


def _resolve(host: str, port: int) -> tuple[int, Any, str]:
    """Returns family and address to bind, and the text for them in Go's errors."""
    if host and not _is_ipv4(host):
        from ipaddress import IPv6Address  # loads slowly

        try:
            ip = IPv6Address(host)
        except ValueError:
            return _look_up(host, port)
        if ip.ipv4_mapped is None and not ip.is_unspecified:
            unscoped, _, zone = str(ip).partition("%")
            return socket.AF_INET6, (unscoped, port, 0, _zone_index(zone)), f"tcp [{ip}]:{port}"
        host = str(ip.ipv4_mapped or "0.0.0.0")
    shown = f"tcp {host}:{port}"
    if host not in ("", "0.0.0.0"):
        return socket.AF_INET, (host, port), shown
    if socket.has_dualstack_ipv6():
        return socket.AF_INET6, ("::", port), shown
    return socket.AF_INET, ("0.0.0.0", port), shown


def _is_ipv4(host: str) -> bool:
    with suppress(OSError, ValueError):  # ValueError: it has characters that no C string has
        return bool(socket.inet_pton(socket.AF_INET, host))
    return False


def _look_up(host: str, port: int) -> tuple[int, Any, str]:
    try:
        if re.fullmatch(r"[\d.]+|\*", host):
            raise ValueError("the resolver would find loopback, or an address with parts left out")
        candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:  # ValueError: it cannot be a name
        raise StartError(f"listen tcp: lookup {host}: no such host") from error
    family, *_, bind_address = min(candidates, key=lambda candidate: candidate[0] != socket.AF_INET)
    return family, bind_address, f"tcp {format_address(bind_address)}"


def _zone_index(zone: str) -> int:
    try:
        return socket.if_nametoindex(zone)
    except (OSError, ValueError):
        return int(zone) if re.fullmatch("[0-9]{1,7}", zone) else 0


def _port_number(port: str) -> int:
    if match := re.fullmatch(r"([+-]?)0*([0-9]*)", port):
        digits = match[2] or "0"
        if len(digits) > 5 or int(digits) > HIGHEST_PORT or (match[1] == "-" and digits != "0"):
            raise StartError(f"listen tcp: address {port}: invalid port")
        return int(digits)
    try:
        return socket.getservbyname(port.lower(), "tcp")
    except (OSError, ValueError) as error:
        raise StartError(f"listen tcp: lookup tcp/{port}: unknown port") from error
