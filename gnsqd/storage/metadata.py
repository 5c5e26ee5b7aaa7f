"""nsqd.dat: which topics and channels there are, and which are paused (NSQD-COMPAT 4.1). Beside it, the file of `rules`
for what nsqd.dat has no place for.

Reading follows Go's decoder, down to the texts of its errors: one value of a wrong type refuses the whole file.
Writing is the work of one greenlet, so that an older state never replaces a newer one. Changes are only counted: a
write contains all that were counted when it began, and changes that come together share one.
"""

import os
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gevent.event import Event

from gnsqd.errors import StorageError
from gnsqd.gotext import Struct, decode_object
from gnsqd.log import Logger
from gnsqd.storage import rules
from gnsqd.storage.files import failing_as_go, path_error, remove_file, replace_file, sync_directory
from gnsqd.storage.rules import Settings, encode_rules
from gnsqd.storage.syncer import Syncer
from gnsqd.version import NSQD_VERSION

FILE_NAME = "nsqd.dat"
RETRY_SECONDS = 1.0  # until a write that failed is tried again
_OLDER_NAME = re.compile(r"nsqd\.[0-9]+\.dat")


class ChannelMetadata(NamedTuple):
    """`rules` are not in nsqd.dat."""

    name: str = ""
    paused: bool = False
    rules: Settings | None = None


class TopicMetadata(NamedTuple):
    name: str = ""
    paused: bool = False
    channels: Sequence[ChannelMetadata] = ()


_CHANNEL = Struct("nsqd.ChannelMetadata", {"name": "string", "paused": "bool"})
_TOPIC = Struct("nsqd.TopicMetadata", {"name": "string", "paused": "bool", "channels": _CHANNEL})
_METADATA = Struct("nsqd.Metadata", {"topics": _TOPIC, "version": "string"})


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
        TopicMetadata(**topic | {"channels": [ChannelMetadata(**channel) for channel in topic.get("channels", [])]})
        for topic in decoded.get("topics", [])
    ]


def find_older(data_path: str) -> list[str]:
    """The files named as nsqd did before v1.0, `nsqd.{worker id}.dat`, of the same format; StorageError."""
    directory = data_path or "."
    with failing_as_go("open", directory), os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries if _OLDER_NAME.fullmatch(entry.name) and entry.is_file())


def encode(topics: Sequence[TopicMetadata]) -> bytes:
    """The content of nsqd.dat, as Go's encoder writes it; all names are valid, so nothing in them is escaped."""
    # By hand: with thousands of topics, a general encoder would be most of the work of creating another.
    entries = []
    for topic in topics:
        channels = _array([_encode(channel.name, channel.paused) for channel in topic.channels])
        entries.append(_encode(topic.name, topic.paused, f',"channels":{channels}'))
    return f'{{"topics":{_array(entries)},"version":"{NSQD_VERSION}"}}'.encode()


def _encode(name: str, paused: bool, rest: str = "") -> str:
    return f'{{"name":"{name}","paused":{"true" if paused else "false"}{rest}}}'


def _array(items: list[str]) -> str:
    return f"[{','.join(items)}]" if items else "null"


def save(path: str, topics: Sequence[TopicMetadata]) -> None:
    """Replace the file, durably, unless that is its content; StorageError. For a thread, as thousands of topics take
    milliseconds to encode; but of two calls at a time the older could win."""
    _save(path, encode(topics))


def _save(path: str, data: bytes) -> None:
    if _has_content(path, data):  # a full or read-only disk does not matter then
        sync_directory(os.path.dirname(path))
    else:
        replace_file(path, data)


def _has_content(path: str, data: bytes) -> bool:
    try:
        if os.path.getsize(path) == len(data):
            with open(path, "rb") as file:
                return file.read() == data
    except OSError:
        pass
    return False


class MetadataFile:
    """The file `path` of a running daemon, and the file of rules; `topics()` is the state to write, without yielding.
    `persist_loop` writes it after every `note_change`, until `close`. What could not be written is logged and tried
    again, once a second and with every further change."""

    def __init__(self, path: str, topics: Callable[[], Sequence[TopicMetadata]], syncer: Syncer, log: Logger) -> None:
        self.path = path
        self._rules_path = os.path.join(os.path.dirname(path), rules.FILE_NAME)
        self._rules: dict[rules.Key, Settings] | None = None  # in their file; None if unknown
        self._topics = topics
        self._syncer = syncer
        self._log = log
        self._changes = self._tried = self._written = 0  # noted, in the latest write, and in the file
        self._begun = self._ended = 0  # writes
        self._end = Event()  # of the next write that ends
        self._bell = Event()
        self._closing = self._closed = False

    def note_change(self) -> None:
        """The file is to be written. Never yields."""
        self._changes += 1
        self._bell.set()

    def wait(self) -> None:
        """Return when the file contains every change noted so far, or a write of them has failed. Yields.
        StorageError("exiting") if there will be no such write any more."""
        changes, begun = self._changes, self._begun
        if self._written < changes:
            self._bell.set()
        while self._written < changes and self._ended <= begun:
            if self._closed:
                raise StorageError("exiting")
            self._end.wait()

    def persist(self) -> None:
        """Have the file written with what is so now, and `wait` for that."""
        self.note_change()
        self.wait()

    def write(self) -> None:
        """Write the file here and now; StorageError. Only for when `persist_loop` does not run, which tries again what
        was noted before. Yields."""
        self._log.info("NSQ: persisting topic/channel metadata to %s", self.path)
        self._write()

    def _write(self) -> None:
        self._begun += 1
        self._tried = self._changes
        try:
            self._syncer.run(self._save, self._topics())
            self._written = self._tried
        finally:
            self._ended += 1
            end, self._end = self._end, Event()
            end.set()

    def _save(self, topics: Sequence[TopicMetadata]) -> None:
        save(self.path, topics)
        found = {(t.name, c.name): c.rules for t in topics for c in t.channels if c.rules is not None}
        if found != self._rules:
            if found:
                _save(self._rules_path, encode_rules(found))
            else:
                remove_file(self._rules_path)
            self._rules = found

    def persist_loop(self) -> None:
        """Write the file when it is due, until `close`."""
        while not self._closing:
            self._bell.wait(RETRY_SECONDS if self._written < self._changes else None)
            self._bell.clear()
            if self._closing or self._written == self._changes:
                continue
            again = self._tried == self._changes  # that the disk is still full needs no second line
            try:
                if again:
                    self._write()
                    self._log.info("NSQ: topic/channel metadata could be persisted to %s at last", self.path)
                else:
                    self.write()
            except StorageError as error:
                if not again:
                    self._log.error("failed to persist metadata - %s", error)

    def close(self) -> None:
        """Write the file a last time, if that is possible; nothing writes it from now on. Yields."""
        self._closing = True
        self._bell.set()
        if self._ended < self._begun:
            self._end.wait()
        try:
            self.write()
            while self._written < self._changes:
                self.write()
        except StorageError as error:
            self._log.error("failed to persist metadata - %s", error)
        self._closed = True
        self._end.set()
