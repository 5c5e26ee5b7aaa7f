"""What a task does: reads its file in chunks, and makes an Arrow batch of each.

A damaged record costs the rest of its file, as it costs nsqd (NSQD-COMPAT 4.6), and is reported in nsqd's words. What
becomes of damage is an option: an error, a row without a message whose column `corruption` describes it, or nothing.
"""

import itertools
import os
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from gnsq_shared.directory import DueTimes, key_of, open_file, read_due_times, read_held, reason_of
from gnsqd.errors import StorageError
from gnsqd.storage.disk.record import LENGTH, MIN_RECORD_SIZE, frame_records
from pyspark_nsq_diskqueue.errors import CorruptionError, DataDirectoryError
from pyspark_nsq_diskqueue.options import COLUMN, SKIP
from pyspark_nsq_diskqueue.planning import FileTask
from pyspark_nsq_diskqueue.rows import Damage, damage_row, message_rows

_CHUNK = 1 << 20  # bytes read at once, unless a message is larger

ReadAt = Callable[[int, int, int], bytes]


def read_task(
    task: FileTask, corruption: str, max_msg_size: int, read_at: ReadAt = os.pread
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, by `rows.ARROW_SCHEMA`; CorruptionError if `corruption` is "fail", DataDirectoryError.

    `read_at` reads as os.pread does.
    """
    reader = _Reader(task, max_msg_size, read_at)
    yield from reader.read()
    damage = reader.damage
    if damage is None or corruption == SKIP:
        return
    if corruption == COLUMN:
        yield damage_row(task, damage)
        return
    raise CorruptionError(
        f"{task.path} at {damage.position}: {damage}. `gnsqadmin data verify {task.directory}` shows what can be "
        f"saved; with the option corruption = {COLUMN!r} or {SKIP!r} the rest is read without"
    )


class _Reader:
    """Reads for one task. Afterwards `damage` is why not everything was read."""

    def __init__(self, task: FileTask, max_msg_size: int, read_at: ReadAt) -> None:
        self.damage: Damage | None = None
        self._task = task
        self._max_size = max_msg_size + MIN_RECORD_SIZE
        self._read_at = read_at
        self._due_times = DueTimes()

    def read(self) -> Iterator[pa.RecordBatch]:
        task = self._task
        if not os.path.isdir(task.directory):
            raise DataDirectoryError(
                f"{task.directory} is not there: driver and executors must find it at the same path"
            )
        try:
            if task.missing:
                self._report_missing()
            elif task.is_due_times:
                yield from self._read_held()
            else:
                yield from self._read_file()
        except FileNotFoundError:
            if not task.was_read_meanwhile():
                self._report_missing()
        except OSError as error:
            raise DataDirectoryError(f"cannot read {task.path}: {reason_of(error)}") from error
        except StorageError as error:
            raise DataDirectoryError(str(error)) from error

    def _report_missing(self) -> None:
        others = self._task.missing - 1
        self.damage = Damage(0, f"missing, and so are {others} files behind it" if others > 0 else "missing")

    def _read_held(self) -> Iterator[pa.RecordBatch]:
        due_times = read_due_times(self._task.path)
        held: list[tuple[int, bytes]] = []
        size = 0
        for position, payload in read_held(self._task.path, due_times):
            if held and size + len(payload) > _CHUNK:
                yield self._held_rows(held, due_times)
                held, size = [], 0
            held.append((position, payload))
            size += len(payload)
        if held:
            yield self._held_rows(held, due_times)
        if due_times.damage:
            self.damage = Damage(due_times.end, due_times.damage)

    def _held_rows(self, held: list[tuple[int, bytes]], due_times: DueTimes) -> pa.RecordBatch:
        positions, payloads = zip(*held, strict=True)
        edges = list(itertools.accumulate((LENGTH.size + len(payload) for payload in payloads), initial=0))
        dues = [due_times.due.get(key_of(payload)) for payload in payloads]
        return message_rows(self._task, frame_records(payloads), edges, pa.array(positions, pa.int64()), dues)

    def _read_file(self) -> Iterator[pa.RecordBatch]:
        task = self._task
        if task.due_times:
            self._due_times = read_due_times(task.due_times)
        descriptor = open_file(task.path)
        try:
            yield from self._read_records(descriptor)
        finally:
            os.close(descriptor)

    def _read_records(self, descriptor: int) -> Iterator[pa.RecordBatch]:
        task = self._task
        position, needed = task.start, 0
        while position < task.end:
            wanted = min(max(_CHUNK, needed), task.end - position)
            try:
                data = self._read_at(descriptor, wanted, position)
            except OSError as error:
                self._stop(position, reason_of(error))
                return
            edges, needed = self._parse(data, position)
            consumed = edges[-1]
            yield from self._rows(data, edges, position)
            position += consumed
            if self.damage is not None:
                return
            is_torn = task.end - position < needed
            if is_torn and task.unfinished_from is not None and position >= task.unfinished_from:
                return
            if is_torn or (not consumed and len(data) < wanted):
                # as Go's io.ReadFull has it: EOF when the payload is missing altogether
                self._stop(position, "EOF" if task.end - position == LENGTH.size else "unexpected EOF")
        if task.end < task.promised:
            self._stop(task.end, f"EOF, {task.promised - task.end} bytes before where the meta file has the end")

    def _parse(self, data: bytes, position: int) -> tuple[list[int], int]:
        """Where the whole records in `data`, from `position` on, begin, and where the last one ends; and how many
        bytes are needed there to go on, 0 at the end."""
        max_size, unpack_length = self._max_size, LENGTH.unpack_from
        available = len(data)
        edges = [0]
        offset = 0
        while offset < available:
            begin = offset + LENGTH.size
            if begin > available:
                return edges, LENGTH.size
            size: int = unpack_length(data, offset)[0]
            if not MIN_RECORD_SIZE <= size <= max_size:
                self._stop(position + offset, f"invalid message read size ({size})")
                break
            offset = begin + size
            if offset > available:
                return edges, LENGTH.size + size
            edges.append(offset)
        return edges, 0

    def _rows(self, data: bytes, edges: list[int], position: int) -> Iterator[pa.RecordBatch]:
        """The messages of whole records that stand at `position`, without messages that the side file holds back."""
        due, held = self._due_times.due, self._due_times.held
        if len(edges) == 1:
            return
        begins = pc.add(pa.array(edges[:-1], pa.int64()), position)
        if not due and not held:
            yield message_rows(self._task, data, edges, begins)
            return
        keys = [key_of(data[begin + LENGTH.size : begin + LENGTH.size + MIN_RECORD_SIZE]) for begin in edges[:-1]]
        batch = message_rows(self._task, data, edges, begins, [due.get(key) for key in keys])
        if kept := [row for row, key in enumerate(keys) if key not in held]:
            yield batch.take(pa.array(kept, pa.int64()))

    def _stop(self, position: int, reason: str) -> None:
        self.damage = Damage(position, reason, max(0, self._task.end - position))
