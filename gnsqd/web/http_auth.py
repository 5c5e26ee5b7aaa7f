"""HTTP authorization: a token or client certificate grants a role for the daemon, or roles for topics, and every
endpoint requires one.

A request sends its token as in RFC 6750, `Authorization: Bearer TOKEN`. Tokens are in files, one per line. Changed
files are read again at the next request, at most once a second. Only digests are kept, and all are compared, so that
timing reveals nothing about a token. Auth servers may be asked for the permissions of a token that is in no file.
"""

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from hashlib import sha256
from hmac import compare_digest
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from gnsqd.gotext import quote
from gnsqd.hub.cooperative import WouldYield
from gnsqd.log import Logger
from gnsqd.options import Options
from gnsqd.shared.config_file import read_config_file, signature
from gnsqd.shared.errors import AuthError, StartError, reason_of
from gnsqd.shared.names import is_valid_name
from gnsqd.web.http11 import Request
from gnsqd.web.routes import BadQuery, HTTPError, Role, Router, parse_query

if TYPE_CHECKING:
    from gnsqd.cluster.auth import AuthState

CHECK_SECONDS = 1.0
MAX_STATES = 1000  # answers of auth servers that are kept
MAX_FILE = 64 * 1024  # bytes
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]{16,}=*")  # RFC 6750's syntax; what is shorter may be guessed
_ROLES = {"read": Role.READ, "full": Role.FULL}
_TOPIC_ROLES = ("read", "publish", "manage")
_VERIFYING = "require-verify"
_VERIFY = f"--tls-client-auth-policy={_VERIFYING}"

Authenticate = Callable[[str, bool, str, bytes], "AuthState"]  # `Auth.query`


class Grant(NamedTuple):
    """The rights that a line of a file gives: a role for the daemon, and roles for topics, each with a pattern."""

    role: Role = Role.ANYBODY
    topic_roles: Sequence[tuple[str, str]] = ()

    def permits(self, topic_role: str, topic: str) -> bool:
        """Returns True if one of the roles for topics is this one or `manage`, which includes the others."""
        return any(role in (topic_role, "manage") and fnmatchcase(topic, pattern) for role, pattern in self.topic_roles)


Names = Sequence[tuple[str, Grant]]


class Needs(NamedTuple):
    """The requirement of a request: a role for the daemon, or one for its topic, if it has a valid one."""

    role: Role
    topic_role: str = ""
    topic: str = ""
    channel: str = ""

    @property
    def may_be_met_by_servers(self) -> bool:
        return self.topic_role in ("read", "publish")

    @property
    def scope(self) -> str:
        """The role that suffices, such as publish:orders."""
        return f"{self.topic_role}:{self.topic}" if self.topic else self.role.name.lower()

    def are_met_by(self, grants: Sequence[Grant]) -> bool:
        """Returns True if one of the grants, or nothing, suffices."""
        return self.role is Role.ANYBODY or any(
            grant.role >= self.role or (self.topic and grant.permits(self.topic_role, self.topic)) for grant in grants
        )


@dataclass(eq=False)
class Guard:
    """Passes requests to `router` if their token, or the certificate with `common_name`, permits it."""

    _router: Router
    _tokens: "Tokens"
    _servers: "AuthServers | None"
    _common_name: str = ""
    _tls: bool = False

    def for_peer(self, common_name: str) -> "Guard":
        """Returns the guard for a client of HTTPS with such a certificate, "" without any."""
        return replace(self, _common_name=common_name, _tls=True)

    def _judge(self, request: Request) -> tuple[Needs, list[Grant], bytes]:
        """Returns what the request requires, what it has, and its token if only auth servers may know it, else b""."""
        role, topic_role = self._router.roles(request)
        try:
            parameters = parse_query(request.query) if topic_role else {}
        except BadQuery:
            parameters = {}
        needs, topic = Needs(role), parameters.get("topic", "")
        if is_valid_name(topic):  # /stats takes an empty one for all topics
            needs = Needs(role, topic_role, topic, parameters.get("channel", ""))
        token = _token_of(request.headers.get(b"authorization", b""))
        grants = self._tokens.grants(token)
        unknown = token if self._servers is not None and not grants else b""
        return needs, grants + self._tokens.grants_of_name(self._common_name), unknown

    def body_limit(self, request: Request) -> int:
        """Returns the router's limit; 0 for unauthorized requests. Auth servers are not asked before the body."""
        needs, grants, unknown = self._judge(request)
        may_ask = unknown and needs.may_be_met_by_servers
        return self._router.body_limit(request) if may_ask or needs.are_met_by(grants) else 0

    def respond(self, request: Request, remote_address: str) -> bytes | Generator[list[bytes]]:
        """Returns the response; yields, and raises WouldYield, as the router does."""
        needs, grants, unknown = self._judge(request)
        may_ask = unknown and needs.may_be_met_by_servers
        if needs.are_met_by(grants) or (may_ask and self._ask(request, needs, unknown, remote_address)):
            return self._router.respond(request, remote_address)
        if grants or unknown:
            error = HTTPError(403, "FORBIDDEN")
            reason = b', error="insufficient_scope", scope="%s"' % needs.scope.encode()
        else:
            error = HTTPError(401, "UNAUTHORIZED")
            reason = b', error="invalid_token"' if b"authorization" in request.headers else b""
        headers = b'WWW-Authenticate: Bearer realm="nsqd"%s\r\n' % reason
        return self._router.refuse(request, remote_address, error, headers)

    def _ask(self, request: Request, needs: Needs, token: bytes, remote_address: str) -> bool:
        assert self._servers is not None
        host = "" if remote_address.startswith("@") else remote_address.rpartition(":")[0].strip("[]")
        return self._servers.permit(needs, (host, self._tls, self._common_name, token), request.may_yield)


def _token_of(authorization: bytes) -> bytes:
    scheme, _, token = authorization.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


class AuthServers:
    """Asks auth servers for the permissions of tokens. Answers are kept for their ttl, by digests of the questions."""

    def __init__(self, authenticate: Authenticate, log: Logger) -> None:
        self._authenticate = authenticate
        self._log = log
        self._states: dict[bytes, AuthState] = {}

    def permit(self, needs: Needs, question: tuple[str, bool, str, bytes], may_yield: bool) -> bool:
        """Returns True if the answer to the question, the arguments of `authenticate`, permits a request with these
        needs; False also if no server answers. Yields; without `may_yield`, raises WouldYield where it would."""
        key = sha256(repr(question).encode()).digest()
        state = self._states.get(key)
        publishes = needs.topic_role == "publish"
        if not may_yield and (state is None or state.expired or not (publishes and state.knows(needs.topic, ""))):
            raise WouldYield
        if state is None or state.expired:
            try:
                state = self._authenticate(*question)
            except AuthError as error:
                self._log.warn("HTTP: [%s] AUTH failed %s", question[0], error)
                return False
            if len(self._states) >= MAX_STATES:
                self._states.clear()
            self._states[key] = state
        return state.allows(needs.topic, "") if publishes else state.allows_reading(needs.topic, needs.channel)


class Tokens:
    """The tokens and common names of files, each given as `role:path`; raises StartError if one cannot be used. `names`
    are further ones. Without `verified` certificates, files may have no common names."""

    def __init__(self, sources: Sequence[str], log: Logger, names: Names = (), *, verified: bool = True) -> None:
        self._log = log
        self._names = names
        roles_and_paths = [_role_and_rest("--http-auth-token-file", source) for source in sources]
        self._files = [_TokenFile(role, path, verified) for role, path in roles_and_paths]
        self._checked = monotonic()
        for file in self._files:
            try:
                file.read()
            except (OSError, ValueError) as error:
                raise StartError(f"failed to read HTTP tokens - {file.path}: {reason_of(error)}") from error

    def role(self, authorization: bytes) -> Role:
        """Returns the daemon's role of the token in a header, which may be empty."""
        return max((grant.role for grant in self.grants(_token_of(authorization))), default=Role.ANYBODY)

    def grants(self, token: bytes) -> list[Grant]:
        """Returns what each line with the token grants; nothing for b""."""
        if monotonic() - self._checked >= CHECK_SECONDS:
            self._check()
        digest = sha256(token).digest()
        return [grant for file in self._files for known, grant in file.tokens if compare_digest(known, digest)]

    def grants_of_name(self, name: str) -> list[Grant]:
        """Returns what is granted to clients whose certificate has this common name; nothing for ""."""
        files = (self._names, *(file.names for file in self._files))
        return [grant for names in files for known, grant in names if known == name]

    def _check(self) -> None:
        self._checked = monotonic()
        for file in self._files:
            try:
                if file.changed():
                    file.read()
                    self._log.info("HTTP: read %d tokens from %s", len(file.tokens), file.path)
            except (OSError, ValueError) as error:
                if file.complaint != reason_of(error):
                    file.complaint = reason_of(error)
                    self._log.error("HTTP: the tokens of %s stay as they were - %s", file.path, file.complaint)


@dataclass(eq=False)
class _TokenFile:
    """The tokens, by their digests, and common names of one file. `role` is that of lines without roles; `complaint` is
    the last error logged for it."""

    role: Role
    path: str
    verified: bool
    tokens: Sequence[tuple[bytes, Grant]] = ()
    names: Names = ()
    complaint: str = ""
    _signature: tuple[int, ...] = ()

    def changed(self) -> bool:
        """Returns True if it must be read again; raises OSError."""
        return signature(self.path) not in ((), self._signature)

    def read(self) -> None:
        """Reads the tokens; raises OSError, ValueError."""
        read = signature(self.path)
        data = read_config_file(self.path, MAX_FILE)
        tokens: list[tuple[bytes, Grant]] = []
        names: list[tuple[str, Grant]] = []
        for number, line in enumerate(data.splitlines(), 1):
            word, *roles = line.split() or [b""]
            try:
                grant = _parse_roles(roles) if roles else Grant(self.role)
                if word.startswith(b"cn=") and len(word) > 3:
                    if not self.verified:
                        raise ValueError(f"has a common name, which needs {_VERIFY}")
                    names.append((word[3:].decode("utf-8", "surrogateescape"), grant))
                elif _TOKEN.fullmatch(word):
                    tokens.append((sha256(word).digest(), grant))
                elif word:
                    raise ValueError("is not a token: 16 or more of A-Z a-z 0-9 . _ ~ + / -")
            except ValueError as error:
                raise ValueError(f"line {number} {error}") from error
        if not (tokens or names):
            raise ValueError("there is no token")
        self.tokens, self.names = tokens, names
        self.complaint = ""
        self._signature = read


def _parse_roles(words: list[bytes]) -> Grant:
    """Returns what `ROLE:PATTERN` grant; raises ValueError. `read` of all topics is that of the daemon as well."""
    roles = []
    for word in words:
        role, _, pattern = word.decode("latin-1").partition(":")
        if role not in _TOPIC_ROLES or not is_valid_name(pattern.replace("*", "x")):
            text = "has a role other than read:TOPIC, publish:TOPIC or manage:TOPIC, where TOPIC may contain *"
            raise ValueError(text)  # without the word, which may be a token
        roles.append((role, pattern))
    reads_all = any(role != "publish" and pattern == "*" for role, pattern in roles)
    return Grant(Role.READ if reads_all else Role.ANYBODY, roles)


def _role_and_rest(flag: str, text: str) -> tuple[Role, str]:
    name, _, rest = text.partition(":")
    if name not in _ROLES or not rest:
        raise StartError(f"{flag} must begin with read: or full:, not {quote(text)}")
    return _ROLES[name], rest


def parse_common_names(texts: Sequence[str], policy: str) -> Names:
    """Returns what `--http-auth-common-name` grants, with this `--tls-client-auth-policy`; raises StartError."""
    flag = "--http-auth-common-name"
    roles_and_names = [_role_and_rest(flag, text) for text in texts]
    if roles_and_names and policy != _VERIFYING:
        raise StartError(f"{flag} needs {_VERIFY}")
    return [(name, Grant(role)) for role, name in roles_and_names]


def build_guard(options: Options, router: Router, log: Logger, authenticate: Authenticate | None) -> Guard:
    """Returns the guard that the options configure; raises StartError."""
    policy = options.tls_client_auth_policy
    names = parse_common_names(options.http_auth_common_names, policy)
    tokens = Tokens(options.http_auth_token_files, log, names, verified=policy == _VERIFYING)
    servers = None if authenticate is None or not options.http_auth_server else AuthServers(authenticate, log)
    return Guard(router, tokens, servers)
