"""Looks up addresses and connects to them as Go does, within a time limit. It is a module of its own because it
loads gevent.socket, which few daemons need."""

import socket
from typing import Any

import gevent.socket
from gevent import Timeout

from gnsqd.hub.cooperative import yield_turn
from gnsqd.net.addresses import HIGHEST_PORT, join_host_port, reason, split_host_port


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
