"""The HTTP APIs of nsqd and nsqlookupd: their JSON as msgspec structs, and a method for each endpoint.

All methods may raise NodeError.

Fields of structs have the names of the JSON keys, so that one declaration serves reading, totals and the output of
`--json`. Unknown keys are skipped: newer daemons may send more, and a node cannot make objects of them. A missing key
without a default, or one of another type, means that this is another program; the error has the path of the value.
"""

import email.utils
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from functools import cache, partial
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from msgspec import DecodeError, Meta, Struct, ValidationError, defstruct
from msgspec.json import Decoder
from msgspec.structs import force_setattr, replace

from gnsqd.shared.errors import reason_of
from gnsqd.shared.statistics import ChannelFigures, TopicFigures
from nsqadmin_cli.budget import TooLarge, present_allowance
from nsqadmin_cli.http_client import Address, NodeClient, NodeError, NodeLacks, NodeRefused, timed_out

T = TypeVar("T")

Count = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]  # Python has larger integers, but no float for each of them
Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Age = Annotated[float, Meta(ge=0, le=2**63)]  # seconds

if TYPE_CHECKING:
    Rows = tuple[T, ...]
else:
    Rows = tuple[T, ...] | None  # Go encodes a nil list as null; see _Lists


class _Lists(Struct, frozen=True, gc=False):
    """A base of structs with `lists`, which are empty if they were null."""

    lists: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name in self.lists:
            if getattr(self, name) is None:
                force_setattr(self, name, ())


class Percentile(Struct, frozen=True, gc=False):
    """The end-to-end processing latency in ns that the fraction `quantile` of messages does not exceed."""

    quantile: float
    value: float


class Latency(_Lists, frozen=True, gc=False):
    """End-to-end processing latency; no percentiles if the daemon does not measure them."""

    lists = ("percentiles",)

    count: Count = 0
    percentiles: Rows[Percentile] = ()


class ClientCounts(Struct, frozen=True, gc=False):
    """One connection, as a consumer of a channel or as a producer. The page's API has what is `hidden` in --json."""

    hidden: ClassVar = ("auth_identity_url", "tls_cipher_suite", "tls_version", "tls_negotiated_protocol",
        "tls_negotiated_protocol_is_mutual")  # fmt: skip

    client_id: str
    hostname: str
    remote_address: str
    version: str
    user_agent: str
    state: Count
    ready_count: Count
    in_flight_count: Count
    message_count: Count
    finish_count: Count
    requeue_count: Count
    connect_ts: Count  # unix seconds
    sample_rate: Count
    deflate: bool
    snappy: bool
    tls: bool = False
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    tls_cipher_suite: str = ""
    tls_version: str = ""
    tls_negotiated_protocol: str = ""
    tls_negotiated_protocol_is_mutual: bool = False

    @property
    def name(self) -> str:
        """Returns what it calls itself, or else its address: both names of an IDENTIFY may be empty."""
        return self.client_id or self.hostname or self.remote_address

    @property
    def full_name(self) -> str:
        return self.name if self.name == self.remote_address else f"{self.name} ({self.remote_address})"


class IdlePlan(Struct, frozen=True, gc=False):
    """The `policy` that gnsqd carries out in `left` ns on a channel that had no consumer for `time` ns."""

    policy: str
    time: Count
    left: Count


if TYPE_CHECKING:

    class _TopicFigures(TopicFigures, _Lists, frozen=True): ...

    class _ChannelFigures(ChannelFigures, Struct, frozen=True): ...
else:

    def _struct_of(figures: type, base: type) -> type:
        """Returns a base with a field for each figure, in their order."""
        rows = ((row.name, Count if row.type is int else row.type, row.default) for row in fields(figures))
        declared = [row[:2] if row[2] is MISSING else row for row in rows]
        return defstruct(f"_{figures.__name__}", declared, bases=(base,), frozen=True, gc=False)

    _TopicFigures, _ChannelFigures = _struct_of(TopicFigures, _Lists), _struct_of(ChannelFigures, Struct)


class ChannelStats(_ChannelFigures, frozen=True, gc=False):
    """One channel: of one node, or summed over several."""

    hidden: ClassVar = ("finish_count", "idle")

    e2e_processing_latency: Latency = Latency()
    clients: tuple[ClientCounts, ...] | None = None  # None: not asked for, and in sums
    finish_count: Count | None = None  # None: nsqd does not have it; in sums
    idle: IdlePlan | None = None  # None: nothing will be done; in sums
    oldest_message_age_seconds: Age | None = None  # None: no message is queued, or it is of nsqd


class TopicStats(_TopicFigures, frozen=True, gc=False):
    """One topic with its channels: of one node, or summed over several."""

    lists = ("channels",)

    e2e_processing_latency: Latency = Latency()
    channels: Rows[ChannelStats] = ()
    oldest_message_age_seconds: Age | None = None  # as of a channel, without its channels' messages


class ProcessStats(Struct, frozen=True, gc=False):
    """The process of a gnsqd, and the disk of its data: 0 bytes if it cannot query that. `log_store_lag_bytes` of its
    log are not yet in the object store, the oldest since `log_store_lag_seconds`; 0 without --log-store. `certificates`
    has when each file of them expires, in Unix seconds."""

    cpu_seconds: float  # since its start
    memory_bytes: Natural
    connection_count: Natural
    disk_bytes: Natural = 0
    free_disk_bytes: Natural = 0
    log_store_lag_seconds: Age = 0.0
    log_store_lag_bytes: Natural = 0
    certificates: dict[str, Annotated[float, Meta(ge=-(2**63), le=2**63)]] = {}

    @property
    def is_low_on_disk(self) -> bool:
        """Returns True below 10 % of the disk, or below 10 GB of a large one: there, 10 % last for long."""
        return self.free_disk_bytes < min(0.1 * self.disk_bytes, 10e9)


Connection = tuple[str, str, str, int]  # topic, channel, remote address, time of connecting


class NodeStats(_Lists, frozen=True, gc=False):
    lists = ("topics",)
    hidden: ClassVar = ("moment", "process")

    version: str
    health: str  # "OK" or "NOK - {error}"
    start_time: Count  # unix seconds
    topics: Rows[TopicStats]
    producers: tuple[ClientCounts, ...] | None = None  # None: not asked for
    moment: float = 0.0  # of the answer, by time.monotonic()
    process: ProcessStats | None = None  # None: nsqd does not report it

    def channels(self) -> Iterator[tuple[str, ChannelStats]]:
        """Returns each channel and the name of its topic."""
        return ((topic.topic_name, channel) for topic in self.topics for channel in topic.channels)

    def connections(self) -> dict[Connection, ClientCounts]:
        """Returns the consumers, by the identity of their connection."""
        return {
            (topic, channel.channel_name, client.remote_address, client.connect_ts): client
            for topic, channel in self.channels()
            for client in channel.clients or ()
        }


class Info(Struct, frozen=True, gc=False):
    """`/info` of one nsqd. The port is -1 for a unix socket."""

    tcp_port: Count
    http_port: Count = 0
    broadcast_address: str = ""
    hostname: str = ""
    version: str = ""


class Listing(Struct, frozen=True, gc=False):
    """One nsqd as an nsqlookupd knows it; `topics` and `tombstones` are parallel, and empty in an answer of /lookup."""

    remote_address: str
    hostname: str
    broadcast_address: str
    tcp_port: Count
    http_port: Count
    version: str
    topics: tuple[str, ...] = ()
    tombstones: tuple[bool, ...] = ()

    @property
    def name(self) -> str:
        """Returns the name of the node in tombstones: {broadcast address}:{HTTP port}."""
        return f"{self.broadcast_address}:{self.http_port}"

    @property
    def http_address(self) -> Address:
        """ValueError if it is invalid."""
        host = self.broadcast_address
        return Address.parse(f"[{host}]:{self.http_port}" if ":" in host else self.name)


class _Topics(Struct, frozen=True, gc=False):
    topics: tuple[str, ...]


class _Channels(Struct, frozen=True, gc=False):
    channels: tuple[str, ...]


class _Producers(Struct, frozen=True, gc=False):
    producers: tuple[Listing, ...]


class NonemptyQueue(Struct, frozen=True, gc=False):
    """A queue with messages; `channel` is "" for a topic's own, `remark` the reason if it is not consumed."""

    topic: str
    channel: str
    messages: Count
    remark: str

    def __str__(self) -> str:
        name = f"{self.topic}:{self.channel}" if self.channel else self.topic
        return f"{name} {self.messages:,}{f' ({self.remark})' if self.remark else ''}"


class DrainState(Struct, frozen=True, gc=False):
    """A drain as gnsqd has it; `remaining` ns are left until it exits in any case. `holding`: the fullest queues."""

    draining: bool
    remaining: Natural
    messages: Natural
    holding: tuple[NonemptyQueue, ...]


def located(producers: Iterable[Listing]) -> Iterator[tuple[Address, Listing]]:
    """Returns the producers whose HTTP address is valid; Cluster.nsqds reports the others."""
    for producer in producers:
        with suppress(ValueError):
            yield producer.http_address, producer


_decoders: Callable[[Any], Decoder[Any]] = cache(Decoder)
_one_at_a_time = threading.Lock()


_VALUE_BYTES = 100  # that a value and its part of a struct take at most, in a list of strings or of percentiles
_USUAL = 6  # times its text that an answer takes by this count; statistics of nsqd that are all 0 have 5


def _decoded(kind: type[T], parts: Iterator[bytes]) -> T:
    """Returns the struct of this type that is in the parts of an answer. The moment of statistics is when their
    beginning came."""
    text = bytearray(next(parts, b""))
    arrived = time.monotonic()
    allowance, charged = present_allowance(), 0
    try:
        for part in parts:
            text += part
            # Short values take many times their text as objects; what exceeds the usual is charged as if it were text.
            if (excess := _VALUE_BYTES * part.count(b",") - _USUAL * len(part)) > 0:
                charged += excess
                allowance.take(excess)
    except TooLarge as error:  # of the text or of the values, as it happens
        raise TooLarge("answered too many short values") if charged > len(text) else error from None
    with _one_at_a_time:  # two threads that make msgspec look at the same struct for the first time crash it
        decoder: Decoder[T] = _decoders(kind)
    answer = decoder.decode(text)
    return replace(answer, moment=arrived) if isinstance(answer, NodeStats) else answer


Action = Literal["create", "delete", "empty", "pause", "unpause"]
Query = Mapping[str, str] | None
# By the code or status of a NodeRefused: the reason of a NodeError that is raised instead, or another error.
Reasons = Mapping[str, str | Exception] | None


class PeerAPI:
    """One daemon with an HTTP API; `program` is its name."""

    program = ""
    _elsewhere = ""  # a path that only daemons of the other kind have
    _mistake = ""  # what is wrong when this one has it

    def __init__(self, address: Address, http: NodeClient) -> None:
        self.address = address
        self.timeout = http.timeout  # seconds for a whole answer
        self.slow = http.slow
        self._http = http

    def __str__(self) -> str:
        return str(self.address)

    @property
    def limit(self) -> float:
        """Seconds after which it is not waited for, as it did not answer in time before."""
        return self._http.quick if self.address in self.slow else inf

    def request(
        self, method: str, path: str, body: bytes | None = None, *, query: Query = None, reasons: Reasons = None
    ) -> bytes:
        return self.read(method, path, body, query, reasons, b"".join)

    def read(
        self,
        method: str,
        path: str,
        body: bytes | None,
        query: Query,
        reasons: Reasons,
        read: Callable[[Iterator[bytes]], T],
    ) -> T:
        """Returns what `read` makes of the parts of that body."""
        # Names from a command line may be any bytes, which Python carries as surrogates.
        target = f"{path}?{urllib.parse.urlencode(query, errors='surrogateescape')}" if query else path
        try:
            answer: T = self._http.answer(self.address, method, target, body, program=self.program, read=read)[1]
            return answer
        except NodeRefused as error:
            failure: Exception = error
            if error.code == "NOT_FOUND":
                with suppress(NodeError):
                    self._http.answer(self.address, "GET", self._elsewhere, program=self.program)
                    failure = NodeError(self.program, self.address, self._mistake)
            known = (reasons or {}).get(error.code) or (reasons or {}).get(str(error.status))
            if known and failure is error:
                kind = NodeLacks if error.code == "NOT_FOUND" else NodeError
                failure = kind(self.program, self.address, known) if isinstance(known, str) else known
            raise failure from None

    def ask(self, path: str, kind: type[T], query: Query = None, method: str = "GET", reasons: Reasons = None) -> T:
        """Returns the JSON at `path` as a struct of this type."""
        try:
            return self.read(method, path, None, query, reasons, partial(_decoded, kind))
        except ValidationError as error:
            reason = f"answered JSON that is not an {self.program}'s: {error}"
        except (DecodeError, ValueError, RecursionError):  # the first is not a ValueError before msgspec 0.22
            reason = f"answered something that is not JSON; is this the HTTP address of an {self.program}?"
        raise NodeError(self.program, self.address, reason)

    def act(self, action: Action, topic: str, channel: str = "") -> None:
        """Performs an operation on a topic or channel; nsqlookupds only create and delete. NodeRefused if missing,
        codes TOPIC_NOT_FOUND and CHANNEL_NOT_FOUND; to delete an unknown topic at an nsqlookupd is not an error."""
        query = {"topic": topic} | ({"channel": channel} if channel else {})
        self.request("POST", f"/{'channel' if channel else 'topic'}/{action}", query=query)

    def clock_ahead(self) -> tuple[float, float] | None:
        """Returns lower and upper bound of how many seconds its clock is ahead of this machine's; None if unknown."""
        asked = time.time()
        headers, _ = self._http.answer(self.address, "GET", "/ping", program=self.program)
        answered = time.time()
        try:
            date = email.utils.parsedate_to_datetime(headers.get("Date", "")).timestamp()
        except (ValueError, OverflowError):
            return None
        return date - answered, date + 1 - asked  # the header has whole seconds


class Nsqd(PeerAPI):
    """One nsqd, ours or the real one."""

    program = "nsqd"
    _elsewhere = "/nodes"
    _mistake = "it is an nsqlookupd; name it with --lookupd-http-address"

    def tcp_address(self) -> tuple[str, int]:
        """Returns the TCP address of this node, on the host of its HTTP address, which this machine can reach."""
        port = self.ask("/info", Info).tcp_port
        if port < 1:
            raise NodeError(self.program, self.address, "does not have a TCP port, only a unix socket")
        return self.address.host or "127.0.0.1", port

    def try_tcp(self, port: int) -> None:
        """Connects to this TCP port of its host, as a consumer would. Raises NodeError."""
        try:
            with socket.create_connection((self.address.host, port), self.timeout) as sock:
                sock.sendall(b"  V2")  # else nsqd would log an error
        except (OSError, OverflowError) as error:
            reason = timed_out(self.timeout) if isinstance(error, TimeoutError) else reason_of(error)
            raise NodeError(self.program, self.address, f"TCP port {port}: {reason}") from None

    def stats(self, *, topic: str = "", channel: str = "", clients: bool = False) -> NodeStats:
        """Returns topics and channels, all or those of the given names (an empty name does not filter)."""
        query = {"format": "json", "include_clients": str(clients).lower(), "include_mem": "false"}
        query |= dict.fromkeys(("include_finished", "include_ages", "include_process"), "true")
        query |= {"topic": topic, "channel": channel}
        return self.ask("/stats", NodeStats, query)

    def daemon(self) -> str:
        """Returns `gnsqd` and its version, or `nsqd`, from the "built with" line of its text statistics."""
        query = {"format": "text", "include_clients": "false", "include_mem": "false", "topic": "-"}
        first, _, _ = self.request("GET", "/stats", query=query).partition(b"\n")
        match = re.search(rb"\(built w/gnsqd-([0-9A-Za-z.]{1,20})-", first)
        return f"gnsqd {match[1].decode()}" if match else "nsqd"

    def dropped(self) -> dict[tuple[str, str], int]:
        """Returns the messages that each topic, with "" as channel, and each channel has dropped; none of the real
        nsqd, which does not count them."""
        try:
            page = self.request("GET", "/metrics")
        except NodeRefused:
            return {}
        dropped = {}
        lines = rb"^gnsqd_\w+_dropped_messages_total\{(.*)\} (\d[\d.]{,20}(?:e\+\d\d)?)$"
        for labels, count in re.findall(lines, page, re.MULTILINE):
            names = dict(re.findall(r'(topic|channel)="([^"]*)"', labels.decode("utf-8", "replace")))
            dropped[names.get("topic", ""), names.get("channel", "")] = int(float(count))
        return dropped

    def publish(self, topic: str, bodies: Sequence[bytes], *, defer_ms: int = 0) -> None:
        """Publishes all of `bodies`, which may contain any bytes, or none of them. Only one alone can be deferred."""
        if len(bodies) == 1:
            query = {"topic": topic} | ({"defer": str(defer_ms)} if defer_ms else {})
            self.request("POST", "/pub", bodies[0], query=query)
            return
        parts = [len(bodies).to_bytes(4, "big"), *(len(body).to_bytes(4, "big") + body for body in bodies)]
        self.request("POST", "/mpub", b"".join(parts), query={"topic": topic, "binary": "true"})

    def config(self, option: str, value: str | None = None, reasons: Reasons = None) -> str:
        """Returns the value of an option by its config key, as nsqd writes it: plain text or JSON. Changes it before if
        a new `value` is given. Codes INVALID_OPTION and INVALID_VALUE."""
        method, body = ("GET", None) if value is None else ("PUT", value.encode("utf-8", "surrogateescape"))
        path = f"/config/{urllib.parse.quote(option, safe='')}"
        return self.request(method, path, body, reasons=reasons).decode("utf-8", "replace")

    def drain(self, method: Literal["GET", "POST", "DELETE"] = "GET") -> DrainState:
        """Queries, starts or cancels a drain, which only gnsqd supports."""
        reasons = {"404": "cannot drain: only gnsqd can", "EXITING": "is already exiting"}
        return self.ask("/drain", DrainState, None, method, reasons=reasons)


class Lookupd(PeerAPI):
    program = "nsqlookupd"
    _elsewhere = "/stats?topic=-"
    _mistake = "it is an nsqd; name it with --nsqd-http-address"

    def topics(self) -> tuple[str, ...]:
        return self.ask("/topics", _Topics).topics

    def channels(self, topic: str) -> tuple[str, ...]:
        return self.ask("/channels", _Channels, {"topic": topic}).channels

    def lookup(self, topic: str) -> tuple[Listing, ...]:
        """Returns the nodes that consumers of a topic are sent to, without tombstoned ones. Code TOPIC_NOT_FOUND; gnsqd
        in dev mode does not create the topic for it."""
        query = {"topic": topic, "create": "false"}
        return self.ask("/lookup", _Producers, query).producers

    def nodes(self) -> tuple[Listing, ...]:
        """Returns all active nodes, also tombstoned ones."""
        return self.ask("/nodes", _Producers).producers

    def tombstone(self, topic: str, node: str) -> None:
        """Hides a node, `{broadcast address}:{HTTP port}`, from consumers of a topic; it may be unknown."""
        self.request("POST", "/topic/tombstone", query={"topic": topic, "node": node})
