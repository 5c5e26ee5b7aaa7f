"""Writes what is told about the options outside the program, from their one table in `gnsqd.options`: the config file
`contrib/nsqd.cfg.example`, and the tables in `contrib/docs/options.md`. `make options` runs it; a test compares."""

import re
import textwrap
from pathlib import Path

from gnsqd.gotext import format_duration, quote
from gnsqd.options import OPTIONS, TLS_VERSIONS, Kind, Option

CONTRIB = Path(__file__).parents[1] / "contrib"
EXAMPLE = CONTRIB / "nsqd.cfg.example"
PAGE = CONTRIB / "docs" / "options.md"

HEAD = """\
# A config file for gnsqd, read with --config: every key that there is, with its default. A flag wins over its key.
# Durations are texts such as "1h30m" or "250ms", or numbers of milliseconds.
# Written by `make options` from the table in gnsqd/options.py.
"""
OURS = """
# What follows is of gnsqd alone: nsqd ignores these keys.
"""

# Where the default is taken from the host: what the page says of it, and a value to show in the file.
_HOST = {
    "node_id": ("hash of the host name", 1),
    "broadcast_address": ("host name", "nsqd-1.example.com"),
}
_TYPES = {
    Kind.INT: "int",
    Kind.DURATION: "duration",
    Kind.BOOL: "bool",
    Kind.STRINGS: "list",
    Kind.FLOATS: "list of floats",
    Kind.TLS_REQUIRED: "bool, `tcp-https`",
}


def config_example() -> str:
    """The text of the file."""
    rows = [option for option in OPTIONS if option.cfg]
    theirs = "".join(_entry(option) for option in rows if not option.ours)
    ours = "".join(_entry(option) for option in rows if option.ours)
    return HEAD + theirs + OURS + ours


def _entry(option: Option) -> str:
    comment = textwrap.fill(option.help, 110, initial_indent="## ", subsequent_indent="##  ")
    if option.name in _HOST:
        return f"\n{comment}\n# {option.cfg} = {_toml(option.kind, _HOST[option.name][1])}\n"
    return f"\n{comment}\n{option.cfg} = {_toml(option.kind, option.default)}\n"


def _toml(kind: Kind, value: object) -> str:
    match kind, value:
        case Kind.DURATION, int():
            return quote(format_duration(value))
        case Kind.LOG_LEVEL, _:
            return quote(value.name.lower())  # type: ignore[attr-defined]
        case Kind.TLS_VERSION, _:
            return quote(next(name for name, number in TLS_VERSIONS.items() if number == value))
        case Kind.TLS_REQUIRED | Kind.BOOL, _:
            return str(bool(value)).lower()
        case _, str():
            return quote(value)
        case _:
            return str(value)


def page(text: str) -> str:
    """The page with its tables as they should be; what stands around them is kept."""
    flags = [option for option in OPTIONS if option.flag]
    tables = {
        "nsqd": [option for option in flags if not option.ours],
        "gnsqd": [option for option in flags if option.ours],
    }
    for name, options in tables.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->\n")
        if not end:
            raise ValueError(f"{PAGE} has no place for the flags of {name}")
        text = before + begin + _table(options) + end + after
    return text


def _table(options: list[Option]) -> str:
    rows = ["| Flag | Config key | Type | Default | |", "|---|---|---|---|---|"]
    for option in sorted(options, key=lambda option: option.flag):
        key = f"`{option.cfg}`" if option.cfg else ""
        kind = _TYPES.get(option.kind, "string")
        rows.append(f"| `--{option.flag}` | {key} | {kind} | {_default(option)} | {_meaning(option)} |")
    return "\n".join(rows) + "\n"


def _default(option: Option) -> str:
    if option.name in _HOST:
        return _HOST[option.name][0]
    text = _toml(option.kind, option.default).strip('"')
    return f"`{text}`" if text else ""


def _meaning(option: Option) -> str:
    text = re.sub(r"([<>|])", r"\\\1", option.help)
    if option.reload:
        text += "; can be changed at run time by `PUT /config/" + option.cfg + "`"
    return text


if __name__ == "__main__":
    EXAMPLE.write_text(config_example())
    PAGE.write_text(page(PAGE.read_text()))
