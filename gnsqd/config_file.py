"""The TOML config file, and the order of precedence: command line flag, config key, default (NSQD-COMPAT 1.3).

Values are coerced as the real daemon does, with its messages, but for what only hurts there: an integer for a bool
means what it says (1 is true), and values that it would misprint or crash on are refused.
"""

import os
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from gnsqd.errors import StartError
from gnsqd.flags import BadValue, parse_tls_required, parse_tls_version
from gnsqd.gotext import (
    format_duration,
    format_value,
    parse_bool,
    parse_duration,
    parse_float,
    parse_int,
    type_name,
)
from gnsqd.log import Level
from gnsqd.options import OPTIONS, Kind, Option, Options


def load(path: str) -> dict[str, Any]:
    """The keys of a config file, as they are; StartError when it cannot be read or is no TOML."""
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
    """ValueError for an integer, wherever it stands, that is no int64; Python's parser takes any."""
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


def _coerce(option: Option, value: object) -> Any:
    if option.cfg in _SPECIAL:
        return value
    try:
        return _COERCIONS[option.kind](value)
    except ValueError as error:
        if option.kind in (Kind.STRINGS, Kind.FLOATS) and not isinstance(value, str):  # the real daemon panics
            raise StartError(f"failed parsing {option.cfg} {format_value(value)} - {error}", prefix="") from None
        default = format_duration(option.default) if option.kind is Kind.DURATION else format_value(option.default)
        what = f"{format_value(value)} ({default}) for field {option.field}"
        raise BadValue(f"ERROR: Resolve failed to coerce value {what} - {error}") from None


def _invalid(target: str, value: object) -> ValueError:
    return ValueError(f"invalid {target} value type {type_name(value)}")


def _int(value: object) -> int:
    if isinstance(value, str) or type(value) is int:
        return parse_int(str(value))
    raise _invalid("int64", value)


def _duration(value: object) -> int:
    if isinstance(value, str):
        return parse_duration(value)
    if type(value) is int:
        return parse_duration(f"{value}ms")
    raise _invalid("time.Duration", value)


def _bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str | int):
        return parse_bool(str(value))
    raise _invalid("bool", value)


def _string(value: object) -> str:
    if isinstance(value, str):
        return value
    raise _invalid("string", value)


def _strings(value: object) -> list[str]:
    if isinstance(value, str):
        return value.split(",")
    if isinstance(value, list):
        return [_string(element) for element in value]
    raise _invalid("[]string", value)


def _float(value: object) -> float:
    if isinstance(value, float):
        return value
    raise _invalid("float64", value)


def _floats(value: object) -> list[float]:
    if isinstance(value, str):
        return [parse_float(part.strip()) for part in value.split(",")]
    if isinstance(value, list):
        return [_float(element) for element in value]
    raise _invalid("[]float64", value)


_COERCIONS: dict[Kind, Callable[[object], Any]] = {
    Kind.INT: _int,
    Kind.DURATION: _duration,
    Kind.BOOL: _bool,
    Kind.STRING: _string,
    Kind.STRINGS: _strings,
    Kind.FLOATS: _floats,
}
