"""The messages of a queue, in the order in which nsqd would deliver them, from all its files."""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gnsqd.errors import StorageError
from gnsqd.storage.disk.record import Meta
from nsqadmin_cli.datadir.directory import Queue, open_file, reason_of
from nsqadmin_cli.datadir.records import Advance, DataFile, Gap, Record
from nsqadmin_cli.errors import AdminError


@dataclass
class Plan:
    """The files of a queue with unread messages: `numbers`, the first of them from `position` on.

    `meta` is None if it is unusable (`meta_error`); everything counts as unread then. `missing` names missing
    files, empty if there are none; `read` are files left from before the read position.
    """

    meta: Meta | None = None
    meta_error: str = ""
    numbers: list[int] = field(default_factory=list)
    position: int = 0
    missing: str = ""
    read: list[int] = field(default_factory=list)

    def start(self, number: int) -> int:
        """Where the unread messages of a file begin."""
        return self.position if self.numbers[:1] == [number] else 0

    def size(self, queue: Queue) -> int:
        """The bytes to read."""
        return max(0, sum(queue.numbers[number] for number in self.numbers) - self.position)


class Found(NamedTuple):
    """A record of a file, or damage in its place."""

    number: int
    item: Record | Gap


class Saved(NamedTuple):
    """The messages of a queue that were saved; `lost_bytes` were unreadable. The fields are those of --json."""

    queue: str
    messages: int
    lost_bytes: int


def make_plan(queue: Queue) -> Plan:
    """The plan that follows from the meta file and the list of files."""
    numbers = sorted(queue.numbers)
    try:
        meta = queue.read_meta()
    except StorageError as error:
        return Plan(None, str(error), numbers)
    unread = [number for number in numbers if number >= meta.read_file]
    position = meta.read_pos if unread[:1] == [meta.read_file] else 0
    plan = Plan(meta, "", unread, position, read=[number for number in numbers if number < meta.read_file])
    if meta.read_position < meta.write_position:
        last = meta.write_file if meta.write_pos else meta.write_file - 1
        there = {number for number in unread if number <= last}
        count = last - meta.read_file + 1 - len(there)
        if count > 0:
            first = next(number for number in range(meta.read_file, last + 1) if number not in there)
            name = queue.file_name(first)
            plan.missing = f"{name} is missing" if count == 1 else f"{name} and {count - 1:,} more files are missing"
    return plan


def read_queue(queue: Queue, plan: Plan, max_msg_size: int, advance: Advance | None = None) -> Iterator[Found]:
    """All unread records; a file that was deleted meanwhile is skipped. AdminError if one cannot be read."""
    for number in plan.numbers:
        for item in read_data_file(queue.path(number), plan.start(number), max_msg_size, advance):
            yield Found(number, item)


def read_data_file(path: str, start: int, max_msg_size: int, advance: Advance | None = None) -> Iterator[Record | Gap]:
    """One file from `start` on; nothing if there is none. AdminError if it cannot be read, except for a failing
    disk."""
    position = start
    try:
        with DataFile(path, max_msg_size, advance) as file:
            try:
                for item in file.read(start):
                    yield item
                    position = item.end
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                yield Gap(position, file.size, "a read error of the disk")
    except FileNotFoundError:
        return
    except OSError as error:
        raise AdminError(f"cannot read {path}: {reason_of(error)}") from error


def oldest(queue: Queue, plan: Plan) -> float | None:
    """When the first unread message was published, in unix seconds; None without one."""
    for number in plan.numbers:
        start = plan.start(number)
        if queue.numbers[number] >= start + 12:
            try:
                descriptor = open_file(queue.path(number))
            except OSError:
                return None
            try:
                stamp = int.from_bytes(os.pread(descriptor, 8, start + 4), "big")
            finally:
                os.close(descriptor)
            return stamp / 1e9
    return None
