"""HTTP authorization: a token or client certificate grants a role, and every endpoint requires one.

A request sends its token as in RFC 6750, `Authorization: Bearer TOKEN`. Tokens are in files, one per line. Changed
files are read again at the next request, at most once a second. Only digests are kept, and all are compared, so that
timing reveals nothing about a token.
"""

import os
import re
import stat
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from time import monotonic

from gnsqd.gotext import quote
from gnsqd.log import Logger
from gnsqd.options import Options
from gnsqd.shared.errors import StartError, reason_of
from gnsqd.web.http11 import Request
from gnsqd.web.routes import HTTPError, Role, Router

CHECK_SECONDS = 1.0
MAX_FILE = 64 * 1024  # bytes
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]{16,}=*")  # RFC 6750's syntax; what is shorter may be guessed
_ROLES = {"read": Role.READ, "full": Role.FULL}


@dataclass(eq=False)
class Guard:
    """Passes requests to `router` if the roles of their token or `peer` permit it."""

    _router: Router
    _tokens: "Tokens"
    _names: Mapping[str, Role]
    _peer: Role = Role.ANYBODY

    def for_peer(self, common_name: str) -> "Guard":
        """Returns the guard for a client with such a certificate, "" without any."""
        return Guard(self._router, self._tokens, self._names, self._names.get(common_name, Role.ANYBODY))

    def _role(self, request: Request) -> Role:
        return max(self._peer, self._tokens.role(request.headers.get(b"authorization", b"")))

    def body_limit(self, request: Request) -> int:
        """Returns the router's limit; 0 for unauthorized requests."""
        return self._router.body_limit(request) if self._role(request) >= self._router.role(request) else 0

    def respond(self, request: Request, remote_address: str) -> bytes | Generator[list[bytes]]:
        """Returns the response; yields, and raises WouldYield, as the router does."""
        role = self._role(request)
        if role >= self._router.role(request):
            return self._router.respond(request, remote_address)
        if role:
            error, reason = HTTPError(403, "FORBIDDEN"), b', error="insufficient_scope"'
        else:
            error = HTTPError(401, "UNAUTHORIZED")
            reason = b', error="invalid_token"' if b"authorization" in request.headers else b""
        headers = b'WWW-Authenticate: Bearer realm="nsqd"%s\r\n' % reason
        return self._router.refuse(request, remote_address, error, headers)


class Tokens:
    """The tokens of files, each given as `role:path`; raises StartError if one cannot be used."""

    def __init__(self, sources: Sequence[str], log: Logger) -> None:
        self._log = log
        self._files = [_TokenFile(*_role_and_rest("--http-auth-token-file", source)) for source in sources]
        self._checked = monotonic()
        for file in self._files:
            try:
                file.read()
            except (OSError, ValueError) as error:
                raise StartError(f"failed to read HTTP tokens - {file.path}: {reason_of(error)}") from error

    def role(self, authorization: bytes) -> Role:
        """Returns the role of the token in a header, which may be empty."""
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            return Role.ANYBODY
        if monotonic() - self._checked >= CHECK_SECONDS:
            self._check()
        digest = sha256(token.strip()).digest()
        roles = [file.role for file in self._files for known in file.digests if compare_digest(known, digest)]
        return max(roles, default=Role.ANYBODY)

    def _check(self) -> None:
        self._checked = monotonic()
        for file in self._files:
            try:
                if file.changed():
                    file.read()
                    self._log.info("HTTP: read %d tokens from %s", len(file.digests), file.path)
            except (OSError, ValueError) as error:
                if file.complaint != reason_of(error):
                    file.complaint = reason_of(error)
                    self._log.error("HTTP: the tokens of %s stay as they were - %s", file.path, file.complaint)


@dataclass(eq=False)
class _TokenFile:
    """The tokens of one role; `complaint` is the last error logged for it."""

    role: Role
    path: str
    digests: Sequence[bytes] = ()
    complaint: str = ""
    _signature: tuple[int, ...] = ()

    def changed(self) -> bool:
        """Returns True if it must be read again: a pipe can be read only once. Raises OSError."""
        status = os.stat(self.path)
        return stat.S_ISREG(status.st_mode) and _signature(status) != self._signature

    def read(self) -> None:
        """Reads the tokens; raises OSError, ValueError."""
        with open(self.path, "rb") as file:
            signature = _signature(os.fstat(file.fileno()))
            data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise ValueError(f"more than {MAX_FILE} bytes")
        lines = [line.strip() for line in data.splitlines()]
        for number, line in enumerate(lines, 1):
            if line and not _TOKEN.fullmatch(line):
                raise ValueError(f"line {number} is not a token: 16 or more of A-Z a-z 0-9 . _ ~ + / -")
        if not any(lines):
            raise ValueError("there is no token")
        self.digests = [sha256(line).digest() for line in lines if line]
        self.complaint = ""
        self._signature = signature


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _role_and_rest(flag: str, text: str) -> tuple[Role, str]:
    name, _, rest = text.partition(":")
    if name not in _ROLES or not rest:
        raise StartError(f"{flag} must begin with read: or full:, not {quote(text)}")
    return _ROLES[name], rest


def parse_common_names(texts: Sequence[str], policy: str) -> dict[str, Role]:
    """Returns the roles of `--http-auth-common-name`, with this `--tls-client-auth-policy`; raises StartError."""
    flag = "--http-auth-common-name"
    names: dict[str, Role] = {}
    for text in texts:
        role, name = _role_and_rest(flag, text)
        names[name] = max(role, names.get(name, role))
    if names and policy != "require-verify":
        raise StartError(f"{flag} needs --tls-client-auth-policy=require-verify")
    return names


def build_guard(options: Options, router: Router, log: Logger) -> Guard:
    """Returns the guard that the options configure; raises StartError."""
    names = parse_common_names(options.http_auth_common_names, options.tls_client_auth_policy)
    return Guard(router, Tokens(options.http_auth_token_files, log), names)
