"""Formats and parses addresses of sockets as Go does."""

import os
import socket
import sys
from typing import Any

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


def reason(error: Exception) -> str:
    """Returns the reason, in lower case like Go's."""
    if isinstance(error, TimeoutError):
        return "i/o timeout"
    return reason_of(error) or type(error).__name__
