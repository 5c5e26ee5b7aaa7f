"""The tables of options: every flag of nsqd and of nsqlookupd, its config key, default and help text.

A table is the body of a class, `Options` or `LookupdOptions`: a field is a row, `OPTIONS` and `LOOKUPD_OPTIONS` list
them in order of declaration. The parsers of the command line and the config file (`configuration`) and `/config/:opt`
read them and define nothing themselves. Facts: NSQD-COMPAT 1.2 to 1.4 and 6.3.
"""

import enum
import socket
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from gnsqd.gotext import format_float, parse_bool, quote
from gnsqd.log import Level
from gnsqd.shared.errors import StartError
from gnsqd.shared.names import is_ephemeral
from gnsqd.shared.record import Record

MILLISECOND = 1_000_000
SECOND = 1_000 * MILLISECOND
MINUTE = 60 * SECOND
_LONGEST = 1 << 62  # 146 years

TLS_NOT_REQUIRED = 0
TLS_REQUIRED_EXCEPT_HTTP = 1
TLS_REQUIRED = 2

BOUNDS = ("max_channel_depth", "max_topic_bytes", "message_ttl", "min_free_disk")
_NOT_NEGATIVE = (
    *(*BOUNDS, "retention_bytes", "retention_time", "max_defer_time", "channel_idle_timeout"),
    *("log_store_interval", "log_store_timeout", "log_store_retention"),
)
IDLE_POLICIES = ("pause", "empty", "delete", "none")
TOPOLOGY_AWARE = "topology-aware-consumption"
MOST_ATTEMPTS = 0xFFFF  # that are counted

# The values of --dev where flags and config file have none.
DEV: dict[str, Any] = {
    "embedded_lookupd_tcp_address": "0.0.0.0:4160",
    "embedded_lookupd_http_address": "0.0.0.0:4161",
    "admin_http_address": "127.0.0.1:4171",
    "lookup_creates_topics": True,
}
# The same for --demo: its poison messages become dead letters, and its channels can be rewound.
DEMO: dict[str, Any] = {"max_attempts": 3, "durability": "process", "retention_bytes": 1 << 20}

Check = tuple[bool, str]  # valid or not, and the text if not

TLS_VERSIONS = {"tls1.0": 769, "tls1.1": 770, "tls1.2": 771, "tls1.3": 772}


class Kind(enum.Enum):
    """The type of a value, and its syntax in flags and config file. Durations are nanoseconds."""

    STRING = enum.auto()
    INT = enum.auto()
    DURATION = enum.auto()
    BOOL = enum.auto()
    STRINGS = enum.auto()
    FLOATS = enum.auto()
    LOG_LEVEL = enum.auto()
    TLS_REQUIRED = enum.auto()
    TLS_VERSION = enum.auto()
    FRACTION = enum.auto()  # an element of FLOATS


class Option(NamedTuple):
    """One row of the table. A row that leaves out `flag`, `cfg` or `field` has forms of its name; an empty `flag` or
    `cfg` means not settable there. `field` is the name in nsqd's messages about bad config values. `reload` marks
    options that `PUT /config/:opt` may change, `ours` options that the real nsqd lacks."""

    name: str
    kind: Kind
    default: Any
    flag: str
    cfg: str
    field: str
    help: str
    reload: bool = False
    ours: bool = False
    choices: tuple[str, ...] = ()


# By the type of the default; durations and some other rows have their own.
_KINDS = {bool: Kind.BOOL, int: Kind.INT, str: Kind.STRING, list: Kind.STRINGS, Level: Kind.LOG_LEVEL}


def _row(default: Any, help: str = "", **columns: Any) -> Any:
    """Returns the columns of a row of `Options`."""
    return {"kind": _KINDS.get(type(default)), "default": default, "help": help} | columns


def _limit(what: str, ours: bool = True) -> Any:
    return _row(0, f"{what} (default 0, i.e., unlimited)", ours=ours)


def _allowed_origins() -> Any:
    text = "origin, such as https://ops.example.com, or *: its pages may use the HTTP API from a browser"
    return _row([], f"{text} (may be given multiple times)", flag="http-allow-origin", ours=True)


_duration = partial(_row, kind=Kind.DURATION)
_own = partial(_row, ours=True)
_own_duration = partial(_duration, ours=True)
_HOSTNAME = socket.gethostname()
_LOG_FORMAT: Any = _own(
    "text",
    choices=("text", "json"),
    help="format of the log: text, or json (an object for each line, with the topic, channel and client in its text)",
)


def _default_node_id(hostname: str) -> int:
    try:
        from _md5 import md5  # type: ignore[import-not-found]  # hashlib would load OpenSSL
    except ImportError:  # a Python built without it
        from hashlib import md5
    return zlib.crc32(md5(hostname.encode(), usedforsecurity=False).digest()) % 1024


class Options(Record):
    """The values the daemon runs with: `Options()` holds the defaults, keywords override them."""

    version: bool = _row(False, "print version string", cfg="")
    config: str = _row("", "path to config file", cfg="")
    log_level: Level = _row(Level.INFO, "set log verbosity: debug, info, warn, error, or fatal", reload=True)
    log_prefix: str = _row("[nsqd] ", "log message prefix")
    log_format: str = _LOG_FORMAT
    verbose: bool = _row(False, "[deprecated] has no effect, use --log-level", cfg="")
    node_id: int = _row(
        _default_node_id(_HOSTNAME),
        "unique part for message IDs, (int) in range [0,1024) (default is hash of hostname)",
        cfg="id",
        field="ID",
    )
    worker_id: bool = _row(False, "[deprecated] use --node-id", cfg="")

    tcp_address: str = _row(
        "0.0.0.0:4150", "address to listen on for TCP clients (<addr>:<port> for TCP/IP or <path> for unix socket)"
    )
    http_address: str = _row(
        "0.0.0.0:4151", "address to listen on for HTTP clients (<addr>:<port> for TCP/IP or <path> for unix socket)"
    )
    https_address: str = _row("0.0.0.0:4152", "<addr>:<port> to listen on for HTTPS clients")
    broadcast_address: str = _row(
        _HOSTNAME,
        "address that will be registered with lookupd (defaults to the OS hostname)"
        " [gnsqd: auto is the local address of the connection to each lookupd]",
    )
    broadcast_address_given: bool = _row(False, flag="", cfg="")  # neither the default nor auto
    broadcast_address_auto: bool = _row(False, flag="", cfg="")  # broadcast_address is the one registered last
    broadcast_tcp_port: int = _row(
        0, "TCP port that will be registered with lookupd (defaults to the TCP port that this nsqd is listening on)"
    )
    broadcast_http_port: int = _row(
        0, "HTTP port that will be registered with lookupd (defaults to the HTTP port that this nsqd is listening on)"
    )
    nsqlookupd_tcp_addresses: list[str] = _row(
        [], "lookupd TCP address (may be given multiple times)", flag="lookupd-tcp-address", reload=True
    )
    auth_http_addresses: list[str] = _row(
        [], "<addr>:<port> or a full url to query auth server (may be given multiple times)", flag="auth-http-address"
    )
    auth_http_request_method: str = _own("get", "HTTP method to use for auth server requests: get or post")
    http_client_connect_timeout: int = _duration(2 * SECOND, "timeout for HTTP connect")
    http_client_request_timeout: int = _duration(5 * SECOND, "timeout for HTTP request")

    topology_region: str = _own(
        "", "region of this nsqd, made up of one or more zones: its messages go to consumers in it first"
    )
    topology_zone: str = _own(
        "", "zone of this nsqd, a failure domain: its messages go to consumers in it before others"
    )
    experiments: list[str] = _own(
        [],
        "enable an experimental feature: topology-aware-consumption (may be given multiple times)",
        flag="enable-experiment",
        cfg="enable_experiment",
    )

    data_path: str = _row("", "path to store disk-backed messages")
    mem_queue_size: int = _row(10_000, "number of messages to keep in memory (per topic/channel)")
    max_bytes_per_file: int = _row(100 * 1024 * 1024, "number of bytes per diskqueue file before rolling")
    sync_every: int = _row(2500, "number of messages per diskqueue fsync")
    sync_timeout: int = _duration(2 * SECOND, "duration of time per diskqueue fsync")

    queue_scan_selection_count: int = _row(
        20,
        "number of channels to check per cycle (every 100ms) for in-flight and deferred timeouts"
        " [no effect in gnsqd: it checks each channel when its first message is due]",
    )
    queue_scan_worker_pool_max: int = _row(4, "max concurrency for checking in-flight and deferred message timeouts")

    msg_timeout: int = _duration(MINUTE, "default duration to wait before auto-requeing a message")
    max_msg_timeout: int = _duration(15 * MINUTE, "maximum duration before a message will timeout")
    max_msg_size: int = _row(1024 * 1024, "maximum size of a single message in bytes")
    max_body_size: int = _row(5 * 1024 * 1024, "maximum size of a single command body")
    max_req_timeout: int = _duration(60 * MINUTE, "maximum requeuing timeout for a message")

    max_heartbeat_interval: int = _duration(
        MINUTE, "maximum client configurable duration of time between client heartbeats"
    )
    max_rdy_count: int = _row(2500, "maximum RDY count for a client")
    max_output_buffer_size: int = _row(
        64 * 1024, "maximum client configurable size (in bytes) for a client output buffer"
    )
    max_output_buffer_timeout: int = _duration(
        30 * SECOND, "maximum client configurable duration of time between flushing to a client"
    )
    min_output_buffer_timeout: int = _duration(
        25 * MILLISECOND, "minimum client configurable duration of time between flushing to a client"
    )
    output_buffer_timeout: int = _duration(
        250 * MILLISECOND, "default duration of time between flushing data to clients"
    )
    max_channel_consumers: int = _limit("maximum channel consumer connection count per nsqd instance", ours=False)

    statsd_address: str = _row("", "UDP <addr>:<port> of a statsd daemon for pushing stats")
    statsd_prefix: str = _row("nsq.%s", "prefix used for keys sent to statsd (%s for host replacement)")
    statsd_interval: int = _duration(MINUTE, "duration between pushing to statsd")
    statsd_mem_stats: bool = _row(True, "toggle sending memory and GC stats to statsd")
    statsd_udp_packet_size: int = _row(508, "the size in bytes of statsd UDP packets", field="StatsdUDPPacketSize")
    statsd_exclude_ephemeral: bool = _row(False, "Skip ephemeral topics and channels when sending stats to statsd")

    e2e_processing_latency_window_time: int = _duration(
        10 * MINUTE,
        "calculate end to end latency quantiles for this duration of time (ie: 60s would only show quantile "
        "calculations from the past 60 seconds)",
    )
    e2e_processing_latency_percentiles: list[float] = _row(
        [],
        "message processing time percentiles (as float (0, 1.0]) to track (can be specified multiple times or comma "
        "separated '1.0,0.99,0.95', default none)",
        kind=Kind.FLOATS,
        flag="e2e-processing-latency-percentile",
    )

    tls_cert: str = _row("", "path to certificate file")
    tls_key: str = _row("", "path to key file")
    tls_client_auth_policy: str = _row("", "client certificate auth policy ('require' or 'require-verify')")
    tls_root_ca_file: str = _row("", "path to certificate authority file", field="TLSRootCAFile")
    tls_required: int = _row(
        TLS_NOT_REQUIRED, "require TLS for client connections (true, false, tcp-https)", kind=Kind.TLS_REQUIRED
    )
    tls_min_version: int = _row(
        TLS_VERSIONS["tls1.0"],
        "minimum SSL/TLS version acceptable ('ssl3.0', 'tls1.0', 'tls1.1', 'tls1.2' or 'tls1.3')",
        kind=Kind.TLS_VERSION,
    )

    deflate: bool = _row(True, "enable deflate feature negotiation (client compression)", field="DeflateEnabled")
    max_deflate_level: int = _row(
        6, "max deflate compression level a client can negotiate (> values == > nsqd CPU usage)"
    )
    snappy: bool = _row(True, "enable snappy feature negotiation (client compression)", field="SnappyEnabled")

    durability: str = _own(
        "none",
        choices=("none", "process", "disk", "store"),
        help="failures that acknowledged messages survive: none (as with nsqd, messages in memory are lost), "
        "process (kill -9 of the process), disk (power loss), or store (loss of the machine; needs --log-store)",
    )
    log_store: str = _own(
        "",
        "<scheme>://<bucket>/<prefix> of this nsqd's log in an object store: s3, gs, az or file, with endpoint and "
        "region as in ?endpoint=http://...; what journals write follows there, and an empty data path starts from it",
    )
    log_store_interval: int = _own_duration(
        0,
        "least time between two objects that are put there, unless one has 4 MiB (default 0, i.e., 250ms, or while "
        "publishers wait, with --durability=store, as long as it takes to put one)",
    )
    log_store_timeout: int = _own_duration(
        30 * SECOND, "time after which publishers that wait for a store that is away get an error"
    )
    log_store_retention: int = _own_duration(
        0, "time for which objects stay there when the disk does not have their messages any more"
    )
    retention_bytes: int = _own(
        0,
        "bytes that the journal of a topic keeps of messages that all channels have finished, so that /channel/rewind "
        "can deliver them again; needs --durability (default 0, i.e., none)",
    )
    retention_time: int = _own_duration(
        0, "age at which such messages are no longer kept (default 0, i.e., --retention-bytes alone decides)"
    )
    max_defer_time: int = _own_duration(
        0, "maximum time for which a publisher may defer a message (default 0, i.e., --max-req-timeout)"
    )
    max_channel_depth: int = _limit("maximum depth of a channel, or of a topic without channels")
    max_topic_bytes: int = _limit("maximum bytes queued in a topic and its channels together")
    overflow_policy: str = _own(
        "reject",
        choices=("reject", "drop-oldest", "drop-idle"),
        help="at --max-channel-depth and --max-topic-bytes: reject (refuse publishers), drop-oldest (drop the oldest "
        "messages) or drop-idle (drop those of idle channels, refuse publishers for others)",
    )
    message_ttl: int = _own_duration(
        0, "age at which messages are dropped instead of delivered (default 0, i.e., none)", field="MessageTTL"
    )
    min_free_disk: int = _own(
        0, "minimum free bytes on the disk of the data path; with fewer, publishers are refused (default 0, i.e., none)"
    )
    max_attempts: int = _own(
        0,
        "number of deliveries after which a requeued or timed-out message is moved to the topic <topic>.<channel>.dead "
        "(default 0, i.e., never)",
    )
    channel_rules: list[str] = _own(
        [],
        "<topic>:<channel>:rate=<n>:burst=<n>:ordered=true:idle_timeout=<duration>:idle_policy=<policy>: rules of a "
        "channel, one or several, until /channel/rules changes them; those of the channel * are for all others of the "
        "topic (may be given multiple times)",
    )
    channel_idle_timeout: int = _own_duration(
        0, "time without consumers after which a channel is idle (default 0, i.e., never)"
    )
    channel_idle_policy: str = _own(
        "pause",
        choices=IDLE_POLICIES,
        help="what is done to an idle channel: pause, empty, delete, or none (only --overflow-policy=drop-idle)",
    )
    metrics_clients: bool = _own(False, "add series for every client to /metrics")
    sigterm: str = _own(
        "exit",
        choices=("exit", "drain"),
        help="what SIGTERM does: exit (at once), or drain (refuse new messages, exit when all queues are empty)",
    )
    drain_timeout: int = _own_duration(
        MINUTE, "maximum duration of a drain; then remaining messages are written to disk"
    )
    http_auth_token_files: list[str] = _own(
        [],
        "read:<path> or full:<path> of a file with one token per line, with or without roles for topics; HTTP requests "
        "then require a token, except for /ping, /healthz and /readyz (may be given multiple times)",
        flag="http-auth-token-file",
    )
    http_auth_common_names: list[str] = _own(
        [],
        "read:<name> or full:<name>: common name of a client certificate, accepted over HTTPS instead of a token "
        "(may be given multiple times)",
        flag="http-auth-common-name",
    )
    http_auth_server: bool = _own(
        False,
        "ask the auth servers about HTTP requests whose token is in no file: they may permit to publish to a topic, or "
        "to read its figures",
    )
    max_tcp_connections: int = _limit("maximum number of TCP connections; further ones are closed at once")
    max_http_connections: int = _limit(
        "maximum number of HTTP and of HTTPS connections; further ones are closed at once"
    )
    max_topics: int = _limit("maximum number of topics; clients cannot create more")
    max_channels: int = _limit("maximum number of channels of a topic; clients cannot create more")
    magic_timeout: int = _own_duration(
        MINUTE, "time limit for a TCP client to send the first four bytes of the protocol (0, i.e., none)"
    )
    http_idle_timeout: int = _own_duration(0, "time limit for an idle HTTP connection (default 0, i.e., none)")
    http_allow_origins: list[str] = _allowed_origins()

    dev: bool = _own(
        False,
        "serve a development environment: nsqlookupd in the same process, the page of gnsqadmin web, topics that "
        "consumers look up, and data in a temporary directory; the other flags override each of these",
    )
    demo: bool = _own(
        False,
        "with --dev: add the traffic of a small shop in topics that begin with demo., and keep finished messages for a "
        "rewind; its data is always in a temporary directory",
    )
    embedded_lookupd_tcp_address: str = _own("", "<addr>:<port> where nsqlookupd in this process listens for nsqds")
    embedded_lookupd_http_address: str = _own(
        "", "<addr>:<port> where nsqlookupd in this process listens for consumers"
    )
    admin_http_address: str = _own(
        "", "<addr>:<port> where the page of gnsqadmin web shows this nsqd and nsqlookupd in this process"
    )
    lookup_creates_topics: bool = _own(
        False, "create a topic when a consumer looks it up at nsqlookupd in this process, and no nsqd has it"
    )

    @property
    def longest_defer(self) -> int:
        """The longest delay that a publisher may set, in ns."""
        return self.max_defer_time or self.max_req_timeout

    @property
    def longest_delay(self) -> int:
        """The longest delay of any message, in ns."""
        return max(self.max_defer_time, self.max_req_timeout)

    def has_journal(self, topic: str) -> bool:
        """Returns True if a topic of this name has a journal."""
        return self.durability != "none" and not is_ephemeral(topic)

    @property
    def has_topology(self) -> bool:
        """True if clients see regions and zones, which v1.3.0 does not have."""
        return bool(self.topology_region or self.topology_zone or self.experiments)

    @property
    def bounded(self) -> bool:
        """True if any limit on queues is set."""
        return any(getattr(self, name) for name in BOUNDS)


class LookupdOptions(Record):
    """The values that nsqlookupd runs with, as `Options`."""

    version: bool = _row(False, "print version string", cfg="")
    config: str = _row("", "path to config file", cfg="")
    log_level: Level = _row(Level.INFO, "set log verbosity: debug, info, warn, error, or fatal")
    log_prefix: str = _row("[nsqlookupd] ", "log message prefix")
    log_format: str = _LOG_FORMAT
    verbose: bool = _row(False, "[deprecated] has no effect, use --log-level", cfg="")
    tcp_address: str = _row("0.0.0.0:4160", "<addr>:<port> to listen on for TCP clients")
    http_address: str = _row("0.0.0.0:4161", "<addr>:<port> to listen on for HTTP clients")
    broadcast_address: str = _row(_HOSTNAME, "address of this lookupd node, (default to the OS hostname)")
    inactive_producer_timeout: int = _duration(
        5 * MINUTE, "duration of time a producer will remain in the active list since its last ping"
    )
    tombstone_lifetime: int = _duration(
        45 * SECOND, "duration of time a producer will remain tombstoned if registration remains"
    )

    max_registrations: int = _own(
        1_000_000, "maximum number of topics, channels and producers of each, counted together (0, i.e., unlimited)"
    )
    max_tcp_connections: int = _limit("maximum number of TCP connections; further ones are closed at once")
    max_http_connections: int = _limit("maximum number of HTTP connections; further ones are closed at once")
    magic_timeout: int = _own_duration(
        MINUTE, "time limit for a TCP client to send the protocol's magic (0, i.e., none)"
    )
    http_idle_timeout: int = _own_duration(0, "time limit for an idle HTTP connection (default 0, i.e., none)")
    http_allow_origins: list[str] = _allowed_origins()


_ACRONYMS = {word.lower(): word for word in ("TCP", "HTTP", "HTTPS", "TLS", "E2E")} | {"nsqlookupd": "NSQLookupd"}


def _option(name: str, columns: dict[str, Any]) -> Option:
    words = name.split("_")
    named_after = "".join(_ACRONYMS.get(word, word.capitalize()) for word in words)
    return Option(**{"name": name, "flag": "-".join(words), "cfg": name, "field": named_after} | columns)


def _rows(table: type[Record]) -> tuple[Option, ...]:
    """Returns the rows of a table, and replaces them in it by their defaults."""
    rows = tuple(_option(name, getattr(table, name)) for name in table.names)
    for row in rows:
        setattr(table, row.name, row.default)
    return rows


OPTIONS = _rows(Options)
LOOKUPD_OPTIONS = _rows(LookupdOptions)


def parse_tls_required(text: str) -> int:
    """Parses `tcp-https` or a bool, in any case; raises ValueError."""
    if text.lower() == "tcp-https":
        return TLS_REQUIRED_EXCEPT_HTTP
    return TLS_REQUIRED if parse_bool(text.lower()) else TLS_NOT_REQUIRED


def expand_prefix(prefix: str, node: str) -> str:
    """Returns the prefix of statsd's names, in which `%s` is the address `node`; a dot ends it unless it is empty."""
    expanded = prefix.replace("%s", node.replace(".", "_").replace(":", "_"))
    return expanded if not expanded or expanded.endswith(".") else f"{expanded}."


def parse_tls_version(text: str) -> int:
    """Returns a version's number by its name in any case; raises ValueError, also for `ssl3.0` of the help text."""
    if text.lower() not in TLS_VERSIONS:
        raise ValueError(f"unknown tlsVersionOption {quote(text.lower())}")
    return TLS_VERSIONS[text.lower()]


def early_checks(options: Options) -> Iterator[Check]:
    """Yields what is checked before TLS is built (NSQD-COMPAT 1.4, rows 2 to 4). Before that, lets an auth policy turn
    TLS on, and cuts durations so that a sum with a time stays within an int64."""
    for option in OPTIONS:
        if option.kind is Kind.DURATION:
            setattr(options, option.name, min(getattr(options, option.name), _LONGEST))
    if options.sync_every < 0:  # no number of operations is that, so the real daemon goes by sync-timeout alone
        options.sync_every = _LONGEST
    if options.tls_client_auth_policy and options.tls_required == TLS_NOT_REQUIRED:
        options.tls_required = TLS_REQUIRED
    yield 1 <= options.max_deflate_level <= 9, "--max-deflate-level must be [1,9]"
    yield 0 <= options.node_id < 1024, "--node-id must be [0,1024)"


def late_checks(options: Options) -> Iterator[Check]:
    """Yields what the real daemon checks after TLS (row 8), values with which it crashes or stops working later
    (NSQD-COMPAT 0.1, item 16), and options that need another one."""
    for experiment in options.experiments:
        yield experiment == TOPOLOGY_AWARE, f"--enable-experiment must be {TOPOLOGY_AWARE}, not {quote(experiment)}"
    yield options.auth_http_request_method in ("get", "post"), "--auth-http-request-method must be post or get"
    yield (
        not options.http_auth_server or bool(options.auth_http_addresses),
        "--http-auth-server needs --auth-http-address",
    )
    percentiles = options.e2e_processing_latency_percentiles
    for percentile in percentiles:
        yield 0 < percentile <= 1, f"invalid E2E processing latency percentile: {format_float(percentile)}"
    yield options.mem_queue_size >= 0, "--mem-queue-size must be >= 0"
    yield options.sync_timeout > 0, "--sync-timeout must be > 0"
    yield options.output_buffer_timeout > 0, "--output-buffer-timeout must be > 0"
    yield options.queue_scan_selection_count >= 0, "--queue-scan-selection-count must be >= 0"
    yield not options.statsd_address or options.statsd_interval > SECOND, "--statsd-interval must be > 1s"
    window = options.e2e_processing_latency_window_time
    yield not percentiles or window >= 2, "--e2e-processing-latency-window-time must be > 1ns"
    for name in _NOT_NEGATIVE:
        yield getattr(options, name) >= 0, f"--{name.replace('_', '-')} must be >= 0"
    yield 0 <= options.max_attempts <= MOST_ATTEMPTS, f"--max-attempts must be [0,{MOST_ATTEMPTS}]"
    yield not options.retention_time or options.retention_bytes > 0, "--retention-time needs --retention-bytes"
    yield not options.retention_bytes or options.durability != "none", "--retention-bytes needs --durability"
    yield options.durability != "store" or bool(options.log_store), "--durability=store needs --log-store"
    yield not options.log_store or options.durability != "none", "--log-store needs --durability"
    has_http = options.http_address and not options.http_address.startswith("@")
    has_ports = options.broadcast_http_port and (options.broadcast_tcp_port or ":" in options.tcp_address)
    has_page = has_http or (options.embedded_lookupd_http_address and has_ports) or not options.admin_http_address
    yield bool(has_page), "--admin-http-address needs a port or path as --http-address"


# Options with which no client of --demo could subscribe. A policy turns TLS on later, in `early_checks`.
_CLOSED_TO_THE_SHOP = {
    "tls_required": "--tls-required",
    "tls_client_auth_policy": "--tls-client-auth-policy",
    "auth_http_addresses": "--auth-http-address",
}


def demo_checks(options: Options) -> Iterator[Check]:
    """Yields what is checked before --dev sets a data path."""
    yield not options.demo or options.dev, "--demo needs --dev"
    yield not (options.demo and options.data_path), "--demo has a temporary data path: leave out --data-path"
    for name, flag in _CLOSED_TO_THE_SHOP.items():
        is_open = not (options.demo and getattr(options, name))
        yield is_open, f"--demo has clients without TLS and AUTH: leave out {flag}"


def choice_checks(options: Options | LookupdOptions, table: Iterable[Option]) -> Iterator[Check]:
    for option in filter(attrgetter("choices"), table):
        value, listed = getattr(options, option.name), f"{', '.join(option.choices[:-1])} or {option.choices[-1]}"
        yield value in option.choices, f"--{option.flag} must be {listed}, not {quote(value)}"


def refuse(checks: Iterable[Check], prefix: str = "failed to instantiate nsqd") -> None:
    """Raises StartError for the first check that fails."""
    for valid, text in checks:
        if not valid:
            raise StartError(text, prefix=prefix)
