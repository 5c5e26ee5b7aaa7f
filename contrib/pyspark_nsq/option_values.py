"""The kinds of values that options have, each with a name for people and a function that reads it.

A reading function raises ValueError with what was expected.
"""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from gnsqd.shared.durations import parse_duration
from gnsqd.shared.errors import StorageError
from gnsqd.shared.log_store import LogStore
from gnsqd.shared.names import is_ephemeral, is_valid_name

Address = tuple[str, int]  # (host, port)

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/?#@\[\]]+)):([0-9]{1,5})")
_SIZE = re.compile(r"([0-9]+)\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE)
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_BOOLEANS = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}


class ValueKind(NamedTuple):
    """A kind of value: `name` is for documentation, `read` makes a value of a text; `none` is that of no text."""

    name: str
    read: Callable[[str], object]
    none: Any = None


def _text(text: str) -> str:
    if not text:
        raise ValueError("expected a text that is not empty")
    return text


def _name(text: str) -> str:
    if not is_valid_name(text):
        raise ValueError(f"expected at most 64 of the characters . a-z A-Z 0-9 _ -, but {text!r} is not that")
    return text


def _channel(text: str) -> str:
    if is_ephemeral(text):
        raise ValueError("expected a channel that outlives its consumers: an ephemeral one goes with the last of them")
    return _name(text)


def _choice(name: str) -> ValueKind:
    """Returns the kind whose values are the words that `name` lists; case does not matter."""
    words = re.split(", | or ", name)

    def read_choice(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"expected {name}")
        return text.lower()

    return ValueKind(name, read_choice)


def _list(read: Callable[[str], object]) -> Callable[[str], tuple[object, ...]]:
    def read_list(text: str) -> tuple[object, ...]:
        items = [item.strip() for item in text.split(",")]
        if "" in items:
            raise ValueError("expected values between commas, but one of them is empty")
        if twice := sorted(item for item in items if items.count(item) > 1):
            raise ValueError(f"expected each value once, but {twice[0]!r} is there more often")
        return tuple(map(read, items))

    return read_list


def _token(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._~+/=-]+", text):
        raise ValueError("expected a token, of the characters A-Z a-z 0-9 . _ ~ + / = -")
    return text


def _pattern(text: str) -> str:
    try:
        re.compile(_text(text))
    except re.error as error:
        raise ValueError(f"expected a regular expression of Python: {error}") from None
    return text


def _address(text: str) -> Address:
    match = _ADDRESS.fullmatch(text)
    if not match or not 0 < int(match[3]) < 65536:
        raise ValueError(f"expected host:port or [ipv6]:port, but {text!r} is not that")
    return match[1] or match[2], int(match[3])


def _http_address(text: str) -> Address:
    return _address(text.removeprefix("http://").removesuffix("/"))


def _store(text: str) -> tuple[Address, str]:
    address, _, url = text.partition("=")
    if not url:
        raise ValueError(f"expected host:port=URL, but {text!r} is not that")
    try:
        LogStore(url)
    except StorageError as error:
        raise ValueError(str(error)) from None
    return _address(address), url


def _whole(text: str, least: int = 1) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < least:
        raise ValueError(f"expected a whole number from {least} on")
    return int(text)


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError("expected true or false")
    return _BOOLEANS[text.lower()]


def _duration(text: str) -> float:
    return parse_duration(re.sub(r"([0-9])\s+([a-z])", r"\1\2", text))  # Spark's own durations may have a space: 10 s


def _positive_duration(text: str) -> float:
    seconds = _duration(text)
    if not seconds:
        raise ValueError("expected more than 0")
    return seconds


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if not match or not int(match[1]):
        raise ValueError("expected bytes from 1 on, or a number with k, m, g or t behind it: 512m, 10g")
    return int(match[1]) * _BYTES[(match[2] or "").lower()]


def _invalid_rows(text: str) -> str:
    if text.lower() in ("fail", "skip"):
        return text.lower()
    if not text.startswith("topic:"):
        raise ValueError("expected fail, skip or topic:NAME")
    return f"topic:{_name(text.removeprefix('topic:'))}"


def _offsets(text: str) -> str | dict[str, dict[str, int]]:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    try:
        given = json.loads(text)
        offsets = {topic: {node: _number(number) for node, number in nodes.items()} for topic, nodes in given.items()}
    except (AttributeError, ValueError):
        raise ValueError(
            'expected earliest, latest or JSON such as {"clicks": {"node-a:4150": 5001}}, with numbers from -2 on'
        ) from None
    return offsets


def _number(value: object) -> int:
    if type(value) is not int or value < -2:
        raise ValueError
    return value


def _moment(text: str) -> str:
    """Returns what a gnsqd takes as `at`."""
    if re.fullmatch(r"[0-9]{1,15}", text):
        moment = datetime.fromtimestamp(int(text) / 1000, UTC).isoformat(timespec="milliseconds")
        if len(text) in (10, 11):
            raise ValueError(f"expected milliseconds, of which this is {moment}: seconds need 000 behind them")
        return moment
    if re.match(r"-[0-9]", text):
        return text
    try:
        has_zone = datetime.fromisoformat(text.upper()).tzinfo is not None
    except ValueError:
        raise ValueError("expected milliseconds, a time of RFC 3339, or a time ago such as -15m or -1d12h") from None
    if not has_zone:
        raise ValueError("expected a time with a zone: 2026-11-29T10:00:00Z, or with +01:00 instead of Z")
    return text


def _moments(text: str) -> str | dict[str, str]:
    if not text.startswith("{"):
        return _moment(text)
    try:
        given = json.loads(text)
        moments = {topic: str(moment) for topic, moment in given.items()}
    except ValueError:
        raise ValueError('expected a time, or JSON such as {"clicks": "-15m", "views": 1795795200000}') from None
    return {_name(topic): _moment(moment) for topic, moment in moments.items()}


TEXT = ValueKind("text", _text)
MODE = _choice("auto, ranges or deliveries")
OFFSETS = ValueKind("offsets", _offsets)
MOMENT = ValueKind("time", _moments)
STRATEGY = _choice("error or latest")
INVALID_ROWS = ValueKind("fail, skip, topic:NAME", _invalid_rows)
FILE = ValueKind("file", _text)
TOPIC = ValueKind("topic", _name)
TOPICS = ValueKind("topics", _list(_name), ())
TOKEN = ValueKind("token", _token)
PATTERN = ValueKind("regular expression", _pattern, "")
CHANNEL = ValueKind("channel", _channel, "")
TCP_ADDRESSES = ValueKind("addresses", _list(_address), ())
HTTP_ADDRESSES = ValueKind("addresses", _list(_http_address), ())
STORES = ValueKind("URLs", _list(_store), ())
NUMBER = ValueKind("number", _whole)
BOOLEAN = ValueKind("true or false", _boolean)
DURATION = ValueKind("duration", _duration)
TIMEOUT = ValueKind("duration", _positive_duration)
WAIT = ValueKind("milliseconds", lambda text: _whole(text, 0) / 1000)  # 0 does without
MSG_TIMEOUT = ValueKind("milliseconds", lambda text: _whole(text, 1000))  # the least that an nsqd takes
SIZE = ValueKind("bytes", _size)
