"""Addresses: what `--tcp-address` and its like may be, listening on them, and how they are shown.

An address is `host:port`, else the path of a unix socket, which HTTPS does not have. No host, and `0.0.0.0`, mean every
interface, IPv6 included, as in Go. Errors have Go's words (NSQD-COMPAT section 1.4, row 10).
"""

import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gevent.socket
from gevent import sleep

from gnsqd.broker.doorbell import give_way
from gnsqd.errors import NSQError, StartError
from gnsqd.log import Logger

_BACKLOG = 4096
_MAPPED = "::ffff:"
_KEEPALIVE_SECONDS = 15
_ACCEPT_PAUSE_SECONDS = 0.1
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def split_host_port(address: str) -> tuple[str, str] | None:
    """(host, port) of `host:port` or `[v6]:port`; None if it isn't one, hence a path."""
    host, colon, port = address.rpartition(":")
    if not colon:
        return None
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], port
    if ":" in host or "[" in host or "]" in host:
        return None
    return host, port


def _what_is_wrong(address: str) -> str:
    """Why `address` is no `host:port`, in Go's words."""
    host, colon, _ = address.rpartition(":")
    if address.startswith("["):
        _, bracket, rest = address.partition("]")
        if colon and not bracket:
            return "missing ']' in address"
        if rest.startswith(":"):
            return "too many colons in address"
    elif ":" in host:
        return "too many colons in address"
    elif "[" in host:
        return "unexpected '[' in address"
    elif "]" in host:
        return "unexpected ']' in address"
    return "missing port in address"


class ListenerBroken(NSQError):
    """Nobody can be accepted any more; str() has Go's words."""


class Listener:
    """Owns one listening socket; StartError if it can't listen on `address`.

    `port` is -1 for a unix socket.
    """

    def __init__(self, address: str, *, tcp_only: bool = False) -> None:
        host_port = split_host_port(address)
        try:
            if host_port is None and tcp_only:
                raise StartError(f"listen tcp: address {address}: {_what_is_wrong(address)}")
            self._socket = _listen_unix(address) if host_port is None else _listen_tcp(address, *host_port)
        except StartError as error:
            raise StartError(f"listen ({address}) failed - {error}") from error
        self._unix_path = address if host_port is None else ""
        self._closed = False
        name = self._socket.getsockname()
        self.address = format_address(name)
        self.port = -1 if host_port is None else int(name[1])

    def serve(self, kind: str, log: Logger, handle: Callable[[socket.socket, str], None]) -> None:
        """Hand each client's socket and address to `handle`, until `close`. ListenerBroken if there can be no more."""
        log.info("%s: listening on %s", kind, self.address)
        while not self._closed:
            try:
                accepted, peer = self._socket.accept()
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    log.warn("%s: temporary Accept() failure - %s", kind, error)
                    sleep(_ACCEPT_PAUSE_SECONDS)
                elif not self._closed and error.errno != errno.ECONNABORTED:
                    call = "listener.Accept()" if kind == "TCP" else "http.Serve()"
                    where = f"unix {self.address}" if self._unix_path else f"tcp {self.address}"
                    raise ListenerBroken(f"{call} error - accept {where}: accept4: {_reason(error)}") from error
            else:
                handle(_plain_socket(accepted), format_address(peer))
                give_way()
        log.info("%s: closing %s", kind, self.address)

    def close(self) -> None:
        self._closed = True
        self._socket.close()
        if self._unix_path:
            with suppress(OSError):
                os.unlink(self._unix_path)


def _plain_socket(accepted: gevent.socket.socket) -> socket.socket:
    """The standard library's socket on the same file: a Connection does its own waiting."""
    plain = socket.socket(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
    if plain.family != socket.AF_UNIX:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_SECONDS)
    return plain


def _listen_unix(path: str) -> gevent.socket.socket:
    listener = gevent.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartError(f"listen unix {path}: bind: {_reason(error)}") from error
    return listener


def _listen_tcp(address: str, host: str, port: str) -> gevent.socket.socket:
    number = _port_number(port)
    if host in ("", "0.0.0.0", "::") and socket.has_dualstack_ipv6():
        bind_address: Any
        family, bind_address = socket.AF_INET6, ("::", number)
    else:
        try:
            found = socket.getaddrinfo(host or "0.0.0.0", number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except socket.gaierror as error:
            raise StartError(f"listen tcp: lookup {host}: no such host") from error
        family, bind_address = found[0][0], found[0][4]
    listener = gevent.socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(bind_address[0] != "::"))
        listener.bind(bind_address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartError(f"listen tcp {address}: bind: {_reason(error)}") from error
    return listener


def _port_number(port: str) -> int:
    if port.isascii() and port.isdigit():
        if len(port) > 5 or int(port) > 65535:
            raise StartError(f"listen tcp: address {port}: invalid port")
        return int(port)
    try:
        return socket.getservbyname(port, "tcp") if port else 0
    except OSError as error:
        raise StartError(f"listen tcp: lookup tcp/{port}: unknown port") from error


def _reason(error: OSError) -> str:
    text = os.strerror(error.errno) if error.errno else str(error)
    return text[:1].lower() + text[1:]


def format_address(address: Any) -> str:
    """A socket address as Go prints it: `127.0.0.1:4150`, `[::1]:4150`, `@` for an unnamed unix socket."""
    if isinstance(address, tuple):
        host, port = address[:2]
        host = host.removeprefix(_MAPPED)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return str(address) if address else "@"
