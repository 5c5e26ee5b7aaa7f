"""Reads the data files of a queue, in the order in which nsqd would deliver them, and continues behind damage.

Files may be written or deleted at the same time; a file is never kept in memory as a whole.

Exported messages are in the format of `gnsqadmin save` and `load`.
"""

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from gnsqd.shared.directory import ReadPlan, StoredQueue, make_plan, open_file, read_held
from gnsqd.shared.disk_format import MIN_RECORD_SIZE, Gap, StoredRecord, decode_record, message_key
from gnsqd.shared.disk_queue import LARGE_BUFFER, RecordReader
from gnsqd.shared.errors import reason_of
from nsqadmin_cli.archive import ArchiveWriter
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.message import MessageRow
from nsqadmin_cli.output import Advance
from nsqadmin_cli.table import ALWAYS, Form, Tone, column

DEFAULT_MAX_MSG_SIZE = 1 << 20  # bytes of a body, as nsqd has it


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
        with suppress(OSError), _opened(path, max_msg_size) as reader:
            return reader.record_at(plan.position)
    return plan.position


def read_queue(
    queue: StoredQueue, plan: ReadPlan, max_msg_size: int, advance: Advance = lambda size: None
) -> Iterator[tuple[int, StoredRecord | Gap]]:
    """Yields all unread records, or damage, with the number of their file. A file deleted meanwhile is skipped. Raises
    AdminError if a file cannot be read."""
    start = first_unread(queue, plan, max_msg_size)
    for number in plan.numbers:
        for item in read_data_file(queue.path(number), start, max_msg_size, advance):
            yield number, item
        start = 0


def _opened(path: str, max_msg_size: int) -> closing[RecordReader]:
    """Opens a data file, to be read as by a daemon with this --max-msg-size; raises OSError."""
    descriptor = open_file(path)
    return closing(RecordReader(path, descriptor, MIN_RECORD_SIZE, max_msg_size + MIN_RECORD_SIZE, LARGE_BUFFER))


def read_data_file(
    path: str, start: int, max_msg_size: int, advance: Advance = lambda size: None
) -> Iterator[StoredRecord | Gap]:
    """Yields the content of a file from `start` on; nothing if there is none. Raises AdminError if it cannot be read,
    except for a bad disk. Calls `advance` with the number of bytes read."""
    reported = start
    try:
        with _opened(path, max_msg_size) as reader:
            for item in reader.salvage(start):
                yield item
                if item.end - reported >= LARGE_BUFFER:
                    advance(item.end - reported)
                    reported = item.end
            advance(max(reader.file_size() - reported, 0))
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
            lost += item.end - item.begin
            continue
        messages += 1
        key = message_key(item.payload)
        held.discard(key)
        file.add(queue, item.payload, due_times.due.get(key))
    for _, payload in read_held(queue.due_times_path, due_times):
        if (key := message_key(payload)) in held:
            file.add(queue, payload, due_times.due.get(key))
    return Saved(queue.name, messages + len(held), lost)
