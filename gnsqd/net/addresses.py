"""Formats, parses and looks up addresses of sockets as Go does, and connects to them within a time limit."""

import os
import socket
import sys
from typing import Any

import gevent.socket
from gevent import Timeout

from gnsqd.hub.cooperative import yield_turn
from gnsqd.shared.errors import reason_of

HIGHEST_PORT = 65535


def split_host_port(address: str) -> tuple[str, str]:
    """Returns (host, port) of `host:port` or `[v6]:port`; raises ValueError with Go's text."""
    host, colon, port = address.rpartition(":")
    if not colon:
        raise ValueError("missing port in address")
    may_not_open = may_not_close = address
    if address.startswith("["):
        host, bracket, behind = address[1:].partition("]")
        if not bracket:
            raise ValueError("missing ']' in address")
        if behind != f":{port}":
            raise ValueError("too many colons in address" if behind.startswith(":") else "missing port in address")
        may_not_open, may_not_close = address[1:], behind
    elif ":" in host:
        raise ValueError("too many colons in address")
    if "[" in may_not_open:
        raise ValueError("unexpected '[' in address")
    if "]" in may_not_close:
        raise ValueError("unexpected ']' in address")
    return host, port


def join_host_port(host: str, port: int | str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def format_address(address: Any) -> str:
    """Formats a socket address as Go does: `127.0.0.1:4150`, `[::1]:4150`, `[fe80::1%eth0]:4150`; the path of a unix
    socket, `@name` of an abstract one, `@` of an unnamed one."""
    if isinstance(address, bytes):
        return f"@{os.fsdecode(address[1:])}"
    if not isinstance(address, tuple):
        return str(address or "@")
    host, port, *rest = address
    if "." in host:
        host = host.removeprefix("::ffff:")
    if ":" not in host:
        return f"{host}:{port}"
    zone = ""
    if rest[1]:
        try:
            zone = f"%{socket.if_indextoname(rest[1])}"
        except OSError:
            zone = f"%{rest[1]}"
    return f"[{host}{zone}]:{port}"


def unix_name(path: str) -> bytes:
    """Returns the name that bind(2) and connect(2) take for a unix socket's path; on Linux, `@name` is abstract."""
    name = os.fsencode(path)
    return b"\0" + name[1:] if name.startswith(b"@") and sys.platform == "linux" else name


def is_name(address: str) -> bool:
    """True if the host of `host:port` is not a number, so that it has to be looked up. Never yields."""
    try:
        socket.getaddrinfo(split_host_port(address)[0], None, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return True
    except ValueError:  # it is not an address
        pass
    return False


def look_up(host: str, port: str, timeout: float | None) -> list[Any]:
    """Returns all addresses of a host as getaddrinfo(3) does, the best first, within `timeout` seconds. Raises OSError,
    or ValueError if that is not a host or a port. Yields, unless the host is a number."""
    if port.isdecimal() and int(port) > HIGHEST_PORT:
        raise ValueError("invalid port")
    host = host or "localhost"
    try:
        # A number is not sent to the threads that ask for names: they may all be waiting for a dead name server.
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        with Timeout(timeout, TimeoutError("i/o timeout")):
            return list(gevent.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))


class Socket(gevent.socket.socket):  # type: ignore[misc]
    """Yields at every receive, unlike gevent's own: a peer that sends endlessly would block the daemon."""

    def recv(self, *args: Any) -> bytes:
        yield_turn()
        data: bytes = super().recv(*args)
        return data

    def recv_into(self, *args: Any) -> int:
        yield_turn()
        size: int = super().recv_into(*args)
        return size


def reason(error: Exception) -> str:
    """Returns the reason, in lower case like Go's."""
    if isinstance(error, TimeoutError):
        return "i/o timeout"
    return reason_of(error) or type(error).__name__


def dial(host: str, port: str, timeout: float | None) -> Socket:
    """Returns a connected socket without a timeout; raises OSError in Go's words. `timeout` seconds, None for no limit,
    bound the look-up of the name, and then the connecting: each of several addresses has its share. Yields."""
    where = f"dial tcp {join_host_port(host, port)}"
    try:
        addresses = look_up(host, port, timeout)
    except (OSError, ValueError) as error:
        raise OSError(f"{where}: {reason(error)}") from error
    failure = OSError("no address")
    for family, kind, protocol, _, address in addresses:
        try:
            return _connect(Socket(family, kind, protocol), address, timeout and timeout / len(addresses))
        except OSError as error:
            failure = error
    connecting = "" if isinstance(failure, TimeoutError) else "connect: "
    raise OSError(f"{where}: {connecting}{reason(failure)}") from failure


def dial_address(address: str, timeout: float | None) -> Socket:
    """Connects to `host:port` or `[v6]:port`, as `dial`."""
    try:
        host, port = split_host_port(address)
    except ValueError as error:
        raise OSError(f"dial tcp: address {address}: {error}") from error
    return dial(host, port, timeout)


def _connect(sock: Socket, address: Any, timeout: float | None) -> Socket:
    try:
        sock.settimeout(timeout)
        sock.connect(address)
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return sock
