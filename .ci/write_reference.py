"""Writes the tables of three reference pages in contrib/docs from the program: http.md from the routes, tcp.md from the
commands, statistics.md from the statistics. What a row is called and which rows there are comes from there, what it
means stands here; a row without its words is an error. `make options` runs it; a test compares."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path

from gnsqd.broker.consumer import ClientStats
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
_INSIDE = "see [looking inside](operations.md#looking-inside)"

# What each endpoint does; its parameters; its errors, in the order of the checks.
ENDPOINTS = {
    "GET /ping": ("`OK`, or 500 and the error of the last write to disk", "", ""),
    "GET /healthz": ("`OK`: the process works. [gnsqd only](operations.md#probes)", "", ""),
    "GET /readyz": ("`OK`, or 503 and why not. [gnsqd only](operations.md#probes)", "", ""),
    "GET /drain": ("how far a drain is. [gnsqd only](operations.md#drain)", "", ""),
    "POST /drain": ("begin to drain. gnsqd only", "", "EXITING"),
    "DELETE /drain": ("end a drain and go on as before. gnsqd only", "", "EXITING"),
    "GET /info": ("version, addresses and limits, as JSON", "", ""),
    "GET /stats": (
        "the [statistics](statistics.md), as text or JSON",
        "`format=json`, `topic`, `channel`, `include_clients`, `include_mem`",
        "",
    ),
    "GET /metrics": ("the page for Prometheus, see [metrics](metrics.md). gnsqd only", "", ""),
    "POST /pub": (
        "publish the body as one message",
        "`topic`; `defer`, milliseconds to hold it back",
        f"MSG_TOO_BIG, MSG_EMPTY, {_NEW_TOPIC}, INVALID_DEFER, DRAINING, FULL, EXITING",
    ),
    "POST /mpub": (
        "publish each line of the body, but for empty ones; or with `binary=true` a body as that of MPUB",
        "`topic`, `binary`",
        f"BODY_TOO_BIG, {_NEW_TOPIC}, MSG_TOO_BIG, BAD_BODY, BAD_MESSAGE, DRAINING, FULL, EXITING",
    ),
    "POST /topic/create": ("create a topic, if it is not there", "`topic`", _NEW_TOPIC),
    "POST /topic/delete": (
        "delete a topic with its channels and all messages",
        "`topic`",
        f"{_TOPIC}, TOPIC_NOT_FOUND",
    ),
    "POST /topic/empty": (
        "drop what waits in the topic; what its channels have stays",
        "`topic`",
        f"{_TOPIC}, INVALID_TOPIC, TOPIC_NOT_FOUND",
    ),
    "POST /topic/pause": ("hand no more messages to the channels", "`topic`", f"{_TOPIC}, TOPIC_NOT_FOUND"),
    "POST /topic/unpause": ("hand them on again", "`topic`", f"{_TOPIC}, TOPIC_NOT_FOUND"),
    "GET /topic/peek": (
        "show messages that wait in the topic. [gnsqd only](operations.md#peeking-at-queued-messages)",
        "`topic`, `limit`",
        f"{_TOPIC}, TOPIC_NOT_FOUND, INVALID_LIMIT",
    ),
    "GET /channel/peek": (
        "show messages that wait in the channel. gnsqd only",
        "`topic`, `channel`, `limit`",
        f"{_CHANNEL_ERRORS}, INVALID_LIMIT",
    ),
    "POST /channel/create": (
        "create a channel of a topic that is there",
        "`topic`, `channel`",
        _CHANNEL_ERRORS.replace("CHANNEL_NOT_FOUND", "TOO_MANY_CHANNELS"),
    ),
    "POST /channel/delete": ("delete a channel with all its messages", "`topic`, `channel`", _CHANNEL_ERRORS),
    "POST /channel/empty": (
        "drop what waits, is in flight or deferred in the channel",
        "`topic`, `channel`",
        _CHANNEL_ERRORS,
    ),
    "POST /channel/pause": ("give consumers no more messages", "`topic`, `channel`", _CHANNEL_ERRORS),
    "POST /channel/unpause": ("give them messages again", "`topic`, `channel`", _CHANNEL_ERRORS),
    "GET /config/auth_http_addresses": ("the auth servers; there may be passwords in it", "", ""),
    "GET /config/:opt": (
        "the value of an option, by its [config key](options.md); durations in nanoseconds",
        "",
        "INVALID_OPTION",
    ),
    "PUT /config/:opt": (
        "change an option until the next start: `log_level`, the body being `debug` or the like, or "
        "`nsqlookupd_tcp_addresses`, the body being a JSON list",
        "",
        "INVALID_VALUE, INVALID_OPTION",
    ),
    "GET /debug/pprof/": (f"list of the pages below, {_INSIDE}", "", ""),
    "GET /debug/pprof/cmdline": ("the command line, its words separated by zero bytes", "", ""),
    "GET /debug/pprof/symbol": ("`num_symbols: 0`, for tools of Go's that ask", "", ""),
    "POST /debug/pprof/symbol": ("the same", "", ""),
    "GET /debug/pprof/profile": ("who uses the CPU meanwhile", "`seconds`", ""),
    "GET /debug/pprof/heap": ("memory", "", ""),
    "GET /debug/pprof/goroutine": ("the greenlets with their stacks", "", ""),
    "GET /debug/pprof/block": ("where greenlets wait", "", ""),
    "GET /debug/pprof/threadcreate": ("the threads with their stacks", "", ""),
    "PUT /debug/setblockrate": ("checks `rate` and changes nothing", "`rate`", ""),
    "POST /debug/freememory": ("collect garbage, and give free memory back to the system", "", ""),
}

HTTP_ERRORS = {
    "BAD_BODY": "binary `/mpub`: the count or the sum of the sizes makes no sense, or the body ends too early",
    "BAD_MESSAGE": "binary `/mpub`: a message's size makes no sense, or the body ends too early",
    "BODY_TOO_BIG": "larger than `--max-body-size`",
    "CHANNEL_NOT_FOUND": "no such channel",
    "DRAINING": "new messages are [refused](operations.md#drain)",
    "EXITING": "the daemon, or this topic, is on its way out; or the disk refused the message",
    "FORBIDDEN": "the token or certificate may read, and this needs more",
    "FULL": "a [bound](survive.md#keep-a-backlog-within-bounds) refused it: which one, of what, stands behind it",
    "INTERNAL_ERROR": "the body could not be read, the disk refused, or a defect: the log says which",
    "INVALID_ARG_CHANNEL": "not a channel's name",
    "INVALID_ARG_TOPIC": "not a topic's name",
    "INVALID_DEFER": "no number of milliseconds from 0 to `--max-req-timeout`",
    "INVALID_LIMIT": "no number from 1 to 1000",
    "INVALID_OPTION": "no such config key, or one that cannot be changed",
    "INVALID_REQUEST": "the query has a bad escape or a semicolon",
    "INVALID_TOPIC": "not a topic's name",
    "INVALID_VALUE": "a value that the option cannot have; 413 for none, and for one that is too long",
    "METHOD_NOT_ALLOWED": "the path is known with other methods, which `Allow` lists",
    "MISSING_ARG_CHANNEL": "no parameter `channel`",
    "MISSING_ARG_TOPIC": "no parameter `topic`",
    "MSG_EMPTY": "an empty body",
    "MSG_TOO_BIG": "larger than `--max-msg-size`",
    "NOT_FOUND": "no such path",
    "TLS_REQUIRED": "`--tls-required=true`: ask by HTTPS, at the port that is told",
    "TOO_MANY_CHANNELS": "the topic has `--max-channels`",
    "TOO_MANY_TOPICS": "there are `--max-topics`",
    "TOPIC_NOT_FOUND": "no such topic",
    "UNAUTHORIZED": "a token or certificate is wanted",
}

# The line, in which states, what it does, the answer, and the errors but for those of all commands.
COMMANDS = {
    "IDENTIFY": (
        "IDENTIFY",
        "new",
        "say who one is, and ask for [settings](#identify)",
        "`OK`, or JSON",
        "BAD_BODY, IDENTIFY_FAILED",
    ),
    "AUTH": (
        "AUTH",
        "new",
        "show a secret, see [AUTH](security.md#auth)",
        "JSON",
        "BAD_BODY, AUTH_DISABLED, AUTH_FAILED, UNAUTHORIZED",
    ),
    "SUB": (
        "SUB {topic} {channel}",
        "new",
        "consume a channel; topic and channel are created if they are not there",
        "`OK`",
        "BAD_TOPIC, BAD_CHANNEL, SUB_FAILED, AUTH_FIRST, AUTH_FAILED, UNAUTHORIZED",
    ),
    "PUB": ("PUB {topic}", "any", "publish the body as one message", "`OK`", "BAD_TOPIC, BAD_MESSAGE, PUB_FAILED, *"),
    "MPUB": (
        "MPUB {topic}",
        "any",
        "publish several messages, all or none but for a disk that fails in between",
        "`OK`",
        "BAD_TOPIC, BAD_BODY, BAD_MESSAGE, MPUB_FAILED, *",
    ),
    "DPUB": (
        "DPUB {topic} {ms}",
        "any",
        "publish the body, to be held back for so many milliseconds",
        "`OK`",
        "BAD_TOPIC, BAD_MESSAGE, DPUB_FAILED, *",
    ),
    "RDY": ("RDY {count}", "subscribed", "have at most so many messages in flight; 1 without a count", "none", ""),
    "FIN": ("FIN {id}", "subscribed, closing", "the message is done with", "none", "FIN_FAILED"),
    "REQ": (
        "REQ {id} {ms}",
        "subscribed, closing",
        "give the message back, to be sent again after so many milliseconds",
        "none",
        "REQ_FAILED",
    ),
    "TOUCH": ("TOUCH {id}", "subscribed, closing", "begin the message's time-out anew", "none", "TOUCH_FAILED"),
    "NOP": ("NOP", "any", "nothing; the answer to a heartbeat", "none", ""),
    "CLS": ("CLS", "subscribed", "send no more messages; finish what is in flight, then close", "`CLOSE_WAIT`", ""),
}
_AUTH_ERRORS = "AUTH_FIRST, AUTH_FAILED, UNAUTHORIZED"

# What it means, and whether the connection ends.
WIRE_ERRORS = {
    "E_AUTH_DISABLED": ("there are no auth servers", True),
    "E_AUTH_FAILED": ("no auth server gave a valid answer", True),
    "E_AUTH_FIRST": ("AUTH has to come first", True),
    "E_BAD_BODY": ("a body, or its size, makes no sense, is too large or ends too early", True),
    "E_BAD_CHANNEL": ("not a channel's name", True),
    "E_BAD_MESSAGE": ("a message, or its size, makes no sense, is too large or ends too early", True),
    "E_BAD_PROTOCOL": ("the connection does not begin with `  V2`", True),
    "E_BAD_TOPIC": ("not a topic's name", True),
    "E_DPUB_FAILED": ("as E_PUB_FAILED", True),
    "E_FIN_FAILED": ("the message is not in flight, or not to this client", False),
    "E_IDENTIFY_FAILED": ("deflate and snappy at once", True),
    "E_INVALID": ("a command that is unknown, misspelt, or not allowed in this state", True),
    "E_MPUB_FAILED": ("as E_PUB_FAILED", True),
    "E_PUB_FAILED": (
        "the disk or a [bound](survive.md#keep-a-backlog-within-bounds) refused, the topic is on its way out, or there "
        "are `--max-topics`; in a drain it does not end it",
        True,
    ),
    "E_REQ_FAILED": ("as E_FIN_FAILED", False),
    "E_SUB_FAILED": ("the channel is on its way out, has `--max-channel-consumers`, or would be one too many", True),
    "E_TOUCH_FAILED": ("as E_FIN_FAILED", False),
    "E_UNAUTHORIZED": ("the auth server's answer does not allow it", True),
}

SETTINGS = {
    "client_id": "name of the client, for statistics",
    "hostname": "its host, for statistics",
    "heartbeat_interval": "milliseconds from 1000 to `--max-heartbeat-interval`; -1 for none; 30000 unless told",
    "output_buffer_size": "bytes from 64 to `--max-output-buffer-size`; -1 for no buffer; 16384 unless told",
    "output_buffer_timeout": "milliseconds from `--min-output-buffer-timeout` to `--max-output-buffer-timeout` until "
    "what is buffered is sent; -1 for no limit; `--output-buffer-timeout` unless told",
    "feature_negotiation": "answer with JSON, and with the upgrades that are asked for",
    "tls_v1": "go on in TLS",
    "deflate": "compress by deflate",
    "deflate_level": "how hard, up to `--max-deflate-level`; 6 unless told",
    "snappy": "compress by snappy",
    "sample_rate": "per cent of the messages to get, 1 to 99; the others are finished unseen; 0 is all of them",
    "user_agent": "program and version, for statistics",
    "msg_timeout": "milliseconds from 1000 to `--max-msg-timeout` to finish a message in; `--msg-timeout` unless told",
}

CLIENT_KEYS = {
    "client_id": "as in IDENTIFY; the address before that",
    "hostname": "as in IDENTIFY; the address before that",
    "version": "`V2`",
    "remote_address": "`host:port`; `@` on a unix socket",
    "deflate": "Whether the connection is compressed by deflate.",
    "snappy": "Whether it is compressed by snappy.",
    "user_agent": "as in IDENTIFY",
    "authed": "`true` after AUTH, else not there",
    "auth_identity": "whom the auth server said this is, if it did",
    "auth_identity_url": "its URL, if it told one",
    "pub_counts": "of a publisher: a topic, and how many messages it has published there",
    "tls": "Whether the connection is encrypted.",
    "tls_cipher_suite": "how, if it is",
    "tls_version": "`TLS1.2`, `TLS1.3`, …",
    "tls_negotiated_protocol": "empty",
    "tls_negotiated_protocol_is_mutual": "`true` with TLS",
}

MEMORY_KEYS = {
    "heap_objects": "blocks that Python's allocator has given out",
    "heap_idle_bytes": "memory that is reserved for data and not resident",
    "heap_in_use_bytes": "resident memory that is not shared with files",
    "heap_released_bytes": "how far resident memory is below its peak",
    "gc_pause_usec_100": "longest pause of the last 256 garbage collections, in microseconds",
    "gc_pause_usec_99": "99th percentile of these pauses",
    "gc_pause_usec_95": "95th percentile",
    "next_gc_bytes": "0: collections begin by number of objects, not of bytes",
    "gc_total_runs": "garbage collections since the start",
}


def page(name: str, text: str) -> str:
    """The page with its tables as they should be; what stands around them is kept. KeyError for a row that has no
    words here."""
    for place, table in TABLES[name].items():
        before, begin, rest = text.partition(f"<!-- {place} -->\n")
        _, end, after = rest.partition(f"<!-- end of {place} -->\n")
        if not end:
            raise ValueError(f"{name} has no place for the {place}")
        text = before + begin + "".join(f"{line}\n" for line in table()) + end + after
    return text


def http_errors() -> dict[str, set[str]]:
    """Every code that an answer can have, with its statuses, as the sources have them."""
    sources = _sources("web")
    found: dict[str, set[str]] = {"TLS_REQUIRED": {"403"}}
    for status, code in re.findall(r'HTTPError\((\d+), f?"([A-Z_]+)(?:: \{error\})?"\)', sources):
        found.setdefault(code, set()).add(status)
    for parameter in re.findall(r'_required\(.*"(\w+)"\)', sources):
        found[f"MISSING_ARG_{parameter.upper()}"] = {"400"}
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


_TAILS = {Tail.NOTHING: "", Tail.BODY: "size, body", Tail.MESSAGES: "size, count, so many of size and body"}


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
