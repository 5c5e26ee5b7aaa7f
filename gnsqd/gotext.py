"""Go's text forms, where clients, logs or files depend on them: quoting, numbers, durations, JSON.

Everything here follows the documentation and the observed output of Go's strconv, time, fmt and encoding/json.
Parsers raise ValueError with the text Go's error has. Text that was not valid UTF-8 travels as surrogate escapes.
"""

import json
import math
import re  # whose functions compile a pattern when it is first used
from collections.abc import Mapping
from contextlib import suppress
from json.encoder import encode_basestring
from typing import Any, Literal

from gnsqd.shared.record import Record

_ESCAPES = {
    "\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v", "\\": r"\\", '"': r"\"",
}  # fmt: skip


def quote(value: str | bytes) -> str:
    """Returns a Go string literal, as `%q` prints it; bytes that are not UTF-8 show as `\\xff`."""
    text = value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
    return '"' + "".join(map(_quote_character, text)) + '"'


def _quote_character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def unescape(text: str) -> str:
    """Returns the text of a URL in which each `%` begins an escape; U+FFFD replaces invalid UTF-8.

    Works without urllib, which loads slowly, and cannot be loaded when there are no descriptors left."""
    return re.sub("(?:%..)+", lambda run: bytes.fromhex(run[0].replace("%", "")).decode(errors="replace"), text)


class NumberError(ValueError):
    """strconv's error."""

    def __init__(self, function: str, text: str, reason: str = "invalid syntax") -> None:
        super().__init__(f"strconv.{function}: parsing {quote(text)}: {reason}")
        self.reason = reason


_INT64 = range(-(1 << 63), 1 << 63)
_RANGES = {"int": _INT64, "int32": range(-(1 << 31), 1 << 31)}

_DECIMAL = r"[+-]?[0-9]+"
# The literal forms that flags take: underscores between digits, base by prefix, a leading zero is octal.
_LITERALS = [
    (r"([+-]?)0[xX]((?:_?[0-9a-fA-F])+)", 16),
    (r"([+-]?)0[bB]((?:_?[01])+)", 2),
    (r"([+-]?)0[oO]?((?:_?[0-7])+)", 8),
    (r"([+-]?)(0|[1-9](?:_?[0-9])*)", 10),
]


def parse_int(text: str) -> int:
    """Parses a decimal int64 of the config file."""
    if not re.fullmatch(_DECIMAL, text):
        raise NumberError("ParseInt", text)
    return _int64(text, text, 10)


def parse_int_literal(text: str) -> int:
    """Parses an int64 in the syntax of Go's literals, as flags accept it: `0x10`, `1_000`, `010` (octal)."""
    for pattern, base in _LITERALS:
        if match := re.fullmatch(pattern, text):
            return _int64(text, match[1] + match[2].replace("_", ""), base)
    raise NumberError("ParseInt", text)


def _int64(text: str, digits: str, base: int) -> int:
    # int() refuses thousands of digits, which only leading zeros could make a valid number
    value = int(digits, base) if len(digits) <= 1000 else _INT64.stop
    if value not in _INT64:
        raise NumberError("ParseInt", text, "value out of range")
    return value


_DIGITS = "[0-9](?:_?[0-9])*"
_FLOAT = rf"[+-]?(?:{_DIGITS}\.?(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?"
_NOT_FINITE = r"(?i:[+-]?(?:inf|infinity)|nan)"


def parse_float(text: str) -> float:
    """Parses a decimal float64. Go's hexadecimal floats are not supported."""
    if re.fullmatch(_NOT_FINITE, text):
        return float(text)
    if not re.fullmatch(_FLOAT, text):
        raise NumberError("ParseFloat", text)
    value = float(text)
    if math.isinf(value):
        raise NumberError("ParseFloat", text, "value out of range")
    return value


_BOOLS = dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True)
_BOOLS |= dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False)


def parse_bool(text: str) -> bool:
    if text not in _BOOLS:
        raise NumberError("ParseBool", text)
    return _BOOLS[text]


_UNITS = {"ns": 1, "us": 10**3, "\u00b5s": 10**3, "\u03bcs": 10**3, "ms": 10**6, "s": 10**9}
_UNITS |= {"m": 60 * 10**9, "h": 3600 * 10**9}
_DURATION_PART = r"(?=[0-9.])([0-9]*)\.?([0-9]*)([^0-9.]*)"


def parse_duration(text: str) -> int:
    """Returns the nanoseconds of a duration such as `1h30m` or `1.5ms`; only 0 needs no unit."""
    invalid = ValueError(f"time: invalid duration {_quote_ascii(text)}")
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0
    if not rest:
        raise invalid
    total = 0
    while rest:
        part = re.match(_DURATION_PART, rest)
        if part is None or not (part[1] or part[2]) or int(part[1] or 0) > 1 << 63:
            raise invalid
        if not part[3]:
            raise ValueError(f"time: missing unit in duration {_quote_ascii(text)}")
        if part[3] not in _UNITS:
            raise ValueError(f"time: unknown unit {_quote_ascii(part[3])} in duration {_quote_ascii(text)}")
        unit = _UNITS[part[3]]
        total += int(part[1] or 0) * unit + _fraction(part[2], unit)
        if total > 1 << 63:
            raise invalid
        rest = rest[part.end() :]
    if text[0] == "-":
        return -total
    if total not in _INT64:
        raise invalid
    return total


def _fraction(digits: str, unit: int) -> int:
    """Returns `0.{digits}` of a unit, through a float and dropping digits that exceed an int64, as Go does."""
    value, scale = 0, 1.0
    for digit in digits:
        longer = value * 10 + int(digit)
        if longer >= _INT64.stop:
            break
        value = longer
        scale *= 10
    return int(value * (unit / scale))


def _quote_ascii(text: str) -> str:
    """Quotes as the time package does: everything outside ASCII as bytes."""
    escaped = text.replace("\\", r"\\").replace('"', r"\"").encode("utf-8", "surrogateescape")
    return '"' + "".join(chr(byte) if 0x20 <= byte < 0x80 else f"\\x{byte:02x}" for byte in escaped) + '"'


def format_duration(nanoseconds: int) -> str:
    """Returns a duration as Go prints it: `1m0s`, `250ms`, `638.68698ms`."""
    sign, rest = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if rest == 0:
        return "0s"
    for unit in ("ns", "\u00b5s", "ms"):
        if rest < _UNITS[unit] * 1000:
            return f"{sign}{_with_fraction(rest, _UNITS[unit])}{unit}"
    minutes, rest = divmod(rest, 60 * 10**9)
    hours, minutes = divmod(minutes, 60)
    large = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{large}{_with_fraction(rest, 10**9)}s"


def _with_fraction(value: int, size: int) -> str:
    whole, fraction = divmod(value, size)
    places = len(str(size)) - 1
    return f"{whole}.{fraction:0{places}d}".rstrip("0") if fraction else str(whole)


def format_float(value: float) -> str:
    """Returns a float as `%v` prints it: shortest digits, exponent form from 1e+06 on and below 1e-04."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return _fixed(value)
    mantissa, exponent = _scientific(value).split("e")
    return f"{mantissa}e{exponent[0]}{exponent[1:]:0>2}"


def _fixed(value: float) -> str:
    text = repr(value)
    return (format(_decimal(text), "f") if "e" in text else text).removesuffix(".0")


def _scientific(value: float) -> str:
    return format(_decimal(repr(value)).normalize(), "e")


def _decimal(text: str) -> Any:
    from decimal import Decimal  # loads slowly, and is seldom needed

    return Decimal(text)


def format_value(value: object) -> str:
    """Returns a decoded TOML value as `%v` prints it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return format_float(value)
    if isinstance(value, list):
        return f"[{' '.join(map(format_value, value))}]"
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{format_value(value[key])}' for key in sorted(value))}]"
    return str(value)


_HTML = {"<": r"\u003c", ">": r"\u003e", "&": r"\u0026", "\u2028": r"\u2028", "\u2029": r"\u2029"}
_HTML_CHARACTERS = "[<>&\u2028\u2029\ud800-\udfff]"


def dumps(value: object) -> str:
    """Returns JSON as Go's encoder writes it: no spaces, `<`, `>` and `&` escaped, floats in their shortest form.

    Takes str, int, float, bool, None, and lists, tuples and dicts with str keys of these; keys keep their order.
    Raises TypeError for other types, ValueError for NaN and infinities.
    """
    # these characters occur in strings only
    return re.sub(_HTML_CHARACTERS, lambda match: _HTML.get(match[0], r"\ufffd"), _dump(value))


def _dump(value: object) -> str:
    if isinstance(value, str):
        return encode_basestring(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"json: unsupported value: {format_float(value)}")
        return _fixed(value) if value == 0 or 1e-6 <= abs(value) < 1e21 else _scientific(value)
    if isinstance(value, dict):
        return f"{{{','.join([f'{encode_basestring(key)}:{_dump(item)}' for key, item in value.items()])}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_dump, value))}]"
    raise TypeError(f"{type(value).__name__} has no JSON form")


# A JSON field may be declared with these, and Struct.
GoType = Literal["string", "int", "int32", "bool", "[]string"]


class Struct(Record):
    """A struct with its package, keys in lower case; a field that is a Struct holds a list of them."""

    name: str
    fields: "Mapping[str, GoType | Struct]"


def decode_object(data: bytes, struct: Struct) -> dict[str, Any]:
    """Decodes one JSON object into declared fields, by the rules of Go's decoder; raises ValueError.

    Keys match in any case; of several that match, the later one wins. Unknown keys are ignored, null counts as
    absent (for the whole body and for elements of a list, as an empty object).
    """
    return _object(_parse(data), struct, "value", "")


def decode_strings(data: bytes) -> list[str] | None:
    """Decodes a JSON list of strings, null in it as "", or null as None; raises ValueError for all else."""
    parsed = _parse(data)
    return None if parsed is None else _decode(parsed, "[]string", "value", "")


def _parse(data: bytes) -> object:
    text = data.decode("utf-8", "surrogateescape")
    try:
        # numbers keep their text (1.0 is not an integer), objects their duplicate keys
        return json.loads(
            text, object_pairs_hook=_Object, parse_int=_Number, parse_float=_Number, parse_constant=_refuse_constant
        )
    except json.JSONDecodeError as error:
        raise ValueError(_syntax_error(error)) from None
    except RecursionError:
        raise ValueError("exceeded max depth") from None


class _Object(list[tuple[str, Any]]): ...


class _Number(str): ...


_JSON_TYPES: dict[type, str] = {_Object: "object", list: "array", bool: "bool", _Number: "number", str: "string"}


def _refuse_constant(name: str) -> None:  # NaN and infinities, which Python's parser takes
    raise json.JSONDecodeError("Expecting value", name, 0)


def _object(parsed: object, struct: Struct, target: str, path: str) -> dict[str, Any]:
    """Decodes an object; errors name it by `target`, and its place by the keys in `path`."""
    if parsed is None:
        return {}
    if not isinstance(parsed, _Object):
        raise _mismatch(parsed, target, struct.name)
    values: dict[str, Any] = {}
    for key, item in parsed:
        name = key.replace("\u017f", "s").lower()  # Go's case folding, exact for names of ASCII letters
        kind = struct.fields.get(name)
        if kind is not None and item is not None:
            inner = f"{path}.{name}" if path else name
            values[name] = _decode(item, kind, f"struct field {struct.name.rpartition('.')[2]}.{inner}", inner)
        elif kind == "[]string" or isinstance(kind, Struct):
            values.pop(name, None)  # null replaces a list, but nothing else
    return values


def _decode(item: object, kind: GoType | Struct, target: str, path: str) -> Any:
    """Decodes the value of a field that is not null."""
    declared = f"[]{kind.name}" if isinstance(kind, Struct) else kind
    if isinstance(kind, Struct) and type(item) is list:
        return [_object(element, kind, target, path) for element in item]
    if kind == "[]string" and type(item) is list:
        return ["" if element is None else _decode(element, "string", target, path) for element in item]
    if isinstance(item, _Number) and declared in _RANGES:
        with suppress(NumberError):
            if (number := parse_int(item)) in _RANGES[declared]:
                return number
        raise _mismatch(item, target, declared, f"number {item}")
    if kind == "bool" and isinstance(item, bool):
        return item
    if kind == "string" and type(item) is str:
        return re.sub("[\ud800-\udfff]", "\ufffd", item)
    raise _mismatch(item, target, declared)


def _mismatch(item: object, target: str, declared: str, actual: str = "") -> ValueError:
    return ValueError(f"json: cannot unmarshal {actual or _JSON_TYPES[type(item)]} into Go {target} of type {declared}")


_CONTEXTS = {
    "Expecting property name enclosed in double quotes": "looking for beginning of object key string",
    "Illegal trailing comma before end of object": "looking for beginning of object key string",
    "Expecting ':' delimiter": "after object key",
    "Extra data": "after top-level value",
    "Invalid control character at": "in string literal",
    "Invalid \\escape": "in string escape code",
    "Invalid \\uXXXX escape": "in \\u hexadecimal character escape",
}


def _syntax_error(error: json.JSONDecodeError) -> str:
    """Translates an error of Python's parser to Go's text; they differ inside numbers and after a backslash at the end.
    Go takes the end for a space where it can only be an error."""
    message, rest = error.msg.partition(": ")[0], error.doc[error.pos :]
    if message.startswith(("Illegal trailing comma", "Invalid \\escape")):
        rest = rest[1:]
    if message == "Invalid \\uXXXX escape":
        rest = rest[1:].lstrip("0123456789abcdefABCDEF") or " " * (len(rest) < 5)
    elif not message.startswith("Invalid"):
        rest = rest.lstrip(" \t\r\n")
    context = _CONTEXTS.get(message, "looking for beginning of value")
    if message == "Expecting ',' delimiter":
        context = "after object key:value pair" if _inside_object(error.doc[: error.pos]) else "after array element"
    elif message == "Expecting value" and rest[:1] == "-":
        rest, context = rest[1:] or " ", "in numeric literal"
    elif message == "Expecting value" and (word := {"t": "true", "f": "false", "n": "null"}.get(rest[:1])):
        same = next(index for index in range(1, len(word)) if rest[index : index + 1] != word[index])
        rest, context = rest[same:] or " ", f"in literal {word} (expecting '{word[same]}')"
    if not rest or message.startswith("Unterminated"):
        return "unexpected end of JSON input"
    character = chr(rest.encode("utf-8", "surrogateescape")[0])  # of UTF-8, Go shows the first byte
    quoted = {"'": r"'\''", '"': "'\"'"}.get(character) or f"'{quote(character)[1:-1]}'"
    return f"invalid character {quoted} {context}"


def _inside_object(text: str) -> bool:
    """Returns True if the innermost bracket that is open at the end of `text` is a brace."""
    opened = []
    for character in re.sub(r'"(?:[^"\\]|\\.)*"', "", text):
        if character in "[{":
            opened.append(character)
        elif character in "]}":
            opened.pop()
    return opened[-1:] == ["{"]
