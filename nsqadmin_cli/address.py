"""Addresses of HTTP APIs of nsqd and nsqlookupd: a port, with or without TLS, or a unix socket."""

import ipaddress
import re
from dataclasses import dataclass

_FORMS = "expected host:port, [ipv6]:port, http://host:port, https://host:port or unix:/path"


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A port of a host, or with `path` a unix socket. `str()` is valid for `parse`, if possible `host:port`."""

    host: str
    port: int
    tls: bool = False
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https://' * self.tls}{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse one of the usual forms; ValueError with a readable text."""
        if text.startswith("/") or text.lower().startswith("unix:"):
            return cls("", 0, path=_socket_path(text))
        scheme, slashes, rest = text.partition("://")
        if slashes and scheme.lower() not in ("http", "https"):
            raise ValueError(f"{text!r}: {_FORMS}")
        bare = rest.removesuffix("/") if slashes else text
        match = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^\x00-\x20\s:/?#@\[\]]+)):([0-9]{1,5})", bare)
        if not match:
            raise ValueError(f"{text!r}: {_FORMS}")
        ipv6, name, port = match.groups()
        if not 0 < int(port) < 65536:
            raise ValueError(f"{text!r}: port {port} is not in 1..65535")
        try:
            host = str(ipaddress.IPv6Address(ipv6)) if ipv6 else name.encode("idna").decode("ascii")
        except (ipaddress.AddressValueError, UnicodeError):
            raise ValueError(f"{text!r}: {ipv6 or name!r} is not a valid host") from None
        return cls(host, int(port), tls=scheme.lower() == "https" and bool(slashes))


def _socket_path(text: str) -> str:
    path = text.partition(":")[2] if text.lower().startswith("unix:") else text
    if path.startswith("//"):  # unix:///run/nsqd.sock
        path = path[2:]
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"{text!r}: a unix socket needs an absolute path, as in unix:/run/nsqd.sock")
    if len(path.encode("utf-8", "surrogateescape")) > 107:
        raise ValueError(f"{text!r}: the path of a unix socket has at most 107 bytes")
    return path
