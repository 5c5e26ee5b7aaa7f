"""Recovers messages from files that nsqd set aside as `.bad`.

nsqd reads a file from its beginning and sets it aside at damage, so the messages before the damage were delivered, and
those behind it were not. It also sets whole files aside: files that it had read to the end, and files that it could not
open when the system was short of file descriptors. Only its log shows which case applies.

Recovered messages become new data files at the end of their queue, and their file is renamed, so that they are
recovered only once.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from gnsqd.errors import StorageError
from gnsqd.storage.disk.record import Meta
from nsqadmin_cli.datadir.copying import Writer, replace_file, sync_directory
from nsqadmin_cli.datadir.directory import DataDirectory, Queue, reason_of
from nsqadmin_cli.datadir.queue import read_data_file
from nsqadmin_cli.datadir.records import Advance, Gap
from nsqadmin_cli.errors import AdminError


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
