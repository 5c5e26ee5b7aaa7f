"""Access to the page: the headers of every response, names of the host, the origin of changes, tokens and sessions."""

import ipaddress
import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from urllib.parse import urlsplit

from gnsqd.log import Logger
from gnsqd.web.http_auth import Tokens
from gnsqd.web.routes import Role
from nsqadmin_cli.web.http import HTTPError, PageRequest, Redirect

# Without any Referrer-Policy, browsers would not send the origin of a form.
HEADERS = (
    b"Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    b"connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'\r\n"
    b"X-Frame-Options: DENY\r\n"
    b"X-Content-Type-Options: nosniff\r\n"
    b"Referrer-Policy: same-origin\r\n"
    b"Cross-Origin-Opener-Policy: same-origin\r\n"
    b"Cross-Origin-Resource-Policy: same-origin\r\n"
)

COOKIE = "gnsqadmin_session"
_SESSION_SECONDS = 12 * 3600
_MOST_SESSIONS = 1000


class Security:
    """Judges requests. `token_files` are `read:FILE` or `full:FILE`, as gnsqd's --http-auth-token-file; raises
    StartError."""

    def __init__(self, token_files: Sequence[str], log: Logger, *, loopback: bool, read_only: bool = False) -> None:
        self.read_only = read_only
        self._tokens = Tokens(token_files, log) if token_files else None
        self._loopback = loopback
        # By the cookie: the header that the token would be in, and until when it is used.
        self._sessions: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def has_tokens(self) -> bool:
        return self._tokens is not None

    def role(self, request: PageRequest) -> Role:
        """Returns the role of the token or the session of a request."""
        if self._tokens is None:
            return Role.FULL
        with self._lock:  # the files may be read again
            return self._tokens.role(self.authorization(request).encode("latin-1"))

    def authorization(self, request: PageRequest) -> str:
        """Returns the header with the token of a request or its session; empty without one."""
        if given := request.header("authorization"):
            return given
        authorization, until = self._sessions.get(request.cookie(COOKIE), ("", 0.0))
        return authorization if until >= time.monotonic() else ""

    def has_sessions(self) -> bool:
        return any(until > time.monotonic() for _, until in list(self._sessions.values()))

    def may_change(self, request: PageRequest) -> bool:
        return not self.read_only and self.role(request) >= Role.FULL

    def check(self, request: PageRequest, needed: Role) -> None:
        """Raises HTTPError unless a request that needs this role is permitted; 401 if it needs a token."""
        self._check_host(request)
        if request.changes or request.is_live:
            self._check_origin(request)
        if self.read_only and request.changes and needed is Role.FULL:
            raise HTTPError(403, "This page is read-only: nothing was done.")
        role = self.role(request) if needed is not Role.ANYBODY else needed
        if role < needed:
            text = "The token permits reading of statistics only: nothing was done."
            raise HTTPError(403, text) if role else HTTPError(401, "This page needs a token.")

    def log_in(self, token: str, to: str) -> Redirect | None:
        """Begins a session and leads to a page; returns None if the token is unknown."""
        assert self._tokens is not None
        authorization = f"Bearer {token}"
        with self._lock:
            if self._tokens.role(authorization.encode("utf-8", "replace")) < Role.READ:
                return None
            name = secrets.token_urlsafe(24)
            self._sessions[name] = authorization, time.monotonic() + _SESSION_SECONDS
            while len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)
        return Redirect(to, (COOKIE, name, _SESSION_SECONDS))

    def log_out(self, request: PageRequest) -> Redirect:
        self._sessions.pop(request.cookie(COOKIE), None)
        return Redirect("/", (COOKIE, "", 0))

    def _check_host(self, request: PageRequest) -> None:
        """Refuses names that DNS rebinding could have given to this host: on a loopback address all others; without
        tokens, names that anybody could register."""
        if not self._loopback and self.has_tokens:
            return
        try:
            host = urlsplit(f"//{request.header('host') or ''}").hostname or ""
        except ValueError:  # malformed
            host = None
        if host is None or not (is_loopback_host(host) if self._loopback else _is_local(host)):
            needed = "is for localhost" if self._loopback else "has no tokens: it needs an IP address or a local name"
            raise HTTPError(403, f"The page {needed}, and was asked as another.")

    def _check_origin(self, request: PageRequest) -> None:
        """Refuses changes from other sites; the JSON API takes them also from a client without these headers."""
        site, origin = request.header("sec-fetch-site"), request.header("origin")
        if site is not None:
            same = site == "same-origin"
        elif origin is not None:
            same = urlsplit(origin).netloc == (request.header("host") or "") != ""
        else:
            same = request.is_api or not request.changes
        if not same:
            raise HTTPError(403, "Not from this page: nothing was done.")


def is_loopback_host(host: str) -> bool:
    """Returns True if a host, as in an address to listen on or in a Host header, is this machine's own."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_local(host: str) -> bool:
    """Returns True for an address, a name of one label as containers have, this machine's own, and "" of
    non-browsers."""
    try:
        return "." not in host or host == socket.gethostname().lower() or bool(ipaddress.ip_address(host))
    except ValueError:
        return False
