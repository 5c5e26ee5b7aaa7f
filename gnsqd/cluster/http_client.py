"""Sends HTTP and HTTPS requests to other daemons, with the standard library's client on gevent's sockets.

Requests, redirects and texts of failures are those of Go's client. Only the Referer of a redirect is missing: it would
contain a client's secret.
"""

import http.client
import ssl
import zlib
from base64 import b64encode
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from time import monotonic
from typing import Any
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

import gevent.ssl
from gevent import Timeout

from gnsqd.gotext import Struct, decode_object, quote
from gnsqd.hub.cooperative import yield_turn
from gnsqd.net.addresses import join_host_port, reason
from gnsqd.net.dialing import dial
from gnsqd.shared.errors import AnswerTooLarge, HTTPClientError

_ACCEPT = "application/vnd.nsq; version=1.0"
_USER_AGENT = "Go-http-client/1.1"
_MAX_REQUESTS = 10  # in a chain of redirects
_REDIRECTS = (301, 302, 303, 307, 308)
_KEEPING_THE_BODY = (307, 308)  # the others make a POST a GET
_TLS_HANDSHAKE_SECONDS = 10.0
_SHOWN = 200  # bytes of an answer that is an error
_FORBIDDEN = Struct("", {"https_port": "int"})
_UNKNOWN_AUTHORITY = (18, 19, 20, 21)  # self-signed, or no issuer found: X509_V_ERR_* of OpenSSL


@dataclass(eq=False)
class GoHTTPClient:
    """`connect_timeout` and `request_timeout` are ns, 0 means no limit; the latter includes redirects. Servers of https
    URLs are verified against `roots`, certificates in DER one after the other, or else the system's; TLS is of
    `tls_min_version`, a protocol number, at least, and 1.2 in any case. An answer may have `max_body_size` bytes."""

    connect_timeout: int
    request_timeout: int
    max_body_size: int
    roots: bytes = b""
    tls_min_version: int = ssl.TLSVersion.TLSv1_2

    def use_roots(self, roots: bytes) -> None:
        """Verifies servers against these from the next request on."""
        self.roots = roots
        self.__dict__.pop("_tls_context", None)

    def request(self, url: str, data: bytes | None = None) -> bytes:
        """Sends GET, or POST with JSON; returns the body of the answer. Raises HTTPClientError. Yields."""
        answer, body = self._fetch(url, data)
        if answer.status == 403 and not url.startswith("https"):  # nsqd requests HTTPS by an https_port
            answer, body = self._fetch(_https_url(url, body), data)
        if answer.status != 200:
            status = f"{answer.status} {answer.reason}"
            shown = status if status.isprintable() else quote(status)
            raise HTTPClientError(f"got response {shown} {quote(body[:_SHOWN])}")
        return body

    def _fetch(self, url: str, data: bytes | None) -> tuple[http.client.HTTPResponse, bytes]:
        deadline = monotonic() + self.request_timeout / 1e9 if self.request_timeout > 0 else None
        for _ in range(_MAX_REQUESTS):
            answer, body = self._ask(url, data, deadline)
            location = answer.getheader("Location", "")
            if answer.status not in _REDIRECTS or not location:
                return answer, body
            try:
                url = urljoin(url, location)
            except ValueError as error:
                text = f"failed to parse Location header {quote(location)}: {error}"
                raise HTTPClientError(f"Get {quote(url)}: {text}") from error
            if answer.status not in _KEEPING_THE_BODY:
                data = None
        raise HTTPClientError(f"Get {quote(location)}: stopped after {_MAX_REQUESTS} redirects")

    def _ask(self, url: str, data: bytes | None, deadline: float | None) -> tuple[http.client.HTTPResponse, bytes]:
        """Sends one request; returns the answer's head and its body. Raises HTTPClientError."""
        where = f"{'Get' if data is None else 'Post'} {quote(url)}: "
        late = "exceeded while awaiting headers"
        time_left = None if deadline is None else max(deadline - monotonic(), 0.0)
        try:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https"):
                raise ValueError(f"unsupported protocol scheme {quote(parts.scheme)}")
            if not parts.hostname:
                raise ValueError("http: no Host in request URL")
            tls_context = self._tls_context if parts.scheme == "https" else None
            connecting = _GoConnection(parts, self.connect_timeout / 1e9 or None, tls_context)
            with Timeout(time_left, False), closing(connecting) as connection:
                connection.send_request(data)
                response = connection.getresponse()
                where, late = "", "or context cancellation while reading body"
                return response, _read(response, self.max_body_size)
        except (OSError, http.client.HTTPException, ValueError, zlib.error) as error:
            raise HTTPClientError(f"{where}{_reason(error)}") from error
        raise HTTPClientError(f"{where}context deadline exceeded (Client.Timeout {late})")

    @cached_property
    def _tls_context(self) -> Any:
        context = _TLSContext(ssl.PROTOCOL_TLS_CLIENT)
        # Older ones would need OpenSSL's security level 0, which lets pass certificates that anyone can forge.
        context.minimum_version = ssl.TLSVersion(max(self.tls_min_version, ssl.TLSVersion.TLSv1_2))
        context.hostname_checks_common_name = False  # nor does Go
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Go, an intermediate among the roots is trusted
        if self.roots:
            context.load_verify_locations(cadata=self.roots)
        else:
            context.load_default_certs()
        return context


class _YieldingTLSSocket(gevent.ssl.SSLSocket):  # type: ignore[misc]
    """Yields at every receive, like Socket of `net.dialing`."""

    def read(self, *args: Any) -> Any:
        yield_turn()
        return super().read(*args)


class _TLSContext(gevent.ssl.SSLContext):  # type: ignore[misc]
    sslsocket_class = _YieldingTLSSocket


class _GoConnection(http.client.HTTPConnection):
    """The connection for one request for `url`."""

    def __init__(self, url: SplitResult, connect_timeout: float | None, tls_context: Any) -> None:
        port = (443 if url.scheme == "https" else 80) if url.port is None else url.port
        super().__init__(url.hostname or "", port, connect_timeout)
        self._url = url
        self._tls_context = tls_context

    def send_request(self, data: bytes | None) -> None:
        """Sends GET, or POST with `data`, byte by byte as Go's client sends it."""
        url = self._url
        headers = {"Host": url.netloc.rpartition("@")[2], "User-Agent": _USER_AGENT}
        if data is not None:
            headers["Content-Length"] = str(len(data))
        headers["Accept"] = _ACCEPT
        if url.username is not None:
            user = f"{unquote(url.username)}:{unquote(url.password or '')}"
            headers["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
        if data is not None:
            headers["Content-Type"] = "application/json"
        headers["Accept-Encoding"] = "gzip"
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self.request("GET" if data is None else "POST", target, data, headers)

    def connect(self) -> None:
        self.sock = dial(self.host, str(self.port), self.timeout)
        if self._tls_context is not None:
            self.sock = self._tls_context.wrap_socket(
                self.sock, server_hostname=self.host, do_handshake_on_connect=False
            )
            with Timeout(_TLS_HANDSHAKE_SECONDS, OSError("net/http: TLS handshake timeout")):
                self.sock.do_handshake()


def _read(response: http.client.HTTPResponse, limit: int) -> bytes:
    body = response.read(limit + 1)
    if len(body) <= limit and response.length:
        raise ValueError("unexpected EOF")
    if response.getheader("Content-Encoding", "").lower() == "gzip":
        decompressor = zlib.decompressobj(wbits=31)
        body = decompressor.decompress(body, limit + 1)
        if len(body) <= limit and not decompressor.eof:
            raise ValueError("unexpected EOF")
    if len(body) > limit:
        raise AnswerTooLarge(f"response body size is greater than limit ({limit})")
    return body


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        unknown = error.verify_code in _UNKNOWN_AUTHORITY
        text = "certificate signed by unknown authority" if unknown else error.verify_message
        return f"tls: failed to verify certificate: x509: {text}"
    if isinstance(error, ssl.SSLError):
        return f"tls: {(error.reason or 'EOF').replace('_', ' ').lower()}"
    match error:
        case zlib.error():
            return "gzip: invalid header"
        case http.client.RemoteDisconnected():
            return "EOF"
        case http.client.IncompleteRead():
            return "unexpected EOF"
        case http.client.BadStatusLine():
            line = str(error).rstrip("\r\n")
            return f"net/http: HTTP/1.x transport connection broken: malformed HTTP response {quote(line)}"
        case _:
            return reason(error)


def _https_url(url: str, body: bytes) -> str:
    try:
        port = decode_object(body, _FORBIDDEN).get("https_port", 0)
    except ValueError as error:
        raise HTTPClientError(str(error)) from error
    parts = urlsplit(url)
    if parts.port is None:
        raise HTTPClientError(f"address {parts.netloc}: missing port in address")
    user, at, _ = parts.netloc.rpartition("@")
    return parts._replace(scheme="https", netloc=user + at + join_host_port(parts.hostname or "", port)).geturl()
