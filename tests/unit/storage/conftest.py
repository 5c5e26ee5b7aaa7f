"""Disk queues for the tests of this directory, opened by keyword and closed at the end."""

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gnsqd.log import Level, Logger
from gnsqd.options import Options
from gnsqd.storage.disk.diskqueue import DiskQueue
from gnsqd.storage.disk.opening import DataFiles
from gnsqd.storage.files import list_names
from gnsqd.storage.syncer import Syncer
from unit.queues.journal.topics import SEGMENT, JournaledTopic

OpenQueue = Callable[..., DiskQueue]
OpenTopic = Callable[..., JournaledTopic]


def list_data_files(data_path: Path) -> DataFiles:
    """Lists them as a daemon that starts there. Raises StorageError."""
    return DataFiles(os.fspath(data_path), list_names(os.fspath(data_path)))


@pytest.fixture
def syncer() -> Iterator[Syncer]:
    syncer = Syncer()
    yield syncer
    syncer.stop()


@pytest.fixture
def log_stream() -> io.StringIO:
    """Returns the log of the queues of a test."""
    return io.StringIO()


@pytest.fixture
def open_queue(tmp_path: Path, syncer: Syncer, log_stream: io.StringIO) -> Iterator[OpenQueue]:
    """Yields `open_queue(max_bytes_per_file=100)`; records may be of any size up to 1000 bytes unless given
    otherwise."""
    queues: list[DiskQueue] = []

    def open(
        name: str = "q", data_path: Path = tmp_path, data_files: DataFiles | None = None, **settings: int
    ) -> DiskQueue:
        defaults: dict[str, Any] = dict(max_bytes_per_file=1 << 20, max_msg_size=1000, sync_timeout=3600 * 10**9)
        min_size = settings.pop("min_msg_size", 0)
        options = Options(**defaults | settings)
        options.max_msg_size -= min_size
        log = Logger("", Level.DEBUG, log_stream)
        queue = DiskQueue(name, options, data_files or list_data_files(data_path), log, syncer, min_size)
        queues.append(queue)
        return queue

    yield open
    for queue in queues:
        queue.close()


@pytest.fixture
def open_topic(tmp_path: Path, syncer: Syncer, log_stream: io.StringIO) -> Iterator[OpenTopic]:
    """Yields `open_topic(durable=True)` on the files of `tmp_path`, or of another directory."""
    topics: list[JournaledTopic] = []

    def open(
        channels: int = 1,
        durable: bool = False,
        directory: Path = tmp_path,
        size: int = SEGMENT,
        kind: type[JournaledTopic] = JournaledTopic,
    ) -> JournaledTopic:
        topics.append(kind(directory, syncer, Logger("", Level.DEBUG, log_stream), channels, durable, size))
        return topics[-1]

    yield open
    for topic in topics:
        topic.close()
