"""Queries auth servers for a client's permissions (NSQD-COMPAT section 8).

Their regexes are matched by RE2 itself: in linear time, with bounded memory, for any input. Regexes are kept as text:
compiled, the answers of many clients would take much memory, and RE2's cache has the ones in use.
"""

import random
import re
from time import monotonic
from typing import NamedTuple
from urllib.parse import urlencode

import re2
from gevent import get_hub
from greenlet import getcurrent, greenlet

from gnsqd.cluster.http_client import GoHTTPClient
from gnsqd.gotext import Struct, decode_object, dumps, quote
from gnsqd.hub.cooperative import Turns
from gnsqd.shared.errors import AuthError, HTTPClientError

MAX_SECRET_SIZE = 64 * 1024  # no web server takes a longer URL
MAX_ANSWER_SIZE = 128 * 1024
MAX_REGEX_SIZE = 4096  # characters; it takes RE2 20 ms to refuse the worst that is so long
MAX_ALLOWED = 256  # names that an answer is known to allow: a client may send any number of others that match

PERMISSIONS = ("subscribe", "publish")

_AUTHORIZATION = Struct("auth.Authorization", {"topic": "string", "channels": "[]string", "permissions": "[]string"})
_STATE = Struct(
    "auth.State",
    {"ttl": "int", "authorizations": _AUTHORIZATION, "identity": "string", "identity_url": "string"},
)

# RE2's errors for a regex that it refuses, in the words of Go's regexp where they differ.
_REGEX_ERRORS = {
    "missing ]": "missing closing ]",
    "missing )": "missing closing )",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid repetition size": "invalid repeat count",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
    "trailing \\": "trailing backslash at end of expression",
    "pattern too large - compile failed": "expression too large",
}
_REGEX_OPTIONS = re2.Options()
_REGEX_OPTIONS.log_errors = False  # to stderr
_REGEX_OPTIONS.max_mem = 512 * 1024

_SHOWN = 1000  # characters of what one server did wrong

# Secrets in what is logged: the clients' in URLs, and passwords for auth servers.
_SECRETS = re.compile(r'(?<=[?&]secret=)[^&"]*|(?<=:)[^/:@"]*(?=@)')


class Authorization(NamedTuple):
    """Permissions for the channels of some topics, in an auth server's answer."""

    topic: str = ""
    channels: list[str] = []
    permissions: list[str] = []

    def validate(self, turns: Turns) -> None:
        """Raises ValueError for an unknown permission or an invalid regex."""
        for permission in self.permissions:
            if permission not in PERMISSIONS:
                raise ValueError(f"unknown permission {permission}")
        _compile("topic", self.topic)
        for channel in turns.over(self.channels):
            _compile("channel", channel)

    def allows(self, topic_name: str, channel_name: str, turns: Turns) -> bool:
        """Returns True if these names are permitted. Regexes may match anywhere; publishing uses the channel ""."""
        return (
            ("subscribe" if channel_name else "publish") in self.permissions
            and _matches(self.topic, topic_name)
            and any(_matches(channel, channel_name) for channel in turns.over(self.channels))
        )


def _matches(pattern: str, name: str) -> bool:
    return re2.compile(pattern, _REGEX_OPTIONS).search(name) is not None


def _compile(what: str, pattern: str) -> None:
    try:
        if len(pattern) > MAX_REGEX_SIZE:
            raise re2.error(b"pattern too large - compile failed")
        re2.compile(pattern, _REGEX_OPTIONS)
    except re2.error as error:
        code, _, argument = error.args[0].decode("utf-8", "backslashreplace").partition(": ")
        text = f"error parsing regexp: {_REGEX_ERRORS.get(code, code)}: `{argument}`"
        raise ValueError(f"unable to compile {what} {quote(pattern)} {text}") from None


class AuthState:
    """An auth server's answer about one client."""

    def __init__(self, identity: str, identity_url: str, authorizations: list[Authorization], ttl: int) -> None:
        self.identity = identity
        self.identity_url = identity_url
        self.permission_count = len(authorizations)
        self._authorizations = authorizations
        self._expires = monotonic() + ttl
        self._allowed: set[tuple[str, str]] = set()

    @property
    def expired(self) -> bool:
        return monotonic() > self._expires

    def knows(self, topic_name: str, channel_name: str) -> bool:
        """Returns True if `allows` has allowed these names before; then it does not yield."""
        return (topic_name, channel_name) in self._allowed

    def allows(self, topic_name: str, channel_name: str) -> bool:
        """Returns True if the client may use these names. Yields when it takes long."""
        names = (topic_name, channel_name)
        if names not in self._allowed:
            turns = Turns()
            if not any(each.allows(*names, turns) for each in turns.over(self._authorizations)):
                return False
            if len(self._allowed) >= MAX_ALLOWED:
                self._allowed.clear()
            self._allowed.add(names)
        return True

    def allows_reading(self, topic_name: str, channel_name: str) -> bool:
        """Returns True if the client may subscribe to this channel or, without a name, to any channel of the topic.
        Yields when it takes long."""
        turns = Turns()
        return any(
            each.allows(topic_name, channel_name, turns)
            if channel_name
            else "subscribe" in each.permissions and _matches(each.topic, topic_name)
            for each in turns.over(self._authorizations)
        )


class Auth:
    """Asks the servers at `addresses`: `host:port`, or URLs. `method` is get or post."""

    def __init__(self, addresses: list[str], http: GoHTTPClient, method: str = "get") -> None:
        self._addresses = addresses
        self._method = method
        self._http = http
        self._pending: set[greenlet] = set()
        self._stopped = False

    def query(self, remote_ip: str, tls: bool, common_name: str, secret: bytes) -> AuthState:
        """Returns the first valid answer of a server, starting at a random one; raises AuthError. Yields."""
        if self._stopped:
            raise AuthError("exiting")
        if len(secret) > MAX_SECRET_SIZE:
            raise AuthError(f"secret too big {len(secret)} > {MAX_SECRET_SIZE}")
        text = secret.decode("utf-8", "surrogateescape")
        fields = {"common_name": common_name, "remote_ip": remote_ip, "secret": text, "tls": str(tls).lower()}
        asking = getcurrent()
        self._pending.add(asking)
        errors = []
        start = random.randrange(len(self._addresses))
        try:
            for address in self._addresses[start:] + self._addresses[:start]:
                url = address if "://" in address else f"http://{address}/auth"
                try:
                    if self._method == "post":
                        data = dumps({name: [value] for name, value in fields.items()}).encode()
                        return parse_answer(self._http.request(url, data))
                    return parse_answer(self._http.request(f"{url}?{urlencode(fields, errors='surrogateescape')}"))
                except (HTTPClientError, ValueError) as error:
                    errors.append(_sanitize(f"failed to auth against {address} - {error}"))
        finally:
            self._pending.discard(asking)
        raise AuthError("; ".join(errors))

    def stop(self) -> None:
        """Ends all requests: pending and later ones get an AuthError. Never yields."""
        self._stopped = True
        for asking in self._pending:
            get_hub().loop.run_callback(self._cancel, asking)

    def _cancel(self, asking: greenlet) -> None:
        if asking in self._pending:  # else it had its answer in the meantime, and does something else now
            asking.throw(AuthError("exiting"))


def parse_answer(body: bytes) -> AuthState:
    """Parses an answer; raises ValueError if it is invalid. Yields when it takes long."""
    fields = decode_object(body, _STATE)
    authorizations = [Authorization(**authorization) for authorization in fields.get("authorizations", [])]
    turns = Turns()
    for authorization in turns.over(authorizations):
        authorization.validate(turns)
    ttl = fields.get("ttl", 0)
    if ttl <= 0:
        raise ValueError(f"invalid TTL {ttl} (must be >0)")
    return AuthState(fields.get("identity", ""), fields.get("identity_url", ""), authorizations, ttl)


def _sanitize(text: str) -> str:
    """Returns one line for the log, of bounded length, without secrets."""
    text = _SECRETS.sub("***", text)[:_SHOWN]
    return text if text.isprintable() else quote(text)
