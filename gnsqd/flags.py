"""The command line, in the syntax of Go's flag package and with its messages and usage text (NSQD-COMPAT 1.1).

`-name` and `--name` are the same; a bool flag takes its value only behind `=`; the first word that is not a flag ends
the flags, and whatever follows is ignored.
"""

from collections.abc import Sequence
from typing import Any

from gnsqd.errors import NSQError
from gnsqd.gotext import (
    NumberError,
    format_duration,
    format_value,
    parse_bool,
    parse_duration,
    parse_float,
    parse_int_literal,
    quote,
)
from gnsqd.log import Level
from gnsqd.options import OPTIONS, TLS_NOT_REQUIRED, TLS_REQUIRED, TLS_REQUIRED_EXCEPT_HTTP, TLS_VERSIONS, Kind, Option

_BY_FLAG = {option.flag: option for option in OPTIONS if option.flag}
_NEEDS_NO_VALUE = (Kind.BOOL, Kind.TLS_REQUIRED)


class FlagError(NSQError):
    """A bad command line: the text and then the usage text go to stderr, exit 2."""


class HelpRequested(NSQError):
    """`-h` or `-help`: the usage text goes to stderr, exit 0."""


class BadValue(NSQError):
    """A value refused where the real daemon only writes a dated line without prefix, exit 1."""


def parse_flags(arguments: Sequence[str]) -> dict[str, Any]:
    """The values of the flags that were given, by the names `Options` has for them.

    Raises FlagError, HelpRequested, or BadValue (for a percentile that is not a number).
    """
    values: dict[str, Any] = {}
    rest = list(arguments)
    while rest and len(rest[0]) > 1 and rest[0].startswith("-"):
        argument = rest.pop(0)
        if argument == "--":
            break
        name = argument[2:] if argument.startswith("--") else argument[1:]
        if not name or name[0] in "-=":
            raise FlagError(f"bad flag syntax: {argument}")
        name, equals, text = name.partition("=")
        option = _BY_FLAG.get(name)
        if option is None:
            if name in ("help", "h"):
                raise HelpRequested
            raise FlagError(f"flag provided but not defined: -{name}")
        if not equals and option.kind in _NEEDS_NO_VALUE:
            text = "true"
        elif not equals:
            if not rest:
                raise FlagError(f"flag needs an argument: -{name}")
            text = rest.pop(0)
        try:
            values[option.name] = _parse(option, text, values.get(option.name, option.default))
        except ValueError as error:
            if option.kind in _NEEDS_NO_VALUE:
                raise FlagError(f"invalid boolean value {quote(text)} for -{name}: {error}") from None
            raise FlagError(f"invalid value {quote(text)} for flag -{name}: {error}") from None
    return values


def _parse(option: Option, text: str, before: Any) -> Any:
    """The value a flag has after `text`; `before` is its value so far. ValueError with the reason."""
    match option.kind:
        case Kind.INT:
            try:
                return parse_int_literal(text)
            except NumberError as error:
                raise ValueError("parse error" if error.reason == "invalid syntax" else error.reason) from None
        case Kind.DURATION | Kind.BOOL:
            try:
                return parse_bool(text) if option.kind is Kind.BOOL else parse_duration(text)
            except ValueError:
                raise ValueError("parse error") from None
        case Kind.STRINGS:
            return [*before, text]
        case Kind.FLOATS:
            return sorted([*before, *map(_percentile, text.split(","))], reverse=True)
        case Kind.LOG_LEVEL:
            return Level.parse(text)
        case Kind.TLS_REQUIRED:
            return parse_tls_required(text)
        case Kind.TLS_VERSION:
            return parse_tls_version(text) if text else before
        case _:
            return text


def _percentile(text: str) -> float:
    try:
        return parse_float(text)
    except ValueError:
        raise BadValue(f"Could not parse: {text}") from None


def parse_tls_required(text: str) -> int:
    """`tcp-https` or a bool, in any case; ValueError otherwise."""
    if text.lower() == "tcp-https":
        return TLS_REQUIRED_EXCEPT_HTTP
    return TLS_REQUIRED if parse_bool(text.lower()) else TLS_NOT_REQUIRED


def parse_tls_version(text: str) -> int:
    """The number of a version's name in any case; ValueError otherwise (`ssl3.0` included, which the help names)."""
    if text.lower() not in TLS_VERSIONS:
        raise ValueError(f"unknown tlsVersionOption {quote(text.lower())}")
    return TLS_VERSIONS[text.lower()]


def usage() -> str:
    """The text of `--help`. The program is always called nsqd in it; flags that nsqd does not have come at the end."""
    options = [_BY_FLAG[flag] for flag in sorted(_BY_FLAG)]
    theirs = "".join(_usage(option) for option in options if not option.ours)
    ours = "".join(_usage(option) for option in options if option.ours)
    return f"Usage of nsqd:\n{theirs}\nFlags of gnsqd alone:\n{ours}"


_TYPE_WORDS = {Kind.STRING: " string", Kind.INT: " int", Kind.DURATION: " duration"}
_TYPE_WORDS |= dict.fromkeys(_NEEDS_NO_VALUE, "")


def _usage(option: Option) -> str:
    lines = f"  -{option.flag}{_TYPE_WORDS.get(option.kind, ' value')}\n    \t{option.help}"
    if default := _default_text(option):
        lines += f" (default {default})"
    return lines + "\n"


def _default_text(option: Option) -> str:
    """The default as the usage text shows it; empty for a zero value, which it leaves out."""
    match option.kind:
        case Kind.LOG_LEVEL:
            return str(option.default.word)
        case Kind.TLS_VERSION:
            return next(name for name, number in TLS_VERSIONS.items() if number == option.default)
        case _ if not option.default:
            return ""
        case Kind.STRING:
            return quote(option.default)
        case Kind.DURATION:
            return format_duration(option.default)
        case _:
            return format_value(option.default)
