"""Writes the tables of three reference pages in contrib/docs from the program: http.md from the routes, tcp.md from the
commands, statistics.md from the statistics. What a row is called and which rows there are comes from there, what it
means stands here; a row without its words is an error. `make options` runs it; a test compares."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path

from gnsqd.broker.environment import ClientStats
from gnsqd.observe.stats import CLIENT_FIELDS, STAT_FIELDS, MemoryStats, StatField
from gnsqd.web.routes import ROUTES, Route
from gnsqd.wire.codec import GRAMMAR, Tail
from gnsqd.wire.commands import HANDLERS
from gnsqd.wire.identify import Identify

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "contrib" / "docs"

_TOPIC = "MISSING_ARG_TOPIC"
_NEW_TOPIC = "MISSING_ARG_TOPIC, INVALID_TOPIC, TOO_MANY_TOPICS"
_CHANNEL_ERRORS = (
    "MISSING_ARG_TOPIC, INVALID_ARG_TOPIC, MISSING_ARG_CHANNEL, INVALID_ARG_CHANNEL, TOPIC_NOT_FOUND, CHANNEL_NOT_FOUND"
)
_REWIND_ERRORS = (
    f"{_CHANNEL_ERRORS}, NO_JOURNAL, NO_RETENTION, CHANNEL_EPHEMERAL, MISSING_ARG_TO, INVALID_ARG_TO, "
    "INVALID_ARG_UNTIL, MESSAGE_NOT_FOUND, UNTIL_BEFORE_TO"
)
_INSIDE = "see [looking inside](operations.md#looking-inside)"

# What each endpoint does; its parameters; its errors, in the order of the checks.
ENDPOINTS = {
    "GET /ping": ("`OK`, or 500 and the error of the last write to disk", "", ""),
    "GET /healthz": ("`OK`: the process is responsive. [gnsqd only](operations.md#probes)", "", ""),
    "GET /readyz": ("`OK`, or 503 and the reason. [gnsqd only](operations.md#probes)", "", ""),
    "GET /drain": ("the progress of a drain. [gnsqd only](operations.md#drain)", "", ""),
    "POST /drain": ("start a drain. gnsqd only", "", "EXITING"),
    "DELETE /drain": ("cancel a drain. gnsqd only", "", "EXITING"),
    "GET /info": ("version, addresses and limits, as JSON", "", ""),
    "GET /stats": (
        "the [statistics](statistics.md), as text or JSON",
        "`format=json`, `topic`, `channel`, `include_clients`, `include_mem`",
        "",
    ),
    "GET /metrics": ("the page for Prometheus, see [metrics](metrics.md). gnsqd only", "", ""),
    "POST /pub": (
        "publish the body as one message",
        "`topic`; `defer`, in milliseconds",
        f"MSG_TOO_BIG, MSG_EMPTY, {_NEW_TOPIC}, INVALID_DEFER, DRAINING, FULL, EXITING",
    ),
    "POST /mpub": (
        "publish each non-empty line of the body; with `binary=true`, a body like that of MPUB",
        "`topic`, `binary`; `defer`, in milliseconds, gnsqd only",
        f"BODY_TOO_BIG, {_NEW_TOPIC}, INVALID_DEFER, MSG_TOO_BIG, BAD_BODY, BAD_MESSAGE, DRAINING, FULL, EXITING",
    ),
    "POST /topic/create": ("create a topic, unless it exists", "`topic`", _NEW_TOPIC),
    "POST /topic/delete": (
        "delete a topic with its channels and all messages",
        "`topic`",
        f"{_TOPIC}, TOPIC_NOT_FOUND",
    ),
    "POST /topic/empty": (
        "drop the topic's queued messages; its channels keep theirs",
        "`topic`",
        f"{_TOPIC}, INVALID_TOPIC, TOPIC_NOT_FOUND",
    ),
    "POST /topic/pause": ("stop passing messages to the channels", "`topic`", f"{_TOPIC}, TOPIC_NOT_FOUND"),
    "POST /topic/unpause": ("pass messages to the channels again", "`topic`", f"{_TOPIC}, TOPIC_NOT_FOUND"),
    "GET /topic/peek": (
        "show the topic's queued messages. [gnsqd only](operations.md#peeking-at-queued-messages)",
        "`topic`, `limit`",
        f"{_TOPIC}, TOPIC_NOT_FOUND, INVALID_LIMIT",
    ),
    "GET /channel/peek": (
        "show the channel's queued messages. gnsqd only",
        "`topic`, `channel`, `limit`",
        f"{_CHANNEL_ERRORS}, INVALID_LIMIT",
    ),
    "GET /topic/retention": (
        "what the topic keeps to [deliver it again](replay.md#retention-of-one-topic). gnsqd only",
        "`topic`",
        f"{_TOPIC}, TOPIC_NOT_FOUND, NO_JOURNAL",
    ),
    "POST /topic/retention": (
        "change how much the topic keeps. gnsqd only",
        "`topic`, `bytes`, `time`",
        f"{_TOPIC}, TOPIC_NOT_FOUND, NO_JOURNAL, MISSING_ARG_BYTES, INVALID_ARG_BYTES, INVALID_ARG_TIME",
    ),
    "GET /channel/rewind": (
        "what `POST /channel/rewind` would do. [gnsqd only](replay.md)",
        "`topic`, `channel`, `to`, `until`",
        _REWIND_ERRORS,
    ),
    "POST /channel/rewind": (
        "deliver finished messages again. gnsqd only",
        "`topic`, `channel`, `to`, `until`",
        _REWIND_ERRORS,
    ),
    "GET /channel/deferred": (
        "show and count the channel's deferred messages. [gnsqd only](schedule.md#list-and-count)",
        "`topic`, `channel`, `limit`, `from`, `id`",
        f"{_CHANNEL_ERRORS}, INVALID_LIMIT, INVALID_ARG_FROM, INVALID_ARG_ID, MESSAGE_NOT_FOUND",
    ),
    "POST /channel/deferred/cancel": (
        "drop one deferred message of the channel. gnsqd only",
        "`topic`, `channel`, `id`",
        f"{_CHANNEL_ERRORS}, MISSING_ARG_ID, INVALID_ARG_ID, MESSAGE_NOT_FOUND",
    ),
    "GET /channel/rules": (
        "the channel's [delivery rules](rules.md). gnsqd only",
        "`topic`, `channel`",
        _CHANNEL_ERRORS,
    ),
    "POST /channel/rules": (
        "change the channel's delivery rules. gnsqd only",
        "`topic`, `channel`, and at least one of `rate`, `burst`, `ordered`",
        f"{_CHANNEL_ERRORS}, MISSING_ARG_RATE, INVALID_ARG_RATE, INVALID_ARG_BURST, INVALID_ARG_ORDERED",
    ),
    "POST /channel/create": (
        "create a channel of an existing topic; gnsqd only: with messages published since `from`",
        "`topic`, `channel`, `from`",
        f"{_CHANNEL_ERRORS.replace('CHANNEL_NOT_FOUND', 'TOO_MANY_CHANNELS')}, NO_JOURNAL, NO_RETENTION, "
        "CHANNEL_EPHEMERAL, CHANNEL_EXISTS, INVALID_ARG_FROM, MESSAGE_NOT_FOUND",
    ),
    "POST /channel/delete": ("delete a channel with all its messages", "`topic`, `channel`", _CHANNEL_ERRORS),
    "POST /channel/empty": (
        "drop the channel's queued, in-flight and deferred messages",
        "`topic`, `channel`",
        _CHANNEL_ERRORS,
    ),
    "POST /channel/pause": ("stop sending messages to consumers", "`topic`, `channel`", _CHANNEL_ERRORS),
    "POST /channel/unpause": ("send messages to consumers again", "`topic`, `channel`", _CHANNEL_ERRORS),
    "GET /config/auth_http_addresses": ("the auth servers, possibly with passwords", "", ""),
    "GET /config/:opt": (
        "the value of an option, by its [config key](options.md); durations in nanoseconds",
        "",
        "INVALID_OPTION",
    ),
    "PUT /config/:opt": (
        "change an option until the next start: `log_level`, with a body such as `debug`, or "
        "`nsqlookupd_tcp_addresses`, with a JSON list as body",
        "",
        "INVALID_VALUE, INVALID_OPTION",
    ),
    "GET /debug/pprof/": (f"list of the pages below, {_INSIDE}", "", ""),
    "GET /debug/pprof/cmdline": ("the command line, its words separated by zero bytes", "", ""),
    "GET /debug/pprof/symbol": ("`num_symbols: 0`, for Go's tools", "", ""),
    "POST /debug/pprof/symbol": ("the same", "", ""),
    "GET /debug/pprof/profile": ("CPU profile over this number of `seconds`, 30 by default", "`seconds`", ""),
    "GET /debug/pprof/heap": ("memory", "", ""),
    "GET /debug/pprof/goroutine": ("the greenlets with their stacks", "", ""),
    "GET /debug/pprof/block": ("where greenlets wait", "", ""),
    "GET /debug/pprof/threadcreate": ("the threads with their stacks", "", ""),
    "PUT /debug/setblockrate": ("checks `rate` and changes nothing", "`rate`", ""),
    "POST /debug/freememory": ("collect garbage, and return free memory to the system", "", ""),
}

HTTP_ERRORS = {
    "BAD_BODY": "binary `/mpub`: invalid count or sum of sizes, or the body ends too early",
    "BAD_MESSAGE": "binary `/mpub`: invalid size of a message, or the body ends too early",
    "BODY_TOO_BIG": "the body is larger than `--max-body-size`",
    "CHANNEL_EPHEMERAL": "an ephemeral channel has no journal",
    "CHANNEL_EXISTS": "`from` is for a new channel",
    "CHANNEL_NOT_FOUND": "no such channel",
    "DRAINING": "new messages are [refused](operations.md#drain)",
    "EXITING": "the daemon or this topic is closing, or writing to disk failed",
    "FORBIDDEN": "the token or certificate only permits reading",
    "FULL": "a [limit](survive.md#keep-a-backlog-within-bounds) is reached; the answer names it",
    "INTERNAL_ERROR": "the body could not be read, writing to disk failed, or a defect: see the log",
    "INVALID_ARG_BURST": "not a number from 1 to 1000000, or there is no rate",
    "INVALID_ARG_BYTES": "not a number of bytes",
    "INVALID_ARG_CHANNEL": "invalid channel name",
    "INVALID_ARG_FROM": "not a time or, for `/channel/create`, not a [point in the past](replay.md#rewind-a-channel)",
    "INVALID_ARG_ID": "not the id of a message",
    "INVALID_ARG_ORDERED": "neither `true` nor `false`",
    "INVALID_ARG_RATE": "neither 0 nor a number from 0.001 to 1000000",
    "INVALID_ARG_TIME": "not a duration such as `24h`, or `bytes` is 0",
    "INVALID_ARG_TO": "not a [point in the past](replay.md#rewind-a-channel)",
    "INVALID_ARG_TOPIC": "invalid topic name",
    "INVALID_ARG_UNTIL": "not a [point in the past](replay.md#rewind-a-channel)",
    "INVALID_DEFER": "not a number of milliseconds from 0 to `--max-defer-time`, by default `--max-req-timeout`",
    "INVALID_LIMIT": "not a number from 1 to 1000",
    "INVALID_OPTION": "no such config key, or one that cannot be changed",
    "INVALID_REQUEST": "the query has a bad escape or a semicolon",
    "INVALID_TOPIC": "invalid topic name",
    "INVALID_VALUE": "an invalid value; 413 if it is empty or too long",
    "MESSAGE_NOT_FOUND": "no retained message, or no deferred message of the channel, has this id",
    "METHOD_NOT_ALLOWED": "the path does not support this method; the header `Allow` lists its methods",
    "MISSING_ARG_BYTES": "no parameter `bytes`",
    "MISSING_ARG_CHANNEL": "no parameter `channel`",
    "MISSING_ARG_ID": "no parameter `id`",
    "MISSING_ARG_RATE": "neither `rate` nor `burst` nor `ordered`",
    "MISSING_ARG_TO": "no parameter `to`",
    "MISSING_ARG_TOPIC": "no parameter `topic`",
    "MSG_EMPTY": "the body is empty",
    "MSG_TOO_BIG": "a message is larger than `--max-msg-size`",
    "NOT_FOUND": "no such path",
    "NO_JOURNAL": "the topic is ephemeral, or `--durability` is not set",
    "NO_RETENTION": "the topic keeps no finished messages",
    "TLS_REQUIRED": "`--tls-required=true` is set: use HTTPS, at the given port",
    "TOO_MANY_CHANNELS": "the topic already has `--max-channels` channels",
    "TOO_MANY_TOPICS": "the daemon already has `--max-topics` topics",
    "TOPIC_NOT_FOUND": "no such topic",
    "UNAUTHORIZED": "a token or certificate is required",
    "UNTIL_BEFORE_TO": "`until` is earlier than `to`",
}

# The line, in which states, what it does, the answer, and the errors except those of all commands.
COMMANDS = {
    "IDENTIFY": (
        "IDENTIFY",
        "new",
        "identify the client, and negotiate [settings](#identify)",
        "`OK`, or JSON",
        "BAD_BODY, IDENTIFY_FAILED",
    ),
    "AUTH": (
        "AUTH",
        "new",
        "authenticate with a secret, see [AUTH](security.md#auth)",
        "JSON",
        "BAD_BODY, AUTH_DISABLED, AUTH_FAILED, UNAUTHORIZED",
    ),
    "SUB": (
        "SUB {topic} {channel}",
        "new",
        "consume a channel; topic and channel are created if they do not exist",
        "`OK`",
        "BAD_TOPIC, BAD_CHANNEL, SUB_FAILED, AUTH_FIRST, AUTH_FAILED, UNAUTHORIZED",
    ),
    "PUB": ("PUB {topic}", "any", "publish the body as one message", "`OK`", "BAD_TOPIC, BAD_MESSAGE, PUB_FAILED, *"),
    "MPUB": (
        "MPUB {topic}",
        "any",
        "publish several messages: all or none, unless the disk fails in between",
        "`OK`",
        "BAD_TOPIC, BAD_BODY, BAD_MESSAGE, MPUB_FAILED, *",
    ),
    "DPUB": (
        "DPUB {topic} {ms}",
        "any",
        "publish the body, deferred by this number of milliseconds",
        "`OK`",
        "BAD_TOPIC, BAD_MESSAGE, DPUB_FAILED, *",
    ),
    "RDY": ("RDY {count}", "subscribed", "set the maximum number of messages in flight; 1 without a count", "none", ""),
    "FIN": ("FIN {id}", "subscribed, closing", "finish the message", "none", "FIN_FAILED"),
    "REQ": (
        "REQ {id} {ms}",
        "subscribed, closing",
        "requeue the message, to be sent again after this number of milliseconds",
        "none",
        "REQ_FAILED",
    ),
    "TOUCH": ("TOUCH {id}", "subscribed, closing", "restart the message's timeout", "none", "TOUCH_FAILED"),
    "NOP": ("NOP", "any", "no operation; the answer to a heartbeat", "none", ""),
    "CLS": (
        "CLS",
        "subscribed",
        "stop sending messages; the client finishes its messages in flight, then disconnects",
        "`CLOSE_WAIT`",
        "",
    ),
}
_AUTH_ERRORS = "AUTH_FIRST, AUTH_FAILED, UNAUTHORIZED"

# What it means, and whether the connection ends.
WIRE_ERRORS = {
    "E_AUTH_DISABLED": ("`--auth-http-address` is not set", True),
    "E_AUTH_FAILED": ("no auth server gave a valid answer", True),
    "E_AUTH_FIRST": ("AUTH must come first", True),
    "E_BAD_BODY": ("a body or its size is invalid or too large, or the body ends too early", True),
    "E_BAD_CHANNEL": ("invalid channel name", True),
    "E_BAD_MESSAGE": ("a message or its size is invalid or too large, or the message ends too early", True),
    "E_BAD_PROTOCOL": ("the connection does not begin with `  V2`", True),
    "E_BAD_TOPIC": ("invalid topic name", True),
    "E_DPUB_FAILED": ("like E_PUB_FAILED", True),
    "E_FIN_FAILED": ("the message is not in flight to this client", False),
    "E_IDENTIFY_FAILED": ("the client requests both deflate and snappy", True),
    "E_INVALID": ("a command that is unknown, misspelt, or not allowed in this state", True),
    "E_MPUB_FAILED": ("like E_PUB_FAILED", True),
    "E_PUB_FAILED": (
        "writing to disk failed, a [limit](survive.md#keep-a-backlog-within-bounds) is reached, the topic is closing, "
        "or the daemon has `--max-topics` topics; in a drain, the error does not end the connection",
        True,
    ),
    "E_REQ_FAILED": ("like E_FIN_FAILED", False),
    "E_SUB_FAILED": (
        "the channel is closing, has `--max-channel-consumers` consumers, or would exceed `--max-channels`",
        True,
    ),
    "E_TOUCH_FAILED": ("like E_FIN_FAILED", False),
    "E_UNAUTHORIZED": ("the auth server's answer does not allow it", True),
}

SETTINGS = {
    "client_id": "name of the client, for statistics",
    "hostname": "host name of the client, for statistics",
    "heartbeat_interval": "interval of heartbeats in milliseconds, 1000 to `--max-heartbeat-interval`; -1: none; "
    "default 30000",
    "output_buffer_size": "buffer size in bytes, 64 to `--max-output-buffer-size`; -1: no buffer; default 16384",
    "output_buffer_timeout": "time until the buffer is sent, in milliseconds, `--min-output-buffer-timeout` to "
    "`--max-output-buffer-timeout`; -1: no limit; default `--output-buffer-timeout`",
    "feature_negotiation": "the answer is JSON, and the following features are negotiated",
    "tls_v1": "upgrade to TLS",
    "deflate": "compress by deflate",
    "deflate_level": "compression level, up to `--max-deflate-level`; default 6",
    "snappy": "compress by snappy",
    "sample_rate": "percentage of messages to receive, 1 to 99; the others are finished without delivery; 0: all",
    "user_agent": "program and version, for statistics",
    "msg_timeout": "time to finish a message, in milliseconds, 1000 to `--max-msg-timeout`; default `--msg-timeout`",
}

CLIENT_KEYS = {
    "client_id": "as in IDENTIFY; before IDENTIFY, the client's address",
    "hostname": "as in IDENTIFY; before IDENTIFY, the client's address",
    "version": "`V2`",
    "remote_address": "`host:port`; `@` on a unix socket",
    "deflate": "Whether the connection is compressed by deflate.",
    "snappy": "Whether it is compressed by snappy.",
    "user_agent": "as in IDENTIFY",
    "authed": "`true` after AUTH, else absent",
    "auth_identity": "the identity returned by the auth server, if any",
    "auth_identity_url": "the URL of the identity, if any",
    "topology_zone": "as in IDENTIFY; absent without [regions and zones](cluster.md#regions-and-zones)",
    "topology_region": "the same",
    "pub_counts": "for a publisher: its topics, and the number of messages published to each",
    "tls": "Whether the connection is encrypted.",
    "tls_cipher_suite": "the cipher suite, with TLS",
    "tls_version": "`TLS1.2`, `TLS1.3`, …",
    "tls_negotiated_protocol": "empty",
    "tls_negotiated_protocol_is_mutual": "`true` with TLS",
}

MEMORY_KEYS = {
    "heap_objects": "blocks allocated by Python's allocator",
    "heap_idle_bytes": "memory reserved for data and not resident",
    "heap_in_use_bytes": "resident memory that is not shared with files",
    "heap_released_bytes": "difference between peak and current resident memory",
    "gc_pause_usec_100": "longest pause of the last 256 garbage collections, in microseconds",
    "gc_pause_usec_99": "99th percentile of these pauses",
    "gc_pause_usec_95": "95th percentile",
    "next_gc_bytes": "0: collections are triggered by the number of objects, not of bytes",
    "gc_total_runs": "garbage collections since the start",
}


def page(name: str, text: str) -> str:
    """The page with updated tables; the text around them is kept. KeyError for a row without a description here."""
    for place, table in TABLES[name].items():
        before, begin, rest = text.partition(f"<!-- {place} -->\n")
        _, end, after = rest.partition(f"<!-- end of {place} -->\n")
        if not end:
            raise ValueError(f"{name} has no marks for the {place}")
        text = before + begin + "".join(f"{line}\n" for line in table()) + end + after
    return text


def http_errors() -> dict[str, set[str]]:
    """Every code that an answer can have, with its statuses, as in the sources."""
    sources = _sources("web")
    found: dict[str, set[str]] = {"TLS_REQUIRED": {"403"}}
    for status, code in re.findall(r'HTTPError\((\d+), f?"([A-Z_]+)(?:: \{error\})?"\)', sources):
        found.setdefault(code, set()).add(status)
    for parameter in re.findall(r'\brequired\(.*"(\w+)"\)', sources):
        found[f"MISSING_ARG_{parameter.upper()}"] = {"400"}
    for parameter in re.findall(r'_position\(.*"(\w+)"\)', sources):
        found[f"INVALID_ARG_{parameter.upper()}"] = {"400"}
    for what in re.findall(r'check_limit\(.*"(\w+)"\)', sources):
        found[f"TOO_MANY_{what.upper()}"] = {"503"}
    for code in re.findall(r'CodecError\("E_([A-Z_]+)"', _sources("wire")):
        found[code] = {"413"}
    return found


def wire_errors() -> set[str]:
    """Every code that an error frame can have."""
    sources = _sources("wire")
    names = re.findall(r'_publish\(.*"([A-Z]+)"\)$', sources, re.MULTILINE)
    return {*re.findall(r'"(E_[A-Z_]+)\b', sources), *(f"E_{name}_FAILED" for name in names)}


def _sources(package: str) -> str:
    return "".join(path.read_text("utf-8") for path in sorted((ROOT / "gnsqd" / package).glob("*.py")))


def _endpoints() -> Iterator[str]:
    known = http_errors()
    yield "| Request | What it does | Parameters | Errors |"
    yield "|---|---|---|---|"
    for route in ROUTES:
        what, parameters, errors = ENDPOINTS[f"{route.method} {route.path}"]
        shown = ", ".join(f"`{code}`" for code in errors.split(", ") if code in known)
        taken = "; ".join(filter(None, [parameters, _body(route)]))
        yield f"| `{route.method} {route.path}` | {what} | {taken} | {shown} |"


def _body(route: Route) -> str:
    return f"a body of up to `--{route.body.replace('_', '-')}`" if route.body else ""


def _http_errors() -> Iterator[str]:
    yield "| `message` | Status | Why |"
    yield "|---|---|---|"
    for code, statuses in sorted(http_errors().items()):
        yield f"| `{code}` | {', '.join(sorted(statuses))} | {HTTP_ERRORS[code]} |"


_TAILS = {Tail.NOTHING: "", Tail.BODY: "size, body", Tail.MESSAGES: "size, count, size and body of each"}


def _commands() -> Iterator[str]:
    yield "| Line | Followed by | State | What it does | Answer | Errors besides `E_INVALID` |"
    yield "|---|---|---|---|---|---|"
    for name, tail in GRAMMAR.items():
        assert name in HANDLERS
        line, state, what, answer, errors = COMMANDS[name.decode()]
        codes = [f"`E_{code}`" for code in errors.replace("*", _AUTH_ERRORS).split(", ") if code]
        yield f"| `{line}` | {_TAILS[tail]} | {state} | {what} | {answer} | {', '.join(codes)} |"


def _wire_errors() -> Iterator[str]:
    yield "| Code | Why | Ends the connection |"
    yield "|---|---|:-:|"
    for code in sorted(wire_errors()):
        meaning, fatal = WIRE_ERRORS[code]
        yield f"| `{code}` | {meaning} | {'x' if fatal else ''} |"


def _settings() -> Iterator[str]:
    yield "| Key | Type | |"
    yield "|---|---|---|"
    for field in fields(Identify):
        kind = {str: "text", int: "int", bool: "bool"}[type(field.default)]
        yield f"| `{field.name}` | {kind} | {SETTINGS[field.name]} |"


def _statistics(level: str) -> Callable[[], Iterator[str]]:
    def rows() -> Iterator[str]:
        yield "| Key | Kind | Meaning | statsd | Prometheus |"
        yield "|---|---|---|---|---|"
        for field in STAT_FIELDS[level]:
            pushed = f"`{field.statsd}`" if field.statsd else ""
            yield f"| `{field.name}` | {field.kind.value} | {field.help} | {pushed} | `{metric(level, field)}` |"

    return rows


def metric(level: str, field: StatField) -> str:
    """Its name in Prometheus."""
    return f"gnsqd_{level}_{field.metric}{'_total' if field.kind.value == 'counter' else ''}"


def _clients() -> Iterator[str]:
    words = {**CLIENT_KEYS, **{field.name: field.help for field in CLIENT_FIELDS}}
    return _keys((field.name for field in fields(ClientStats)), words)


def _memory() -> Iterator[str]:
    return _keys(MemoryStats().row(), MEMORY_KEYS)


def _keys(names: Iterable[str], words: dict[str, str]) -> Iterator[str]:
    yield "| Key | Meaning |"
    yield "|---|---|"
    for name in names:
        yield f"| `{name}` | {words[name]} |"


TABLES: dict[str, dict[str, Callable[[], Iterator[str]]]] = {
    "http.md": {"routes": _endpoints, "errors": _http_errors},
    "tcp.md": {"commands": _commands, "settings": _settings, "errors": _wire_errors},
    "statistics.md": {
        "topics": _statistics("topic"),
        "channels": _statistics("channel"),
        "clients": _clients,
        "memory": _memory,
    },
}


if __name__ == "__main__":
    for name in TABLES:
        path = DOCS / name
        path.write_text(page(name, path.read_text("utf-8")), "utf-8")
