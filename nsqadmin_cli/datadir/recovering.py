"""Recovers messages from files that nsqd set aside as `.bad`.

nsqd reads a file from its beginning and sets it aside at damage, so the messages before the damage were delivered, and
those behind it were not. It also sets whole files aside: files that it had read to the end, and files that it could not
open when the system was short of file descriptors. Only its log shows which case applies.

Recovered messages become new data files at the end of their queue, and their file is renamed, so that they are
recovered only once.

Exported messages are in the format of `gnsqadmin save` and `load`.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gnsq_shared.directory import DataDirectory, Queue, key_of, make_plan, read_due_times, read_held, reason_of
from gnsqd.errors import StorageError
from gnsqd.storage.disk.record import Meta, decode_record
from nsqadmin_cli.archive import ArchiveWriter
from nsqadmin_cli.datadir.records import Gap, Saved, read_data_file, read_queue
from nsqadmin_cli.datadir.repairing import Writer, replace_file, sync_directory
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.message import Message
from nsqadmin_cli.output import Advance


@dataclass
class BadFile:
    """One file that was set aside. `delivered` messages are before the damage, `found` are the others."""

    queue: Queue
    number: int
    delivered: int = 0
    found: int = 0
    lost_bytes: int = 0
    error: str = ""

    @property
    def name(self) -> str:
        return self.queue.file_name(self.number, bad=True)

    @property
    def path(self) -> str:
        return self.queue.path(self.number, bad=True)

    def read(self, *, everything: bool, max_msg_size: int, advance: Advance) -> Iterator[bytes]:
        """The payloads behind the first damage, or all; counts on the way. AdminError if it cannot be read."""
        self.delivered = self.found = self.lost_bytes = 0
        damaged = False
        for item in read_data_file(self.path, 0, max_msg_size, advance):
            damaged = damaged or isinstance(item, Gap) or bool(item.flaw)
            if isinstance(item, Gap):
                self.lost_bytes += item.end - item.position
                continue
            if not damaged:
                self.delivered += 1
            if damaged or everything:
                self.found += 1
                yield item.payload


def bad_files(found: DataDirectory, topic: str, channel: str) -> list[BadFile]:
    return [BadFile(queue, number) for queue in found.select(topic, channel) for number in sorted(queue.bad)]


def put_back(bad: BadFile, found: DataDirectory, *, everything: bool, max_msg_size: int, advance: Advance) -> None:
    """Put the messages of a file back at the end of its queue; AdminError, with the queue as it was, if that fails.

    The lock of the directory must be held.
    """
    queue = bad.queue
    meta = _meta_to_append_to(found, queue)
    number = meta.write_file + 1 if meta.write_pos else meta.write_file
    path = queue.path(number)
    try:
        if number in queue.numbers:
            os.unlink(path)  # it is empty
        with Writer(path, bad.path) as writer:
            for payload in bad.read(everything=everything, max_msg_size=max_msg_size, advance=advance):
                writer.write_record(payload)
        if not bad.found:
            os.unlink(path)
            return
        sync_directory(queue.directory)
        is_empty = meta.read_position == meta.write_position
        reading = (number, 0) if is_empty else meta.read_position
        told = Meta(meta.depth * (not is_empty) + bad.found, *reading, number, writer.size)
        try:
            replace_file(queue.meta_path, told.format(), bad.path)
        except BaseException:
            os.unlink(path)  # gnsqd would read it even without meta
            raise
        queue.has_meta, queue.numbers[number] = True, writer.size
        os.rename(bad.path, f"{bad.path}.recovered")
        if is_empty and number != meta.write_file and queue.numbers.pop(meta.write_file, 0):
            os.unlink(queue.path(meta.write_file))
        sync_directory(queue.directory)
    except OSError as error:
        raise AdminError(f"its messages cannot be recovered: {reason_of(error)}") from error


def _meta_to_append_to(found: DataDirectory, queue: Queue) -> Meta:
    """The end of the queue; AdminError if nothing may be added there."""
    if found.listed is None or not found.is_listed(queue):
        raise AdminError(
            f"nsqd.dat does not list the topic or channel {queue.name}; --to writes the messages to a file"
        )
    try:
        meta = queue.read_meta()
    except StorageError as error:
        if not queue.numbers and not queue.has_meta:
            return Meta()
        raise AdminError(f"{error}; the queue must be repaired first") from error
    if max(queue.numbers, default=-1) > meta.write_file or queue.numbers.get(meta.write_file, 0) != meta.write_pos:
        raise AdminError("the meta file and the data files do not agree; the queue must be repaired first")
    return meta


_BATCH_BYTES = 4 << 20  # each batch is made safe on disk
_BATCH_MESSAGES = 10_000


@dataclass(frozen=True, slots=True)
class StoredMessage(Message):
    """A message in the queue of a channel, or for an empty one of the topic; `due` in ns, or None."""

    channel: str = ""
    due: int | None = None

    def document(self) -> dict[str, Any]:
        return Message.document(self) | {"channel": self.channel or None, "due": self.due}


class MessageFile:
    """Collects messages for `archive`; call `flush` at the end."""

    def __init__(self, archive: ArchiveWriter) -> None:
        self._archive = archive
        self._messages: list[StoredMessage] = []
        self._bytes = 0

    def add(self, queue: Queue, payload: bytes, due: int | None = None) -> None:
        timestamp, attempts, id, body = decode_record(payload)
        message = StoredMessage(queue.topic, timestamp, attempts, id, body, channel=queue.channel, due=due)
        self._messages.append(message)
        self._bytes += len(body)
        if self._bytes > _BATCH_BYTES or len(self._messages) >= _BATCH_MESSAGES:
            self.flush()

    def flush(self) -> None:
        if self._messages:
            self._archive.write(self._messages)
            self._messages, self._bytes = [], 0


def export_queue(queue: Queue, file: MessageFile, max_msg_size: int, advance: Advance) -> Saved:
    """Write all messages of a queue, including deferred ones of gnsqd; AdminError."""
    due_times = read_due_times(queue.due_times_path)
    held = set(due_times.held)
    messages = lost = 0
    for _, item in read_queue(queue, make_plan(queue), max_msg_size, advance):
        if isinstance(item, Gap):
            lost += item.end - item.position
            continue
        messages += 1
        key = key_of(item.payload)
        held.discard(key)
        file.add(queue, item.payload, due_times.due.get(key))
    for _, payload in read_held(queue.due_times_path, due_times):
        if (key := key_of(payload)) in held:
            file.add(queue, payload, due_times.due.get(key))
    return Saved(queue.name, messages + len(held), lost)
