"""HTTP to nsqd and nsqlookupd with urllib3: one request, and its whole answer or a `NodeError` with the reason.

urllib3 keeps connections, checks certificates, allows custom sockets, has no dependencies and loads quickly. Its
timeouts restart with every byte from a slow peer, so the sockets here count them from the request.
"""

import http.client
import ipaddress
import json
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError, IncompleteRead, InsecureRequestWarning, InvalidChunkLength, NewConnectionError
from urllib3.exceptions import TimeoutError as PoolTimeout

from gnsqd.shared.client import tls_context
from gnsqd.shared.config_file import read_config_file
from gnsqd.shared.errors import reason_of
from gnsqd.shared.version import VERSION
from nsqadmin_cli.budget import TooLarge, present_allowance
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.units import printable

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
        """Parses one of the usual forms; raises ValueError with a readable text."""
        if text.startswith("/") or text.lower().startswith("unix:"):
            path = text if text.startswith("/") else text.partition(":")[2]
            path = path[2:] if path.startswith("//") else path  # unix:///run/nsqd.sock
            if not path.startswith("/") or "\0" in path:
                raise ValueError(f"{text!r}: a unix socket needs an absolute path, as in unix:/run/nsqd.sock")
            if len(path.encode("utf-8", "surrogateescape")) > 107:
                raise ValueError(f"{text!r}: the path of a unix socket has at most 107 bytes")
            return cls("", 0, path=path)
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


_LONG = ("/channel/rewind", "/topic/messages")  # paths whose answers begin when a log was read, or has grown
_KEPT = 16  # connections to one node, of threads that query it at the same time
_ADVICE = {
    401: ": it requires the token of a --token-file, or the certificate of a --tls-cert",
    403: ": the token of --token-file, or the certificate of --tls-cert, does not permit it",
}
_NOT_NAMED = ": it was not sent the token, as an nsqlookupd listed it; name it with --nsqd-http-address={}"
_AS_IT_IS: dict[str, Any] = dict.fromkeys(("retries", "redirect", "preload_content", "decode_content"), False)
_PART = 1 << 16  # bytes that are read at once
_LARGEST_REFUSAL = 1 << 16  # bytes of an answer other than 200 that are looked at
_MOST_POOLS = 1000  # of connections; nodes that an nsqlookupd lists may be others each time


class NodeError(AdminError):
    """A node could not be reached or sent an invalid answer; `reason` is without the address."""

    def __init__(self, program: str, address: Address, reason: str) -> None:
        super().__init__(f"{program} at {address}: {reason}")
        self.program = program
        self.address = address
        self.reason = reason


class NodeLacks(NodeError):
    """A node is a program, or a version, that cannot do what was asked. This is not an error beside nodes that can."""


class NodeRefused(NodeError):
    """A node answered with an error; `document` is the JSON object of the answer, and `code` NSQ's error code in it,
    such as TOPIC_NOT_FOUND, or empty."""

    def __init__(
        self, program: str, address: Address, status: int, document: Mapping[str, Any], explanation: str, advice: str
    ) -> None:
        """Shows `explanation` if there is no code."""
        self.status = status
        self.document = document
        self.code = str(document.get("message", ""))
        text = printable(self.code if "message" in document else explanation, 100)
        if program == "nsqd" and self.code != "TLS_REQUIRED":
            advice = advice or _ADVICE.get(status, "")
        super().__init__(program, address, f"answered HTTP {status}{f' ({text})' if text else ''}{advice}")


@dataclass(frozen=True, slots=True)
class TLSSettings:
    """The paths of PEM files, or empty. Without `ca`, the system's authorities are used."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    insecure: bool = False

    def context(self) -> ssl.SSLContext:
        try:
            return tls_context(self.ca, self.cert, self.key, not self.insecure)
        except OSError as error:
            raise AdminError(str(error)) from None


class NodeClient:
    """Owns the connections to all nodes and keeps them for the next request. Threads may share it.

    A node that hangs must not delay what is read from the others, so an answer to GET has to begin early. What changes
    something has the whole time: who gives up earlier does not know whether it was done.
    """

    quick = inf  # seconds for all that is read from a node that did not answer in time before

    def __init__(
        self,
        timeout: float,
        tls: TLSSettings | None = None,
        token_file: str = "",
        named: Iterable[Address] = (),
        patience: float = inf,
    ) -> None:
        """Limits a whole answer, with a retry over TLS, to `timeout` seconds, and the time until one to GET begins to
        `patience`. The token is sent to the nodes `named` only: anybody may register with an nsqlookupd. Raises
        AdminError if the token file cannot be used."""
        self.timeout = timeout
        self.patience = min(patience, timeout)
        self.slow: set[Address] = set()  # nodes that did not answer in time
        self.tls = tls or TLSSettings()
        self._headers = {"User-Agent": f"gnsqadmin/{VERSION}"}
        self._token_file = token_file
        self._authorization = f"Bearer {read_token(token_file)}" if token_file else ""
        self._named = set(named)
        self._pools: dict[Address, HTTPConnectionPool] = {}
        self._moved: dict[Address, Address] = {}  # nodes that require TLS -> their HTTPS address
        self._reached: dict[Address, Address] = {}
        if self.tls.insecure:
            urllib3.disable_warnings(InsecureRequestWarning)

    @cached_property
    def _context(self) -> ssl.SSLContext:
        context = self.tls.context()
        context.sslsocket_class = _TimedTLSSocket
        return context

    def acting(self, authorization: str) -> "NodeClient":
        """Returns the same client with this header in place of the token; it shares the connections."""
        client = copy(self)
        client._token_file, client._authorization = "", authorization
        return client

    def reach(self, listed: Address, address: Address) -> None:
        """Asks the node that is `listed` by nsqlookupds at `address`, which is named."""
        self._reached[listed] = address
        self._named.add(listed)

    def answer(
        self,
        address: Address,
        method: str,
        target: str,
        body: bytes | None = None,
        *,
        program: str = "nsqd",
        read: Callable[[Iterator[bytes]], Any] = b"".join,
    ) -> tuple[Mapping[str, str], Any]:
        """Returns the headers of a 200 answer, and what `read` makes of its parts. Raises NodeRefused for other
        answers, NodeError for all other failures. A node that requires HTTPS and reports its port is queried there, as
        by NSQ's own tools."""
        asked = self._moved.get(address) or self._reached.get(address, address)
        authorization = self._authorization if program == "nsqd" and address in self._named else ""
        headers = self._headers | ({"Authorization": authorization} if authorization else {})
        patience, whole = self._limits(asked, method, target)
        timeout = urllib3.Timeout(connect=patience, read=whole)
        try:
            response = self._pool(asked).urlopen(method, target, body, headers, timeout=timeout, **_AS_IT_IS)
        except _FAILURES as error:
            raise self._failure(program, address, asked, error, patience) from None
        try:
            parts = self._parts(program, address, asked, response, whole)
            answer = read(parts) if response.status == 200 else b""
            while response.status != 200 and len(answer) <= _LARGEST_REFUSAL and (part := next(parts, b"")):
                answer += part
        except TooLarge as error:
            response.close()
            raise NodeError(program, address, str(error)) from None
        except BaseException:
            response.close()
            raise
        if response.status != 200 and len(answer) > _LARGEST_REFUSAL:  # there may be more
            response.close()
        response.release_conn()
        self.slow.discard(asked)
        if response.status == 200:
            return response.headers, answer
        document = _document(answer)
        port: Any = document.get("https_port")
        moves = response.status == 403 and not (asked.tls or asked.path) and isinstance(port, int) and 0 < port < 65536
        if moves:
            self._moved[address] = Address(asked.host, port, tls=True)
        if moves or (response.status == 401 and authorization and self._has_other_token(authorization)):
            return self.answer(address, method, target, body, program=program, read=read)
        withheld = response.status == 401 and self._authorization and not authorization
        advice = _NOT_NAMED.format(address) if withheld else ""
        explanation = response.reason or ""
        if response.headers.get("Content-Type", "text/plain").startswith("text/plain"):
            explanation = answer[:1000].decode("utf-8", "replace").strip() or explanation
        raise NodeRefused(program, address, response.status, document, explanation, advice)

    def _has_other_token(self, refused: str) -> bool:
        """Reads the file again: tokens are replaced while a page is served."""
        if self._token_file:
            with suppress(AdminError):
                self._authorization = f"Bearer {read_token(self._token_file)}"
        return self._authorization != refused

    def _limits(self, address: Address, method: str, target: str) -> tuple[float, float]:
        """Returns the seconds until an answer begins, and until it is complete."""
        if method != "GET":
            return self.timeout, self.timeout
        whole = min(self.timeout, self.quick) if address in self.slow else self.timeout
        return whole if target.startswith(_LONG) else min(self.patience, whole), whole

    def _failure(self, program: str, address: Address, asked: Address, error: BaseException, limit: float) -> NodeError:
        """Returns the error of the node at `address`, which was asked at another one if it requires TLS."""
        reason = _reason(error, program, limit)
        if reason == timed_out(limit):
            self.slow.add(asked)
        return NodeError(program, address, reason)

    def _parts(
        self, program: str, address: Address, asked: Address, response: urllib3.BaseHTTPResponse, whole: float
    ) -> Iterator[bytes]:
        allowance = present_allowance()
        try:
            while part := response.read1(_PART):  # more at once would take a short answer for a whole one
                allowance.take(len(part))
                yield part
        except _FAILURES as error:
            raise self._failure(program, address, asked, error, whole) from None

    def _pool(self, address: Address) -> HTTPConnectionPool:
        if (pool := self._pools.get(address)) is not None:
            return pool
        host = address.host.partition("%")[0] or "localhost"  # urllib3 knows no scope of an IPv6 address
        kept: dict[str, Any] = {"maxsize": _KEPT, "address": address}
        pool = HTTPConnectionPool(host, address.port, **kept)
        if address.tls:
            pool = HTTPSConnectionPool(host, address.port, ssl_context=self._context, **kept)
        pool.ConnectionCls = _TLSConnection if address.tls else _PlainConnection
        if len(self._pools) >= _MOST_POOLS:
            self._pools.clear()
            self._moved.clear()
            self.slow.clear()
        self._pools[address] = pool
        return pool


_FAILURES = (HTTPError, http.client.HTTPException, OSError, ValueError)


def read_token(path: str) -> str:
    """Returns the first word of the file, on its first line; raises AdminError."""
    try:
        line = read_config_file(path).partition(b"\n")[0].decode("ascii").strip()
    except OSError as error:
        raise AdminError(f"cannot read the token in {path}: {reason_of(error)}") from None
    except ValueError:
        line = ""
    if (match := re.fullmatch(r"([A-Za-z0-9._~+/-]+=*)(\s+\w+:\S+)*", line)) is None:  # roles for topics may follow
        raise AdminError(f"the first line of {path} is not a token")
    return match[1]


def timed_out(timeout: float) -> str:
    return f"no complete answer within {timeout:g} s"


class _TimedSocket(socket.socket):
    """A socket whose timeout is the time for all that is received, from when it is set."""

    _until = float("inf")

    def settimeout(self, value: float | None) -> None:
        self._until = time.monotonic() + value if value else float("inf")
        super().settimeout(value)

    def extend(self, seconds: float) -> None:
        self._until += seconds

    def recv_into(self, *args: Any) -> int:
        if (left := self._until - time.monotonic()) <= 0:
            raise TimeoutError
        if left < float("inf"):
            super().settimeout(left)
        return super().recv_into(*args)


class _TimedTLSSocket(_TimedSocket, ssl.SSLSocket):
    pass


class _Connected:
    """A connection of urllib3 to an address, which may be a unix socket."""

    timeout: float | None
    sock: Any

    def __init__(self, *args: Any, address: Address, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._address = address

    def request(self, *args: Any, **more: Any) -> None:
        self._patience = self.timeout or inf  # that for connecting
        super().request(*args, **more)  # type: ignore[misc]

    def getresponse(self) -> Any:
        """Waits for an answer to begin within the timeout for connecting, and limits all of it to that for reading."""
        sock, whole = self.sock, self.timeout or inf
        self.timeout = self._patience
        response = super().getresponse()  # type: ignore[misc]
        sock.extend(whole - self._patience)
        return response

    def _new_conn(self) -> socket.socket:
        try:
            return self._connect()
        except OSError as error:  # urllib3 takes a reset for one of a request, whose answer may be there
            raise HTTPError(str(error)) from error

    def _connect(self) -> socket.socket:
        """Connects to the first of the host's addresses that accepts it, or to the unix socket."""
        address = self._address
        if not address.path:
            connected = socket.create_connection((address.host, address.port), self.timeout)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock = _TimedSocket(fileno=connected.detach())
            sock.settimeout(self.timeout)
            return sock
        sock = _TimedSocket(socket.AF_UNIX)
        try:
            sock.settimeout(self.timeout)
            sock.connect(address.path)
        except BaseException:
            sock.close()
            raise
        return sock


class _PlainConnection(_Connected, HTTPConnection):
    pass


class _TLSConnection(_Connected, HTTPSConnection):
    pass


def _reason(error: BaseException, program: str, timeout: float) -> str:
    """Returns a readable reason: urllib3 wraps errors, sometimes repeatedly."""
    for cause in _causes(error):
        match cause:
            case TimeoutError() | PoolTimeout() if not isinstance(cause, NewConnectionError):
                return timed_out(timeout)
            case socket.gaierror():
                return f"cannot resolve the host name: {cause.strerror}"
            case ssl.SSLCertVerificationError():
                return f"its certificate is not trusted: {printable(cause.verify_message)}"
            case ssl.SSLError() if cause.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF"):
                return "does not speak TLS; is this an http address?"
            case ssl.SSLError():
                return f"TLS failed: {printable((cause.reason or str(cause)).replace('_', ' ').lower())}"
            case InvalidChunkLength():
                return "does not answer in valid HTTP (InvalidChunkLength)"
            case IncompleteRead() | http.client.IncompleteRead():
                return "closed the connection in the middle of its answer"
            case ConnectionRefusedError():
                return "connection refused"
            case ConnectionResetError() | BrokenPipeError() | http.client.BadStatusLine():
                # nsqd does this to HTTP on its TCP port, often with a reset that swallows its E_BAD_PROTOCOL.
                return f"does not answer in HTTP; is this the TCP address of an {program}?"
            case http.client.HTTPException():
                return f"does not answer in valid HTTP ({type(cause).__name__})"
            case OSError():
                return reason_of(cause)
    return f"does not answer in valid HTTP ({type(error).__name__})"


def _causes(error: BaseException) -> list[BaseException]:
    """Returns the error and its causes, innermost first."""
    causes: list[BaseException] = []
    pending: list[object] = [error]
    while pending and len(causes) < 10:
        current = pending.pop(0)
        if isinstance(current, BaseException) and current not in causes:
            causes.append(current)
            pending += [current.__cause__, current.__context__, getattr(current, "reason", None), *current.args]
    return causes[::-1]


def _document(answer: bytes) -> dict[str, Any]:
    """Returns the JSON object of an error answer; an empty one for any other answer."""
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
