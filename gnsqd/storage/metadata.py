"""nsqd.dat: which topics and channels there are, and which are paused (NSQD-COMPAT 4.1).

Reading follows Go's decoder, down to the texts of its errors: one value of a wrong type refuses the whole file.
"""

import os
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from gnsqd.errors import StorageError
from gnsqd.gotext import Kind, Struct, decode_object, dumps
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


_CHANNEL = Struct("ChannelMetadata", {"name": Kind.STR, "paused": Kind.BOOL})
_TOPIC = Struct("TopicMetadata", {"name": Kind.STR, "paused": Kind.BOOL, "channels": _CHANNEL})
_METADATA = Struct("Metadata", {"topics": _TOPIC, "version": Kind.STR})


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
        decoded = decode_object(data, _METADATA)
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
    return dumps(document).encode()


def save(path: str, topics: Sequence[TopicMetadata], syncer: Syncer) -> None:
    """Replace the file, durably; StorageError. Yields: of two calls at a time the older could win, so make one."""
    syncer.run(_replace, path, f"{path}.{random.getrandbits(63)}.tmp", encode(topics))


def _replace(path: str, temporary: str, data: bytes) -> None:
    write_file(temporary, data, sync=True)
    rename_file(temporary, path)
    with suppress(StorageError):  # not every file system can sync a directory
        sync_path(os.path.dirname(path) or ".")
