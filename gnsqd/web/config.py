"""The options as `/config/{opt}` shows and takes them, by the rows of OPTIONS (NSQD-COMPAT 5.2)."""

import json
from re import compile as regex

from gnsqd.log import Level
from gnsqd.options import OPTIONS, Kind, Option, Options
from gnsqd.web.routes import JSON, HTTPError

MAX_VALUE = 32768  # bytes: a thousand addresses, and some ms to look through when they are none

_BY_KEY = {option.cfg: option for option in OPTIONS if option.cfg}
_SURROGATE = regex("[\ud800-\udfff]")


def find_option(key: str) -> Option:
    """The option that stands under `key` in the config file too; HTTPError for others."""
    if key not in _BY_KEY:
        raise HTTPError(400, "INVALID_OPTION")
    return _BY_KEY[key]


def show(options: Options, option: Option) -> str | JSON:
    """Text as it is, everything else as JSON: durations in ns, levels and TLS settings as numbers."""
    value = getattr(options, option.name)
    return value if isinstance(value, str) else JSON(value)


def change(options: Options, option: Option, body: bytes) -> None:
    """Give the option a new value; HTTPError if it may not change, or not to that."""
    if not option.reload:
        raise HTTPError(400, "INVALID_OPTION")
    text = body.decode("utf-8", "replace")
    try:
        value = Level.parse(text) if option.kind is Kind.LOG_LEVEL else _parse_strings(text)
    except (ValueError, RecursionError) as error:
        raise HTTPError(400, "INVALID_VALUE") from error
    setattr(options, option.name, value)


def _parse_strings(text: str) -> list[str] | None:
    """A JSON list of strings, an empty one for each null in it, or null for no list; ValueError for all else."""
    value = json.loads(text)
    if value is None:
        return None
    if not isinstance(value, list) or not all(item is None or isinstance(item, str) for item in value):
        raise ValueError("no list of strings")
    return [_SURROGATE.sub("\ufffd", item or "") for item in value]
