"""nsqd.dat: which topics and channels there are, and which are paused (NSQD-COMPAT 4.1).

Reading follows Go's decoder, down to the texts of its errors: keys in any case, unknown ones ignored, null as if
absent, one value of a wrong type refuses the whole file.
"""

import json
import os
import random
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from gnsqd import gotext
from gnsqd.errors import StorageError
from gnsqd.storage.files import path_error, rename_file, sync_path, write_file
from gnsqd.storage.syncer import Syncer
from gnsqd.version import NSQD_VERSION


@dataclass(frozen=True)
class ChannelMetadata:
    name: str
    paused: bool


@dataclass(frozen=True)
class TopicMetadata:
    name: str
    paused: bool
    channels: list[ChannelMetadata] = field(default_factory=list)


def load(path: str) -> list[TopicMetadata]:
    """The topics that the file lists, none if there is no file; names may be invalid. StorageError otherwise."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return []
    except OSError as error:
        operation = "read" if isinstance(error, IsADirectoryError) else "open"
        raise StorageError(f"failed to read metadata from {path} - {path_error(operation, path, error)}") from error
    try:
        decoded = _decode_struct(_parse(data), _METADATA, "value", "")
    except ValueError as error:
        raise StorageError(f"failed to parse metadata in {path} - {error}") from error
    return [
        TopicMetadata(
            topic.get("name", ""),
            topic.get("paused", False),
            [
                ChannelMetadata(channel.get("name", ""), channel.get("paused", False))
                for channel in topic.get("channels", [])
            ],
        )
        for topic in decoded.get("topics", [])
    ]


def encode(topics: Sequence[TopicMetadata]) -> bytes:
    """The content of nsqd.dat."""
    document = {
        "topics": [
            {
                "name": topic.name,
                "paused": topic.paused,
                "channels": [{"name": channel.name, "paused": channel.paused} for channel in topic.channels] or None,
            }
            for topic in topics
        ]
        or None,
        "version": NSQD_VERSION,
    }
    return gotext.dumps(document).encode()


def save(path: str, topics: Sequence[TopicMetadata], syncer: Syncer) -> None:
    """Replace the file, durably; StorageError. Yields: of two calls at a time the older could win, so make one."""
    syncer.run(_replace, path, f"{path}.{random.getrandbits(63)}.tmp", encode(topics))


def _replace(path: str, temporary: str, data: bytes) -> None:
    write_file(temporary, data, sync=True)
    rename_file(temporary, path)
    with suppress(StorageError):  # not every file system can sync a directory
        sync_path(os.path.dirname(path) or ".")


# Decoding


class _Struct(NamedTuple):
    """A Go struct: its fields are Go types, or lists of a struct."""

    name: str
    fields: "dict[str, str | _Struct]"


_CHANNEL = _Struct("ChannelMetadata", {"name": "string", "paused": "bool"})
_TOPIC = _Struct("TopicMetadata", {"name": "string", "paused": "bool", "channels": _CHANNEL})
_METADATA = _Struct("Metadata", {"topics": _TOPIC, "version": "string"})


class _Object(list[tuple[str, object]]):
    """A JSON object with its keys in order, those that come twice included."""


def _decode_struct(value: object, struct: _Struct, where: str, path: str) -> dict[str, Any]:
    """Known fields of a JSON object; ValueError says that what stands at `where` has the wrong type."""
    if value is None:
        return {}
    if not isinstance(value, _Object):
        raise _mismatch(value, where, f"nsqd.{struct.name}")
    decoded: dict[str, Any] = {}
    for key, item in value:
        name = key.replace("\u017f", "s").lower()  # Go's case folding, as far as these names go
        kind = struct.fields.get(name)
        if kind is None:
            continue
        if item is None:
            if isinstance(kind, _Struct):
                decoded.pop(name, None)
            continue
        inner = f"{path}.{name}" if path else name
        inner_where = f"struct field {struct.name}.{inner}"
        if isinstance(kind, _Struct):
            if _json_type(item) != "array" or not isinstance(item, list):
                raise _mismatch(item, inner_where, f"[]nsqd.{kind.name}")
            decoded[name] = [_decode_struct(element, kind, inner_where, inner) for element in item]
        elif _json_type(item) == kind:
            decoded[name] = item
        else:
            raise _mismatch(item, inner_where, kind)
    return decoded


def _mismatch(value: object, where: str, wanted: str) -> ValueError:
    return ValueError(f"json: cannot unmarshal {_json_type(value)} into Go {where} of type {wanted}")


def _json_type(value: object) -> str:
    if isinstance(value, _Object):
        return "object"
    return {list: "array", str: "string", bool: "bool"}.get(type(value), "number")


# Parsing, for the sake of Go's errors


def _parse(data: bytes) -> object:
    text = data.decode("utf-8", "replace")
    try:
        # Numbers are only ever of a wrong type, or ignored, and Python refuses integers of thousands of digits.
        return json.loads(text, object_pairs_hook=_Object, parse_int=float, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ValueError(_syntax_error(text, error)) from error
    except RecursionError as error:
        raise ValueError("exceeded max depth") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"invalid character '{name[0]}' looking for beginning of value")


_CONTEXTS = {
    "Expecting property name enclosed in double quotes": "looking for beginning of object key string",
    "Illegal trailing comma before end of object": "looking for beginning of object key string",
    "Expecting ':' delimiter": "after object key",
    "Extra data": "after top-level value",
    "Invalid control character at": "in string literal",
    "Invalid \\escape": "in string escape code",
    "Invalid \\uXXXX escape": "in \\u hexadecimal character escape",
}
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def _syntax_error(text: str, error: json.JSONDecodeError) -> str:
    """Go's words for what Python found; they differ inside misspelt literals and numbers."""
    rest = text[error.pos :]
    if error.msg.startswith(("Illegal trailing comma", "Invalid \\escape")):
        rest = rest[1:]
    rest = rest.lstrip(" \t\r\n") if not error.msg.startswith("Invalid") else rest
    if not rest or error.msg.startswith("Unterminated"):
        return "unexpected end of JSON input"
    if error.msg == "Expecting ',' delimiter":
        context = "after object key:value pair" if _inside_object(text[: error.pos]) else "after array element"
    else:
        context = _CONTEXTS.get(error.msg.partition(": ")[0], "looking for beginning of value")
    character = chr(rest.encode()[0])  # of UTF-8, Go shows the first byte
    quoted = {"'": r"'\''", '"': "'\"'"}.get(character) or f"'{gotext.quote(character)[1:-1]}'"
    return f"invalid character {quoted} {context}"


def _inside_object(text: str) -> bool:
    """Whether the innermost bracket that is open at the end of `text` is a brace."""
    opened = []
    for character in _STRING.sub("", text):
        if character in "[{":
            opened.append(character)
        elif character in "]}":
            opened.pop()
    return opened[-1:] == ["{"]
