"""The HTTP APIs of nsqd and nsqlookupd: a method for each endpoint. All may raise NodeError."""

import email.utils
import json
import re
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from nsqadmin_cli.address import Address
from nsqadmin_cli.http_client import HTTPClient, NodeError, Refused
from nsqadmin_cli.models import Info, ModelError, NodeStats, Producer, strings

T = TypeVar("T")

Action = Literal["create", "delete", "empty", "pause", "unpause"]


class Peer:
    """One daemon with an HTTP API; `program` is its name."""

    program = ""
    _elsewhere = ""  # a path that only daemons of the other kind have
    _mistake = ""  # what is wrong when this one has it

    def __init__(self, address: Address, http: HTTPClient) -> None:
        self.address = address
        self._http = http

    def __str__(self) -> str:
        return str(self.address)

    @property
    def timeout(self) -> float:
        """Timeout in seconds for a whole answer."""
        return self._http.timeout

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        query: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> bytes:
        """The body of a 200 answer; `timeout` in seconds, if it differs from the default."""
        # Names from a command line may be any bytes, which Python carries as surrogates.
        target = f"{path}?{urllib.parse.urlencode(query, errors='surrogateescape')}" if query else path
        try:
            return self._http.request(self.address, method, target, body, program=self.program, timeout=timeout)
        except Refused as error:
            if error.code == "NOT_FOUND" and self._is_another():
                raise NodeError(self.program, self.address, self._mistake) from None
            raise

    def _is_another(self) -> bool:
        try:
            self._http.request(self.address, "GET", self._elsewhere, program=self.program)
        except NodeError:
            return False
        return True

    def ask(self, path: str, read: Callable[[object], T], query: Mapping[str, str] | None = None) -> T:
        """The JSON at `path`, parsed by `read`, whose ModelError becomes a NodeError."""
        return self._read(self.request("GET", path, query=query), read)

    def _read(self, body: bytes, read: Callable[[object], T]) -> T:
        try:
            return read(json.loads(body))
        except ModelError as error:
            reason = f"answered JSON that is not an {self.program}'s: {error}"
            raise NodeError(self.program, self.address, reason) from None
        except (ValueError, RecursionError):
            reason = f"answered something that is not JSON; is this the HTTP address of an {self.program}?"
            raise NodeError(self.program, self.address, reason) from None

    def ping(self) -> str:
        """`OK`; an unhealthy daemon answers 500, which is a Refused."""
        return self.request("GET", "/ping").decode("utf-8", "replace").strip()

    def clock_ahead(self) -> tuple[float, float] | None:
        """Lower and upper bound of how many seconds its clock is ahead of this machine's; None if unknown."""
        asked = time.time()
        headers, _ = self._http.answer(self.address, "GET", "/ping", program=self.program)
        answered = time.time()
        try:
            told = email.utils.parsedate_to_datetime(headers.get("Date", "")).timestamp()
        except (ValueError, OverflowError):
            return None
        return told - answered, told + 1 - asked  # the header has whole seconds


class Nsqd(Peer):
    """One nsqd, ours or the real one."""

    program = "nsqd"
    _elsewhere = "/nodes"
    _mistake = "it is an nsqlookupd; name it with --lookupd-http-address"

    def info(self) -> Info:
        return self.ask("/info", Info.from_json)

    def tcp_address(self) -> tuple[str, int]:
        """The TCP address of this node, on the host of its HTTP address, which this machine can reach."""
        info = self.info()
        if info.tcp_port < 1:
            raise NodeError(self.program, self.address, "does not have a TCP port, only a unix socket")
        return self.address.host or "127.0.0.1", info.tcp_port

    def stats(self, *, topic: str = "", channel: str = "", clients: bool = False) -> NodeStats:
        """Topics and channels, all or those of the given names (an empty name does not filter)."""
        query = {
            "format": "json",
            "include_clients": str(clients).lower(),
            "include_mem": "false",
            "topic": topic,
            "channel": channel,
        }
        body = self.request("GET", "/stats", query=query)
        moment = time.monotonic()  # before the document is parsed, which takes long for many nodes together
        return self._read(body, lambda data: NodeStats.from_json(data, moment))

    def daemon(self) -> str:
        """`gnsqd` and its version, or `nsqd`, from the "built with" line of its text statistics."""
        query = {"format": "text", "include_clients": "false", "include_mem": "false", "topic": "-"}
        first, _, _ = self.request("GET", "/stats", query=query).partition(b"\n")
        match = re.search(rb"\(built w/gnsqd-([0-9A-Za-z.]{1,20})-", first)
        return f"gnsqd {match[1].decode()}" if match else "nsqd"

    def topic(self, action: Action, topic: str) -> None:
        """Perform an operation on a topic. Except for "create", a missing topic is Refused, code TOPIC_NOT_FOUND."""
        self.request("POST", f"/topic/{action}", query={"topic": topic})

    def channel(self, action: Action, topic: str, channel: str) -> None:
        """Perform an operation on a channel; codes TOPIC_NOT_FOUND and CHANNEL_NOT_FOUND."""
        self.request("POST", f"/channel/{action}", query={"topic": topic, "channel": channel})

    def pub(self, topic: str, body: bytes, *, defer_ms: int = 0) -> None:
        self.request("POST", "/pub", body, query={"topic": topic} | ({"defer": str(defer_ms)} if defer_ms else {}))

    def mpub(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Publish all of `bodies`, which may contain any bytes, or none of them."""
        parts = [len(bodies).to_bytes(4, "big")]
        for body in bodies:
            parts += [len(body).to_bytes(4, "big"), body]
        self.request("POST", "/mpub", b"".join(parts), query={"topic": topic, "binary": "true"})

    def get_config(self, option: str) -> str:
        """The value of an option by its config key, as nsqd writes it: plain text or JSON. Code INVALID_OPTION."""
        return self.request("GET", f"/config/{urllib.parse.quote(option, safe='')}").decode("utf-8", "replace")

    def set_config(self, option: str, value: str) -> str:
        """Change an option; returns the new value. Codes INVALID_OPTION and INVALID_VALUE."""
        target = f"/config/{urllib.parse.quote(option, safe='')}"
        return self.request("PUT", target, value.encode("utf-8", "surrogateescape")).decode("utf-8", "replace")

    def drain(self, method: Literal["GET", "POST", "DELETE"]) -> dict[str, Any]:
        """Query, start or cancel a drain. Only gnsqd supports this; other daemons answer 404, a Refused."""

        def read(data: object) -> dict[str, Any]:
            if not isinstance(data, dict) or not isinstance(data.get("draining"), bool):
                raise ModelError("it is not a state of a drain")
            return data

        return self._read(self.request(method, "/drain"), read)


class Lookupd(Peer):
    """One nsqlookupd."""

    program = "nsqlookupd"
    _elsewhere = "/stats?topic=-"
    _mistake = "it is an nsqd; name it with --nsqd-http-address"

    def topics(self) -> tuple[str, ...]:
        return self.ask("/topics", lambda data: strings(data, "topics"))

    def channels(self, topic: str) -> tuple[str, ...]:
        """Empty for unknown topics."""
        return self.ask("/channels", lambda data: strings(data, "channels"), {"topic": topic})

    def lookup(self, topic: str) -> tuple[Producer, ...]:
        """The nodes that consumers of a topic are sent to, without tombstoned ones. Code TOPIC_NOT_FOUND."""
        return self.ask("/lookup", Producer.list_from_json, {"topic": topic})

    def nodes(self) -> tuple[Producer, ...]:
        """All active nodes, also tombstoned ones."""
        return self.ask("/nodes", Producer.list_from_json)

    def topic(self, action: Literal["create", "delete"], topic: str) -> None:
        """Deleting an unknown topic is not an error."""
        self.request("POST", f"/topic/{action}", query={"topic": topic})

    def channel(self, action: Literal["create", "delete"], topic: str, channel: str) -> None:
        """Code CHANNEL_NOT_FOUND for deleting an unknown one."""
        self.request("POST", f"/channel/{action}", query={"topic": topic, "channel": channel})

    def tombstone(self, topic: str, node: str) -> None:
        """Hide a node, `{broadcast address}:{HTTP port}`, from consumers of a topic; it may be unknown."""
        self.request("POST", "/topic/tombstone", query={"topic": topic, "node": node})
