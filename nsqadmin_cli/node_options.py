"""The options of running nodes: their values as a node answers them, parsed, and as readable text."""

import json
from collections.abc import Sequence

from msgspec import DecodeError
from msgspec.json import Decoder

from gnsqd.log import Level
from gnsqd.options import OPTIONS, TLS_VERSIONS, Kind
from nsqadmin_cli import units
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.http_client import NodeRefused

UNKNOWN = "INVALID_OPTION"  # the code of a node's answer
NODE_OPTIONS = {option.cfg: option.kind for option in OPTIONS if option.cfg}
_NAMES: dict[Kind, dict[int, str]] = {
    Kind.LOG_LEVEL: {level.value: level.name.lower() for level in Level},
    Kind.TLS_REQUIRED: {0: "no", 1: "tcp-https", 2: "yes"},
    Kind.TLS_VERSION: {number: name for name, number in TLS_VERSIONS.items()},
}
# A node may send anything, but the value of an option is not nested.
_VALUES = Decoder(str | int | float | bool | list[str | int | float | bool] | None)


def parse(key: str, text: str) -> object:
    """Returns the value in a node's answer: parsed JSON for options known not to be text, else the text itself."""
    if NODE_OPTIONS.get(key, Kind.STRING) is Kind.STRING:
        return text
    try:
        return _VALUES.decode(text)
    except (DecodeError, RecursionError):
        return text


def shown(key: str, value: object) -> str:
    kind = NODE_OPTIONS.get(key, Kind.STRING)
    if kind is Kind.DURATION and type(value) is int and 0 <= value < 2**63:
        return units.latency(value / 1e9)
    if kind in _NAMES and type(value) is int:
        return _NAMES[kind].get(value, str(value))
    if kind in (Kind.STRINGS, Kind.FLOATS) and isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, str):
        return value or "none"
    return json.dumps(value)


def options_of(node: Nsqd, keys: Sequence[str]) -> dict[str, object]:
    """Returns the values of the options that the node has."""
    values: dict[str, object] = {}
    for key in keys:
        try:
            values[key] = parse(key, node.config(key))
        except NodeRefused as error:
            if error.code != UNKNOWN:
                raise
    return values
