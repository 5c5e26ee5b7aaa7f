"""The options of `format("nsq_diskqueue")`: one table, from which parsing, errors and the documentation come."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_nsq.errors import OptionError
from pyspark_nsq.option_table import SourceOption, read_values
from pyspark_nsq.option_values import SIZE, TOPICS, Kind

UNREAD, ALL = "unread", "all"  # messages
FAIL, COLUMN, SKIP = "fail", "column", "skip"  # corruption
READ = "read"
_REMOTE = re.compile(r"(?!file:)[a-zA-Z][a-zA-Z0-9+.-]+:/")


@dataclass(frozen=True)
class DiskqueueSettings:
    """The values of the options; an option that is not given has its default."""

    path: str = ""
    paths: tuple[str, ...] = ()
    messages: str = UNREAD
    topics: tuple[str, ...] = ()  # none: all
    channels: tuple[str, ...] = ()  # none: all, and the topics' own queues
    corruption: str = FAIL
    max_msg_size: int = 1 << 20  # bytes of a body

    @property
    def all_paths(self) -> tuple[str, ...]:
        return (self.path, *self.paths) if self.path else self.paths


def _path(text: str) -> str:
    if not text:
        raise ValueError("expected a directory")
    if _REMOTE.match(text):
        raise ValueError("expected a local path, which driver and executors share")
    return text


def _paths(text: str) -> tuple[str, ...]:
    try:
        paths = json.loads(text)
    except (ValueError, RecursionError):
        paths = None
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
        raise ValueError("expected a list of paths in JSON")
    return tuple(map(_path, paths))


def _choice(*choices: str) -> Kind:
    def read(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"expected {', '.join(choices[:-1])} or {choices[-1]}")
        return text.lower()

    return Kind(", ".join(choices), read)


def _row(name: str, kind: Kind, field: str, help: str) -> SourceOption:
    return SourceOption(name, kind, field, (READ,), help, DiskqueueSettings)


OPTIONS: tuple[SourceOption, ...] = (
    _row(
        "path",
        Kind("path", _path),
        "path",
        "data directory of an nsqd, or a pattern for directories (`/mnt/*/nsqd`) or data files, including `.bad`; "
        "set by `load(path)`; must have the same path on driver and executors",
    ),
    _row("paths", Kind("list", _paths), "paths", "several paths, in JSON; set by `load([path, ...])`"),
    _row(
        "messages",
        _choice(UNREAD, ALL),
        "messages",
        "unread: messages after the read position of each queue, as nsqd reads them; all: all messages in the data "
        "files",
    ),
    _row("topic", TOPICS, "topics", "only these topics, separated by commas"),
    _row("channel", Kind("channels", TOPICS.read), "channels", "only channels with these names, separated by commas"),
    _row(
        "corruption",
        _choice(FAIL, COLUMN, SKIP),
        "corruption",
        "how to handle a damaged or missing file: an error, a row with the column `corruption`, or nothing; "
        "after a damaged record, the rest of the file is not read, as with nsqd",
    ),
    _row(
        "maxMsgSize",
        SIZE,
        "max_msg_size",
        "maximum size of a body, nsqd's --max-msg-size; larger bodies are treated as damage",
    ),
)


def parse(options: Mapping[str, str]) -> DiskqueueSettings:
    """OptionError for what cannot be obeyed."""
    settings = DiskqueueSettings(**read_values(options, (READ,), OPTIONS))
    if not settings.all_paths:
        raise OptionError("option 'path' is required: load(path), with the data directory of an nsqd")
    return settings
