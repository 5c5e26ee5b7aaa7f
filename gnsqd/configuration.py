"""Reads options from the command line, then the TOML config file, then defaults (NSQD-COMPAT 1.1 and 1.3).

The command line has the syntax of Go's flag package and its messages and usage text: `-name` and `--name` are the same;
a bool flag takes a value only after `=`; the first word that is not a flag ends the flags, and the rest is ignored.
Values of the file are coerced as in the real daemon, with its messages, except for coercions that cause failures there:
an integer for a bool has its usual meaning (1 is true), and values that it misprints or crashes on are refused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

from gnsqd import gotext
from gnsqd.log import Level
from gnsqd.options import DEMO, DEV, OPTIONS, TLS_VERSIONS, Kind, Option, Options, parse_tls_required, parse_tls_version
from gnsqd.shared.config_file import describe_failure, read_config_file
from gnsqd.shared.errors import NSQError, StartError

Table = Sequence[Option]

_MAX_HINTS = 100  # for unknown keys: each takes a millisecond
_NEEDS_NO_VALUE = (Kind.BOOL, Kind.TLS_REQUIRED)


class FlagError(NSQError):
    """The command line is invalid: the text and then the usage text go to stderr, exit 2."""


class HelpRequested(NSQError):
    """The command line has `-h` or `-help`: the usage text goes to stderr, exit 0."""


class BadValue(NSQError):
    """A value is refused where the real daemon only writes a dated line without prefix, exit 1."""


def parse_flags(arguments: Sequence[str], options: Table = OPTIONS) -> tuple[dict[str, Any], list[str]]:
    """Returns the values of the flags that were given, by the names of their options, and the words that are ignored.
    Raises FlagError, HelpRequested, or BadValue (for a percentile that is not a number)."""
    values: dict[str, Any] = {}
    by_flag = {option.flag: option for option in options if option.flag}
    rest = list(arguments)
    while rest and len(rest[0]) > 1 and rest[0].startswith("-"):
        argument = rest.pop(0)
        if argument == "--":
            break
        name = argument[2:] if argument.startswith("--") else argument[1:]
        if not name or name[0] in "-=":
            raise FlagError(f"bad flag syntax: {argument}")
        name, equals, text = name.partition("=")
        option = by_flag.get(name)
        if option is None:
            raise HelpRequested if name in ("help", "h") else FlagError(f"flag provided but not defined: -{name}")
        if not equals and option.kind in _NEEDS_NO_VALUE:
            text = "true"
        elif not equals and not rest:
            raise FlagError(f"flag needs an argument: -{name}")
        elif not equals:
            text = rest.pop(0)
        try:
            values[option.name] = _parse(option, text, values.get(option.name, option.default))
        except ValueError as error:
            what, of = ("boolean ", "") if option.kind in _NEEDS_NO_VALUE else ("", "flag ")
            raise FlagError(f"invalid {what}value {gotext.quote(text)} for {of}-{name}: {error}") from None
    return values, rest


def _parse(option: Option, text: str, before: Any) -> Any:
    """Returns a flag's value after `text`; `before` is its value so far. Raises ValueError with the reason."""
    match option.kind:
        case Kind.INT:
            try:
                return gotext.parse_int_literal(text)
            except gotext.NumberError as error:
                raise ValueError("parse error" if error.reason == "invalid syntax" else error.reason) from None
        case Kind.DURATION | Kind.BOOL:
            with suppress(ValueError):
                return gotext.parse_bool(text) if option.kind is Kind.BOOL else gotext.parse_duration(text)
            raise ValueError("parse error")
        case Kind.STRINGS:
            return [*before, text]
        case Kind.FLOATS:
            return sorted([*before, *map(_percentile, text.split(","))], reverse=True)
        case Kind.TLS_VERSION if not text:
            return before
        case _:
            parse = _SPECIAL.get(option.cfg)
            return parse(text) if parse else text


def _percentile(text: str) -> float:
    try:
        return gotext.parse_float(text)
    except ValueError:
        raise BadValue(f"Could not parse: {text}") from None


def usage(program: str = "nsqd", options: Table = OPTIONS) -> str:
    """Returns the text of `--help`. `program` is the real daemon's name; flags that it lacks come at the end."""
    rows = sorted((option for option in options if option.flag), key=attrgetter("flag"))
    theirs = "".join(_usage(option) for option in rows if not option.ours)
    ours = "".join(_usage(option) for option in rows if option.ours)
    command = f"Command of g{program} alone:\n  check-config FILE\n    \tlist the problems of a config file\n"
    return f"Usage of {program}:\n{theirs}\nFlags of g{program} alone:\n{ours}\n{command}"


_TYPE_WORDS = {Kind.STRING: " string", Kind.INT: " int", Kind.DURATION: " duration"}
_TYPE_WORDS |= dict.fromkeys(_NEEDS_NO_VALUE, "")


def _usage(option: Option) -> str:
    default = f" (default {text})" if (text := _default_text(option)) else ""
    return f"  -{option.flag}{_TYPE_WORDS.get(option.kind, ' value')}\n    \t{option.help}{default}\n"


def _default_text(option: Option) -> str:
    """Returns the default as the usage text shows it; "" for a zero value, which it leaves out."""
    match option.kind:
        case Kind.LOG_LEVEL:
            return str(option.default.word)
        case Kind.TLS_VERSION:
            return next(name for name, number in TLS_VERSIONS.items() if number == option.default)
        case _ if not option.default:
            return ""
        case Kind.STRING:
            return gotext.quote(option.default)
        case Kind.DURATION:
            return gotext.format_duration(option.default)
        case _:
            return gotext.format_value(option.default)


# The config file


def load_file(path: str) -> dict[str, Any]:
    """Returns the keys of a config file, without conversion; raises StartError if it cannot be read or is not TOML."""
    import tomllib  # imported late, as it loads slowly

    try:
        config = tomllib.loads(read_config_file(path).decode("utf-8-sig"))
        _check_integers(config)
        return config
    except OSError as error:
        reason = describe_failure(error)
    except ValueError as error:  # no TOML, or no UTF-8
        reason = f"toml: {error}"
    except RecursionError:
        reason = "toml: nested too deeply"
    raise StartError(reason, prefix=f"failed to load config file {path}")


def unknown_keys(config: Mapping[str, Any], options: Table = OPTIONS) -> Iterator[str]:
    """Yields a text for each key of the config file that no option has, with the nearest that one has; they are
    ignored."""
    names = {option.flag.replace("-", "_"): option.cfg for option in options if option.cfg}
    names |= {key: key for key in names.values()}
    known = set(names.values())
    for number, (key, value) in enumerate((key, value) for key, value in config.items() if key not in known):
        if isinstance(value, dict):
            yield f"table [{key}] is ignored, options belong above all tables"
            continue
        from difflib import get_close_matches  # imported late, as few need it

        nearest = get_close_matches(key.lower().replace("-", "_"), names, 1, 0.7) if number < _MAX_HINTS else []
        hint = f"; did you mean {names[nearest[0]]}?" if nearest else ""
        yield f"unknown key {key} is ignored{hint}"


def _check_integers(value: object) -> None:
    """Raises ValueError for an integer at any depth that is not an int64; Python's parser accepts any."""
    if isinstance(value, dict | list):
        for element in value.values() if isinstance(value, dict) else value:
            _check_integers(element)
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} is out of range for int64")


def resolve(flags: Mapping[str, Any], config: Mapping[str, Any]) -> Options:
    """Returns nsqd's options by flags and config file; raises as `combine`."""
    values = combine(flags, config)
    if values.get("dev"):
        values = DEV | (DEMO if values.get("demo") else {}) | values
    is_auto = values.get("broadcast_address") == "auto"
    if is_auto:
        del values["broadcast_address"]  # it is the host name until an nsqlookupd is connected
    is_given = "broadcast_address" in values
    return Options(**values, broadcast_address_given=is_given, broadcast_address_auto=is_auto)


# These come first and are checked even where a flag overrides them.
_SPECIAL: dict[str, Callable[[str], int]] = {
    "tls_required": parse_tls_required,
    "tls_min_version": parse_tls_version,
    "log_level": Level.parse,
}


def combine(flags: Mapping[str, Any], config: Mapping[str, Any], options: Table = OPTIONS) -> dict[str, Any]:
    """Merges flags and config file, whose unknown keys are ignored; returns the values without defaults. Raises
    StartError or BadValue, each with the text the real daemon has where it has one."""
    known = {option.cfg: config[option.cfg] for option in options if option.cfg in config}
    for key in filter(known.__contains__, _SPECIAL):
        text = gotext.format_value(known[key])
        if key == "tls_min_version" and not text:
            del known[key]
            continue
        try:
            known[key] = _SPECIAL[key](text)
        except ValueError:
            raise StartError(f"failed parsing {key} {text}", prefix="") from None
    rows = [option for option in options if option.cfg and option.cfg in known and option.name not in flags]
    return {**flags, **{option.name: _coerce(option, known[option.cfg]) for option in rows}}


# The names of types in errors.
_TARGETS = {Kind.INT: "int64", Kind.DURATION: "time.Duration", Kind.BOOL: "bool", Kind.STRING: "string"}
_TARGETS |= {Kind.STRINGS: "[]string", Kind.FRACTION: "float64", Kind.FLOATS: "[]float64"}
_SOURCES = {bool: "bool", int: "int64", float: "float64", str: "string", list: "[]interface {}"}
_SOURCES |= {dict: "map[string]interface {}"}  # all else are dates and times


def _coerce(option: Option, value: object) -> Any:
    if option.cfg in _SPECIAL:
        return value
    try:
        return _convert(option.kind, value)
    except ValueError as error:
        if option.kind in (Kind.STRINGS, Kind.FLOATS) and not isinstance(value, str):  # the real daemon panics
            raise StartError(f"failed parsing {option.cfg} {gotext.format_value(value)} - {error}", prefix="") from None
        shown = gotext.format_duration if option.kind is Kind.DURATION else gotext.format_value
        what = f"{gotext.format_value(value)} ({shown(option.default)}) for field {option.field}"
        raise BadValue(f"ERROR: Resolve failed to coerce value {what} - {error}") from None


def _convert(kind: Kind, value: object) -> Any:
    """Converts a value of the file; raises ValueError. Numbers and bools may be strings, lists strings with commas."""
    match kind, value:
        case Kind.INT, str() | int() if not isinstance(value, bool):
            return gotext.parse_int(str(value))
        case Kind.DURATION, str():
            return gotext.parse_duration(value)
        case Kind.DURATION, int() if not isinstance(value, bool):
            return gotext.parse_duration(f"{value}ms")
        case Kind.BOOL, bool():
            return value
        case Kind.BOOL, str() | int():
            return gotext.parse_bool(str(value))
        case (Kind.STRING, str()) | (Kind.FRACTION, float()):
            return value
        case Kind.STRINGS, str():
            return value.split(",")
        case Kind.STRINGS, list():
            return [_convert(Kind.STRING, element) for element in value]
        case Kind.FLOATS, str():
            return [gotext.parse_float(part.strip()) for part in value.split(",")]
        case Kind.FLOATS, list():
            return [_convert(Kind.FRACTION, element) for element in value]
    raise ValueError(f"invalid {_TARGETS[kind]} value type {_SOURCES.get(type(value), 'time.Time')}")
