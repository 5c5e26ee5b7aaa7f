"""The TOML config file, and the order of precedence: command line flag, config key, default (NSQD-COMPAT 1.3).

Values are coerced as the real daemon does, with its messages, unless that only causes failures: an integer for a bool
has its usual meaning (1 is true), and values that it would misprint or crash on are refused.
"""

import os
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from gnsqd.errors import StartError
from gnsqd.flags import BadValue, parse_tls_required, parse_tls_version
from gnsqd.gotext import format_duration, format_value, parse_bool, parse_duration, parse_float, parse_int, type_name
from gnsqd.log import Level
from gnsqd.options import OPTIONS, Kind, Option, Options


def load(path: str) -> dict[str, Any]:
    """The keys of a config file, as they are; StartError when it cannot be read or is not TOML."""
    try:
        with open(path, "rb") as file:
            config = tomllib.load(file)
        _check_integers(config)
        return config
    except OSError as error:
        verb = "read" if isinstance(error, IsADirectoryError) else "open"
        reason = f"{verb} {path}: {os.strerror(error.errno or 0).lower()}"
    except ValueError as error:  # no TOML, or no UTF-8
        reason = f"toml: {error}"
    except RecursionError:
        reason = "toml: nested too deeply"
    raise StartError(reason, prefix=f"failed to load config file {path}")


def _check_integers(value: object) -> None:
    """ValueError for an integer, wherever it stands, that is not an int64; Python's parser takes any."""
    if isinstance(value, dict | list):
        for element in value.values() if isinstance(value, dict) else value:
            _check_integers(element)
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} is out of range for int64")


def resolve(flags: Mapping[str, Any], config: Mapping[str, Any]) -> Options:
    """The options that flags (as `parse_flags` gives them) and config file amount to.

    Unknown keys are ignored. Raises StartError or BadValue, each with the text the real daemon has where it has one.
    """
    config = _parse_special(config)
    values = dict(flags)
    for option in OPTIONS:
        if option.cfg and option.cfg in config and option.name not in flags:
            values[option.name] = _coerce(option, config[option.cfg])
    return Options(**values)


# These come first and are checked even where a flag overrides them.
_SPECIAL: dict[str, Callable[[str], int]] = {
    "tls_required": parse_tls_required,
    "tls_min_version": parse_tls_version,
    "log_level": Level.parse,
}


def _parse_special(config: Mapping[str, Any]) -> dict[str, Any]:
    parsed = dict(config)
    for key, parse in _SPECIAL.items():
        if key not in config:
            continue
        text = format_value(config[key])
        if key == "tls_min_version" and not text:
            del parsed[key]
            continue
        try:
            parsed[key] = parse(text)
        except ValueError:
            raise StartError(f"failed parsing {key} {text}", prefix="") from None
    return parsed


# What errors call them.
_TARGETS = {Kind.INT: "int64", Kind.DURATION: "time.Duration", Kind.BOOL: "bool", Kind.STRING: "string"}
_TARGETS |= {Kind.STRINGS: "[]string", Kind.FRACTION: "float64", Kind.FLOATS: "[]float64"}


def _coerce(option: Option, value: object) -> Any:
    if option.cfg in _SPECIAL:
        return value
    try:
        return _convert(option.kind, value)
    except ValueError as error:
        if option.kind in (Kind.STRINGS, Kind.FLOATS) and not isinstance(value, str):  # the real daemon panics
            raise StartError(f"failed parsing {option.cfg} {format_value(value)} - {error}", prefix="") from None
        default = format_duration(option.default) if option.kind is Kind.DURATION else format_value(option.default)
        what = f"{format_value(value)} ({default}) for field {option.field}"
        raise BadValue(f"ERROR: Resolve failed to coerce value {what} - {error}") from None


def _convert(kind: Kind, value: object) -> Any:
    """A value of the file as the option's; ValueError. Numbers and bools may be strings, lists strings with commas."""
    match kind, value:
        case Kind.INT, str() | int() if not isinstance(value, bool):
            return parse_int(str(value))
        case Kind.DURATION, str():
            return parse_duration(value)
        case Kind.DURATION, int() if not isinstance(value, bool):
            return parse_duration(f"{value}ms")
        case Kind.BOOL, bool():
            return value
        case Kind.BOOL, str() | int():
            return parse_bool(str(value))
        case (Kind.STRING, str()) | (Kind.FRACTION, float()):
            return value
        case Kind.STRINGS, str():
            return value.split(",")
        case Kind.STRINGS, list():
            return [_convert(Kind.STRING, element) for element in value]
        case Kind.FLOATS, str():
            return [parse_float(part.strip()) for part in value.split(",")]
        case Kind.FLOATS, list():
            return [_convert(Kind.FRACTION, element) for element in value]
    raise ValueError(f"invalid {_TARGETS[kind]} value type {type_name(value)}")
