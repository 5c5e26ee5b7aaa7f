"""Reads the data files of a queue, in the order in which nsqd would deliver them, and continues behind damage.

nsqd abandons the rest of a file at an impossible record length. There usually are whole messages behind it: this module
searches for the next header of a message (a time of this century and an id of 16 hexadecimal digits) behind a length
that leads to another header or to the end. If the bytes between are one message with an impossible length, it is also
read. Files may be written or deleted at the same time; a file is never kept in memory as a whole.

Exported messages are in the format of `gnsqadmin save` and `load`.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from gnsqd.shared.directory import ReadPlan, StoredQueue, make_plan, open_file, read_held
from gnsqd.shared.disk_format import LENGTH, MIN_RECORD_SIZE, decode_record, is_followed, message_key
from gnsqd.shared.errors import reason_of
from gnsqd.storage.disk.reader import RecordReader
from nsqadmin_cli.archive import ArchiveWriter
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.message import MessageRow
from nsqadmin_cli.output import Advance
from nsqadmin_cli.table import ALWAYS, Form, Tone, column

DEFAULT_MAX_MSG_SIZE = 1 << 20  # bytes of a body, as nsqd has it
_CHUNK = 1 << 20  # bytes read at once
_LARGEST = 64 << 20  # bytes of a payload: anything longer than this and the limit is not a message
_HEAD = LENGTH.size + MIN_RECORD_SIZE
_ID = re.compile(rb"[0-9a-f]{16}")
# length below 2**27, time between 2000 and 2100 in ns, attempts, id
_HEAD_PATTERN = re.compile(rb"[\x00-\x07](?=.{3}[\x0d-\x38].{9}[0-9a-f]{16})", re.DOTALL)
_MESSAGE_PATTERN = re.compile(rb"[\x0d-\x38].{9}[0-9a-f]{16}", re.DOTALL)


class Record(NamedTuple):
    """A message. `end` is behind it; `flaw` is the reason if nsqd treats it as damage: `too_large`, which gnsqd
    delivers, or a bad length."""

    position: int
    end: int
    payload: bytes
    flaw: str = ""
    too_large: bool = False


class Gap(NamedTuple):
    """Bytes without a whole message."""

    position: int
    end: int
    reason: str


class DataFile(AbstractContextManager["DataFile"]):
    """An open data file; `with` closes it. Calls `advance` with the number of bytes read. OSError if it is none."""

    def __init__(self, path: str, max_msg_size: int, advance: Advance | None = None) -> None:
        self._descriptor = open_file(path)
        self.size = os.fstat(self._descriptor).st_size
        self._max_size = max_msg_size + MIN_RECORD_SIZE
        self._largest = max(_LARGEST, self._max_size)
        self._advance = advance
        self._reported = 0  # position up to which `advance` was called
        self._buffer = b""
        self._start = 0

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)

    def read(self, start: int = 0) -> Iterator[Record | Gap]:
        """Yields everything from `start` on, in order, without gaps; raises OSError, except for a bad disk."""
        position = self._reported = min(start, self.size)
        while position < self.size:
            try:
                item = self._item(position)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                item = Gap(position, self.size, "a read error of the disk")
            yield item
            position = item.end
        self._report(self.size)

    def _item(self, position: int) -> Record | Gap:
        """Returns the message at `position`, or, where nsqd finds damage, what there is up to the next message or the
        end."""
        field = self._at(position, LENGTH.size)
        length: int = LENGTH.unpack(field)[0] if len(field) == LENGTH.size else -1
        end = position + LENGTH.size + length
        if MIN_RECORD_SIZE <= length <= self._max_size and end <= self.size:
            payload = self._at(position + LENGTH.size, length)
            # If nothing valid follows where the length indicates, the length may be damaged.
            if len(payload) == length and (
                self._leads_on(end) or (_ID.match(payload, 10) and self._find(position + 1, end) >= end)
            ):
                return Record(position, end, payload)
        is_delivered = length > self._max_size and is_followed(partial(os.pread, self._descriptor), end, self.size)
        if is_delivered or (length > self._max_size and self._is_record(position)):
            flaw = f"a message of {length - MIN_RECORD_SIZE:,} bytes, more than --max-msg-size"
            return Record(position, end, self._at(position + LENGTH.size, length), flaw, too_large=is_delivered)
        rest = self.size - position
        if length < MIN_RECORD_SIZE or length > self._largest:
            reason = f"a length of {length} bytes" if rest >= LENGTH.size else "a truncated message"
        elif length + LENGTH.size > rest:
            reason = "a truncated message"
        else:
            reason = "bytes that are not a message"
        following = self._find(position + 1)
        size = following - position - LENGTH.size
        # A length that is possible may be right, and bytes of the message lost: then it must not be delivered.
        is_length_damaged = length < MIN_RECORD_SIZE or length > self._max_size
        if is_length_damaged and following < self.size and MIN_RECORD_SIZE <= size <= self._largest:
            payload = self._at(position + LENGTH.size, size)
            if _MESSAGE_PATTERN.match(payload) and not _HEAD_PATTERN.search(payload, 1):
                return Record(position, following, payload, reason)
        return Gap(position, following, reason)

    def _find(self, position: int, limit: int | None = None) -> int:
        """Returns the position of the next record between these; the size of the file if there is none."""
        limit = self.size if limit is None else limit
        while position < limit:
            chunk = self._at(position, min(_CHUNK, limit - position + _HEAD))
            for match in _HEAD_PATTERN.finditer(chunk):
                if self._is_record(position + match.start()):
                    return position + match.start()
            if len(chunk) <= _HEAD:
                break
            position += len(chunk) - _HEAD + 1
        return self.size

    def _is_record(self, position: int) -> bool:
        """Returns whether a whole message of any size is there, followed by something valid or a torn message."""
        head = self._peek(position)
        if len(head) < _HEAD or not _HEAD_PATTERN.match(head):
            return False
        length: int = LENGTH.unpack_from(head)[0]
        end = position + LENGTH.size + length
        if not MIN_RECORD_SIZE <= length <= self._largest or end > self.size:
            return False
        return self.size - end < _HEAD or self._leads_on(end)

    def _leads_on(self, position: int) -> bool:
        """Returns whether the file ends at `position`, or a message begins."""
        head = self._peek(position)
        if len(head) < _HEAD:
            return position == self.size
        return LENGTH.unpack_from(head)[0] >= MIN_RECORD_SIZE and bool(_HEAD_PATTERN.match(head))

    def _peek(self, position: int) -> bytes:
        """Matches a possible header of a record at any position."""
        offset = position - self._start
        if 0 <= offset <= len(self._buffer) - _HEAD:
            return self._buffer[offset : offset + _HEAD]
        return os.pread(self._descriptor, _HEAD, position)

    def _at(self, position: int, count: int) -> bytes:
        """Returns up to `count` bytes at `position`, fewer at the end of the file."""
        offset = position - self._start
        if offset < 0 or offset + count > len(self._buffer):
            self._report(position)
            self._buffer = os.pread(self._descriptor, max(count, _CHUNK), position)
            self._start, offset = position, 0
        return self._buffer[offset : offset + count]

    def _report(self, position: int) -> None:
        if self._advance is not None and position > self._reported:
            self._advance(position - self._reported)
            self._reported = position


@dataclass(slots=True)
class Saved:
    """The messages of a queue that were saved; `lost_bytes` were unreadable."""

    queue: str = column("queue")
    messages: int = column("messages", "msgs", Form.COUNT, ALWAYS)
    lost_bytes: int = column("lost", form=Form.BYTES, keep=ALWAYS, tone=Tone.BAD, help="unreadable")


def describe_missing(queue: StoredQueue, plan: ReadPlan) -> str:
    """Returns which files of a queue are missing; at least one is."""
    name, count = queue.file_name(plan.missing[0][0]), sum(number for _, number in plan.missing)
    return f"{name} is missing" if count == 1 else f"{name} and {count - 1:,} more files are missing"


def first_unread(queue: StoredQueue, plan: ReadPlan, max_msg_size: int) -> int:
    """Returns the read position in the first file, moved back to the beginning of a record as gnsqd does."""
    if plan.position and queue.numbers[plan.numbers[0]] > plan.position:
        path = queue.path(plan.numbers[0])
        with suppress(OSError), closing(RecordReader(path, MIN_RECORD_SIZE, max_msg_size + MIN_RECORD_SIZE)) as reader:
            return reader.record_at(plan.position)
    return plan.position


def read_queue(
    queue: StoredQueue, plan: ReadPlan, max_msg_size: int, advance: Advance | None = None
) -> Iterator[tuple[int, Record | Gap]]:
    """Yields all unread records, or damage, with the number of their file. A file deleted meanwhile is skipped. Raises
    AdminError if a file cannot be read."""
    start = first_unread(queue, plan, max_msg_size)
    for number in plan.numbers:
        for item in read_data_file(queue.path(number), start, max_msg_size, advance):
            yield number, item
        start = 0


def read_data_file(path: str, start: int, max_msg_size: int, advance: Advance | None = None) -> Iterator[Record | Gap]:
    """Yields the content of a file from `start` on; nothing if there is none. Raises AdminError if it cannot be read,
    except for a bad disk."""
    try:
        with DataFile(path, max_msg_size, advance) as file:
            yield from file.read(start)
    except FileNotFoundError:
        return
    except OSError as error:
        raise AdminError(f"cannot read {path}: {reason_of(error)}") from error


_BATCH_BYTES = 4 << 20  # each batch is made safe on disk
_BATCH_MESSAGES = 10_000


@dataclass(frozen=True, slots=True)
class StoredMessage(MessageRow):
    """A message in the queue of a channel, or for an empty one of the topic; `due` in ns, or None."""

    channel: str = ""
    due: int | None = None

    def document(self) -> dict[str, Any]:
        return MessageRow.document(self) | {"channel": self.channel or None, "due": self.due}


@dataclass
class MessageFile:
    """Collects messages for an archive; call `flush` at the end."""

    _archive: ArchiveWriter
    _messages: list[StoredMessage] = field(default_factory=list)
    _bytes: int = 0

    def add(self, queue: StoredQueue, payload: bytes, due: int | None = None) -> None:
        message = StoredMessage(queue.topic, *decode_record(payload), channel=queue.channel, due=due)
        self._messages.append(message)
        self._bytes += len(message.body)
        if self._bytes > _BATCH_BYTES or len(self._messages) >= _BATCH_MESSAGES:
            self.flush()

    def flush(self) -> None:
        if self._messages:
            self._archive.write(self._messages)
            self._messages, self._bytes = [], 0


def export_queue(queue: StoredQueue, file: MessageFile, max_msg_size: int, advance: Advance) -> Saved:
    """Writes all messages of a queue, including deferred ones of gnsqd; raises AdminError."""
    due_times = queue.read_due_times()
    held = set(due_times.held)
    messages = lost = 0
    for _, item in read_queue(queue, make_plan(queue), max_msg_size, advance):
        if isinstance(item, Gap):
            lost += item.end - item.position
            continue
        messages += 1
        key = message_key(item.payload)
        held.discard(key)
        file.add(queue, item.payload, due_times.due.get(key))
    for _, payload in read_held(queue.due_times_path, due_times):
        if (key := message_key(payload)) in held:
            file.add(queue, payload, due_times.due.get(key))
    return Saved(queue.name, messages + len(held), lost)
