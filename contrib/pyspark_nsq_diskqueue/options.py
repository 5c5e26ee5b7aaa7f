"""The options of `format("nsq_diskqueue")`: one table, the fields of a class, from which parsing, errors and the
documentation come."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_nsq.option_table import missing, option, read_values, table_of
from pyspark_nsq.option_values import SIZE, TOPICS, ValueKind

UNREAD, ALL = "unread", "all"  # messages
FAIL, COLUMN, SKIP = "fail", "column", "skip"  # corruption
READ = ("read",)
_REMOTE = re.compile(r"(?!(?:file|s3|gs|az):)[a-zA-Z][a-zA-Z0-9+.-]+:/")


def _path(text: str) -> str:
    if not text:
        raise ValueError("expected a directory")
    if _REMOTE.match(text):
        raise ValueError("expected a local path, which driver and executors share, or the URL of a log store")
    return text


def _paths(text: str) -> tuple[str, ...]:
    try:
        paths = json.loads(text)
    except (ValueError, RecursionError):
        paths = None
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
        raise ValueError("expected a list of paths in JSON")
    return tuple(map(_path, paths))


def _choice(*choices: str) -> ValueKind:
    def read(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"expected {', '.join(choices[:-1])} or {choices[-1]}")
        return text.lower()

    return ValueKind(", ".join(choices), read)


@dataclass(frozen=True)
class DiskqueueSettings:
    """The values of the options; an option that is not given has its default."""

    # fmt: off
    path: str | None = option("path", ValueKind("path", _path), READ,
        "data directory of an nsqd, or a pattern for directories (`/mnt/*/nsqd`) or data files, including `.bad`, with "
        "the same path on driver and executors; or the URL of a log store (`s3://BUCKET/PREFIX`); set by `load(path)`")
    paths: tuple[str, ...] = option("paths", ValueKind("list", _paths, ()), READ,
        "several paths, in JSON; set by `load([path, ...])`")
    messages: str = option("messages", _choice(UNREAD, ALL), READ,
        "unread: messages after the read position of each queue, as nsqd reads them, and in journals messages that a "
        "channel has not finished, or the topic has not passed on; all: all messages in the data files, and in "
        "journals each message once, without channel", UNREAD)
    topics: tuple[str, ...] = option("topic", TOPICS, READ, "only these topics, separated by commas")
    channels: tuple[str, ...] = option("channel", TOPICS._replace(name="channels"), READ,
        "only channels with these names, separated by commas; not for all messages of a journal")
    corruption: str = option("corruption", _choice(FAIL, COLUMN, SKIP), READ,
        "how to handle a damaged or missing file: an error, a row with the column `corruption`, or nothing; "
        "after a damaged record, the rest of the file is not read, as with nsqd, except for journals", FAIL)
    max_msg_size: int = option("maxMsgSize", SIZE, READ,
        "nsqd's --max-msg-size; a larger body is read if valid records, or the end of the file, follow",
        "1048576")
    # fmt: on

    @property
    def all_paths(self) -> tuple[str, ...]:
        return (self.path, *self.paths) if self.path else self.paths


OPTIONS = table_of(DiskqueueSettings)


def parse(options: Mapping[str, str]) -> DiskqueueSettings:
    """Returns the values of the options; raises OptionError for one that cannot be obeyed."""
    settings = DiskqueueSettings(**read_values(options, READ, OPTIONS))
    if not settings.all_paths:
        raise missing("'path'", options, "the data directory of an nsqd")
    return settings
