"""Reads and writes nsqd.dat: all topics and channels, and which are paused (NSQD-COMPAT 4.1). Beside it is
gnsqd.rules.dat, the rules of channels that were set over HTTP, because the real nsqd reads nsqd.dat and leaves other
files alone. There is no file without rules. The broker defines what a rule means.

Reading follows Go's decoder, including the texts of its errors: one value of a wrong type refuses the whole file. One
greenlet writes, so an older state never replaces a newer one. Changes are only counted: a write contains all that were
counted when it began, and changes that come together share one.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from gevent.event import Event

from gnsqd.gotext import Struct, decode_object, dumps
from gnsqd.log import Logger
from gnsqd.shared.errors import StorageError, failing_as_go, path_error
from gnsqd.shared.version import NSQD_VERSION
from gnsqd.storage.files import remove_file, replace_file, sync_directory
from gnsqd.storage.syncer import Syncer

FILE_NAME = "nsqd.dat"
RULES_NAME = "gnsqd.rules.dat"
RETRY_SECONDS = 1.0  # until a write that failed is tried again
_OLDER_NAME = r"nsqd\.[0-9]+\.dat"

RuleKey = tuple[str, str]  # of a channel: the name of its topic, and its own
RuleSettings = Mapping[str, object]  # by the name of the rule


class ChannelMetadata(NamedTuple):
    """A channel in nsqd.dat; `rules` are in a file of their own."""

    name: str = ""
    paused: bool = False
    rules: RuleSettings | None = None


class TopicMetadata(NamedTuple):
    name: str = ""
    paused: bool = False
    channels: Sequence[ChannelMetadata] = ()


_CHANNEL = Struct("nsqd.ChannelMetadata", {"name": "string", "paused": "bool"})
_TOPIC = Struct("nsqd.TopicMetadata", {"name": "string", "paused": "bool", "channels": _CHANNEL})
_METADATA = Struct("nsqd.Metadata", {"topics": _TOPIC, "version": "string"})


def load(path: str) -> list[TopicMetadata]:
    """Returns the topics that the file lists, none if there is no file; names may be invalid. Raises StorageError."""
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


def load_rules(path: str) -> dict[RuleKey, RuleSettings]:
    """Returns the rules of each channel in the file, empty if there is no file; raises StorageError."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StorageError(f"failed to read rules from {path} - {path_error('open', path, error)}") from error
    try:
        return {(entry.pop("topic"), entry.pop("channel")): entry for entry in json.loads(data)["channels"]}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StorageError(f"failed to parse rules in {path} - {type(error).__name__}: {error}") from error


def find_older(data_path: str) -> list[str]:
    """Returns the metadata files of nsqd before v1.0, `nsqd.{worker id}.dat`, of the same format; raises
    StorageError."""
    directory = data_path or "."
    with failing_as_go("open", directory), os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries if re.fullmatch(_OLDER_NAME, entry.name) and entry.is_file())


def _encode_file(topics: list[str]) -> bytes:
    """Returns the content of nsqd.dat, as Go's encoder writes it."""
    listed = f"[{','.join(topics)}]" if topics else "null"
    return f'{{"topics":{listed},"version":"{NSQD_VERSION}"}}'.encode()


def _encode_topic(topic: TopicMetadata) -> str:
    channels = [{"name": channel.name, "paused": channel.paused} for channel in topic.channels]
    return dumps({"name": topic.name, "paused": topic.paused, "channels": channels or None})


def save(path: str, topics: Sequence[TopicMetadata]) -> None:
    """Replaces the file, durably; raises StorageError."""
    replace_file(path, _encode_file([_encode_topic(topic) for topic in topics]))
    sync_directory(os.path.dirname(path))


class MetadataFile:
    """The file `path` of a running daemon, and the file of rules; `topic(name)` returns their content for a topic, None
    if it does not belong there, without yielding. `persist_loop` writes them after every `note_change`, until `close`.
    A failed write is logged and tried again, once a second and with every further change.

    Of thousands of topics one changes at a time, so each is encoded when it changes, and the pieces are kept. With
    `durable`, what was written also survives a loss of power; always, once closed."""

    def __init__(
        self, path: str, topic: Callable[[str], TopicMetadata | None], syncer: Syncer, log: Logger, durable: bool
    ) -> None:
        self.path = path
        self._rules_path = os.path.join(os.path.dirname(path), RULES_NAME)
        self._topic = topic
        self._syncer = syncer
        self._log = log
        self._durable = durable
        self._changed: dict[str, None] = {}  # topics that are to be encoded
        self._encoded: dict[str, str] = {}  # topics
        self._rules: dict[str, dict[RuleKey, RuleSettings]] = {}  # of the topics that have some
        self._rules_changed = True  # since they were written
        self._changes = self._tried = self._written = 0  # noted, in the latest write, and in the file
        self._begun = self._ended = 0  # writes
        self._end = Event()  # of the next write that ends
        self._bell = Event()
        self._closing = self._closed = False
        self.on_written: Callable[[], None] = lambda: None

    def note_change(self, topic: str) -> None:
        """Reports that a topic or one of its channels came, changed or went. Never yields."""
        self._changed[topic] = None
        self._changes += 1
        self._bell.set()

    def wait(self) -> None:
        """Waits until the file contains every change noted so far, or a write of them has failed. Yields. Raises
        StorageError("exiting") if there will be no such write any more."""
        changes, begun = self._changes, self._begun
        if self._written < changes:
            self._bell.set()
        while self._written < changes and self._ended <= begun:
            if self._closed:
                raise StorageError("exiting")
            self._end.wait()

    def persist(self, topic: str) -> None:
        """Reports a change of a topic, and waits as `wait`."""
        self.note_change(topic)
        self.wait()

    def write(self) -> None:
        """Writes the file here and now; raises StorageError. May be called only while `persist_loop` does not run,
        which tries again to write earlier changes. Yields."""
        self._log.info("NSQ: persisting topic/channel metadata to %s", self.path)
        self._write()

    def _write(self) -> None:
        self._begun += 1
        self._tried = self._changes
        self._encode_changed()
        rules_changed, self._rules_changed = self._rules_changed, False
        all_rules = dict(chain.from_iterable(map(dict.items, self._rules.values()))) if rules_changed else None
        try:
            self._syncer.run(self._save, list(self._encoded.values()), all_rules)
            self._written = self._tried
            self.on_written()
        except BaseException:
            self._rules_changed |= rules_changed
            raise
        finally:
            self._ended += 1
            end, self._end = self._end, Event()
            end.set()

    def _encode_changed(self) -> None:
        changed, self._changed = self._changed, {}
        for name in changed:
            topic = self._topic(name)
            of_topic: dict[RuleKey, RuleSettings] = {}
            if topic is None:
                self._encoded.pop(name, None)
            else:
                self._encoded[name] = _encode_topic(topic)
                of_topic = {(name, each.name): each.rules for each in topic.channels if each.rules is not None}
            if of_topic != self._rules.pop(name, {}):
                self._rules_changed = True
            if of_topic:
                self._rules[name] = of_topic

    def _save(self, topics: list[str], all_rules: dict[RuleKey, RuleSettings] | None) -> None:
        self._replace(self.path, _encode_file(topics))
        if all_rules:
            channels = [{"topic": topic, "channel": name, **rules} for (topic, name), rules in all_rules.items()]
            self._replace(self._rules_path, dumps({"channels": channels}).encode())
        elif all_rules is not None:
            remove_file(self._rules_path)

    def _replace(self, path: str, data: bytes) -> None:
        """Replaces a file, unless that is its content: a full or read-only disk does not matter then."""
        if not _has_content(path, data):
            replace_file(path, data)
        if self._durable or self._closing:  # also with an old content: it may be that this failed before
            sync_directory(os.path.dirname(path))

    def persist_loop(self) -> None:
        """Writes the file when it is due, until `close`."""
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
        """Writes the file a last time, if that is possible; nothing writes it from now on. Yields."""
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


def _has_content(path: str, data: bytes) -> bool:
    with suppress(OSError), open(path, "rb") as file:
        return os.path.getsize(path) == len(data) and file.read() == data
    return False
