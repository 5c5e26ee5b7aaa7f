"""Writes messages of a data directory to a file in the format of `gnsqadmin save` and `load`."""

from dataclasses import dataclass
from typing import Any

from gnsqd.storage.disk.record import decode_record
from nsqadmin_cli.archive import ArchiveWriter
from nsqadmin_cli.datadir.directory import Queue
from nsqadmin_cli.datadir.due_times import key_of, read_due_times
from nsqadmin_cli.datadir.queue import Saved, make_plan, read_queue
from nsqadmin_cli.datadir.records import Advance, Gap
from nsqadmin_cli.message import Message

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
    due_times = read_due_times(queue)
    held = dict(due_times.held)
    messages = lost = 0
    for _, item in read_queue(queue, make_plan(queue), max_msg_size, advance):
        if isinstance(item, Gap):
            lost += item.end - item.position
            continue
        messages += 1
        key = key_of(item.payload)
        held.pop(key, None)
        file.add(queue, item.payload, due_times.due.get(key))
    for key, payload in held.items():
        file.add(queue, payload, due_times.due.get(key))
    return Saved(queue.name, messages + len(held), lost)
