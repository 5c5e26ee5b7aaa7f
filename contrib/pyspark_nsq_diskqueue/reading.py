"""The work of a task: it reads its file in chunks, and makes an Arrow batch of each.

The columns begin with those of `format("nsq")`, so that what works on its frames works on these. There, `nsqd` is where
a message comes from; here that is the data directory.

A damaged record costs the rest of its file, as it costs nsqd (NSQD-COMPAT 4.6), and is reported in nsqd's words. What
becomes of damage is an option: an error, a row without a message whose column `corruption` describes it, or nothing. In
a journal, what follows the damage is read, as gnsqd does.
"""

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from gnsqd.shared.client import FRAME_HEAD
from gnsqd.shared.directory import DueTimesFile, open_file, read_due_times, read_held
from gnsqd.shared.disk_format import LENGTH, MIN_RECORD_SIZE, Gap, RecordRun, frame_records, message_key
from gnsqd.shared.disk_queue import RecordReader
from gnsqd.shared.errors import StorageError, reason_of
from gnsqd.shared.journal.records import (
    PUT,
    PUT_HEAD,
    decode_put,
    parse_first_line,
    read_records,
    split_frames,
)
from gnsqd.shared.journal.spans import Spans
from gnsqd.shared.log_store import LogStore
from pyspark_nsq.columns import MESSAGE_DDL, MESSAGE_SCHEMA, MOMENT, batch_of, columns_of, cut, moments
from pyspark_nsq.errors import NsqSourceError
from pyspark_nsq_diskqueue.journals import JournalQueue, SegmentPlan, were_finished
from pyspark_nsq_diskqueue.options import COLUMN, SKIP
from pyspark_nsq_diskqueue.planning import DataDirectoryError, FileTask

_CHUNK = 1 << 20  # bytes read at once, unless a message is larger

DDL = f"{MESSAGE_DDL}, queue STRING, file STRING, position LONG, due TIMESTAMP, corruption STRING"
_TYPES = {"queue": pa.string(), "file": pa.string(), "position": pa.int64(), "due": MOMENT, "corruption": pa.string()}
ARROW_SCHEMA = pa.schema([*MESSAGE_SCHEMA, *_TYPES.items()])


class CorruptionError(NsqSourceError):
    """Messages cannot be read because a file is damaged, ends too early or is missing, and the option `corruption`
    makes this an error."""


def _describe(gap: Gap) -> str:
    lost = gap.end - gap.begin
    return f"{gap.reason}: {lost} bytes not read" if lost > 0 else gap.reason


def read_task(task: FileTask, corruption: str, max_msg_size: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a task, by `ARROW_SCHEMA`. Raises CorruptionError for damage if `corruption` is "fail", and
    DataDirectoryError if the file cannot be read."""
    for found in _find(task, max_msg_size + MIN_RECORD_SIZE):
        if isinstance(found, pa.RecordBatch):
            yield found
        elif corruption == COLUMN:
            columns = {"position": pa.array([found.begin], pa.int64()), "corruption": pa.array([_describe(found)])}
            yield _batch(task, columns)
        elif corruption != SKIP:
            raise CorruptionError(
                f"{task.path} at {found.begin}: {_describe(found)}. `gnsqadmin data verify {task.directory}` shows "
                f"what can be saved; with the option corruption = {COLUMN!r} or {SKIP!r} the rest is read without"
            )


def _find(task: FileTask, max_size: int) -> Iterator[pa.RecordBatch | Gap]:
    if task.stored is None and not os.path.isdir(task.directory):
        raise DataDirectoryError(f"{task.directory} is not there: driver and executors must find it at the same path")
    others = task.missing - 1
    missing = Gap(task.path, 0, 0, f"missing, and so are {others} files behind it" if others > 0 else "missing")
    try:
        if task.missing:
            yield missing
        elif task.segment is not None:
            yield from _read_segment(task, task.segment)
        else:
            yield from _read_held(task) if task.is_due_times else _read_records(task, max_size)
    except FileNotFoundError:
        if not task.was_read_meanwhile():
            yield missing
    except OSError as error:
        raise DataDirectoryError(f"cannot read {task.path}: {reason_of(error)}") from error
    except StorageError as error:
        raise DataDirectoryError(str(error)) from error


def _read_held(task: FileTask) -> Iterator[pa.RecordBatch | Gap]:
    """Yields the messages that a side file holds back."""
    due_times = read_due_times(task.path)
    held: list[tuple[int, bytes]] = []
    size = 0
    for position, payload in read_held(task.path, due_times):
        if held and size + len(payload) > _CHUNK:
            yield _held_rows(task, held, due_times)
            held, size = [], 0
        held.append((position, payload))
        size += len(payload)
    if held:
        yield _held_rows(task, held, due_times)
    if due_times.damage:
        yield Gap(task.path, due_times.end, due_times.end, due_times.damage)


def _held_rows(task: FileTask, held: list[tuple[int, bytes]], due_times: DueTimesFile) -> pa.RecordBatch:
    positions, payloads = zip(*held, strict=True)
    edges = list(itertools.accumulate((LENGTH.size + len(payload) for payload in payloads), initial=0))
    dues = [due_times.due.get(message_key(payload)) for payload in payloads]
    return _message_rows(task, frame_records(payloads), edges, pa.array(positions, pa.int64()), dues)


def _read_records(task: FileTask, max_size: int) -> Iterator[pa.RecordBatch | Gap]:
    due_times = read_due_times(task.due_times) if task.due_times else DueTimesFile()
    descriptor = open_file(task.path)
    with closing(RecordReader(task.path, descriptor, MIN_RECORD_SIZE, max_size, _CHUNK)) as reader:
        for item in reader.runs(task.start, task.end):
            if isinstance(item, RecordRun):
                yield from _rows(task, item, due_times)
                continue
            is_unfinished = task.unfinished_from is not None and item.begin >= task.unfinished_from
            if not (is_unfinished and item.reason.endswith("EOF")):
                yield item
            return
    if task.end < task.promised:
        reason = f"EOF, {task.promised - task.end} bytes before where the meta file has the end"
        yield Gap(task.path, task.end, task.end, reason)


def _rows(task: FileTask, run: RecordRun, due_times: DueTimesFile) -> Iterator[pa.RecordBatch]:
    """Yields the messages of whole records, without messages that the side file holds back."""
    data, edges = run.data, run.edges
    begins = pc.add(pa.array(edges[:-1], pa.int64()), run.begin)
    if not due_times.due and not due_times.held:
        yield _message_rows(task, data, edges, begins)
        return
    keys = [message_key(data[begin + LENGTH.size : begin + LENGTH.size + MIN_RECORD_SIZE]) for begin in edges[:-1]]
    batch = _message_rows(task, data, edges, begins, [due_times.due.get(key) for key in keys])
    if kept := [row for row, key in enumerate(keys) if key not in due_times.held]:
        yield batch.take(pa.array(kept, pa.int64()))


def _message_rows(
    task: FileTask, data: bytes, edges: Sequence[int], positions: pa.Array, dues: Sequence[int | None] = ()
) -> pa.RecordBatch:
    """Returns the messages of records that follow each other in `data`.

    `edges` is where each record begins, and where the last one ends; `positions` where they stand in the file; `dues`
    has an entry (ns or None) for each, or none at all.
    """
    columns = columns_of(cut(data, edges, LENGTH.size + MIN_RECORD_SIZE, LENGTH.size)) | {"position": positions}
    if any(dues):
        columns["due"] = moments(pa.array(dues, pa.int64()))
    return _batch(task, columns)


class _Rows:
    """Collects messages of a journal that a queue has."""

    def __init__(self, task: FileTask, queue: JournalQueue) -> None:
        self._task = replace(task, queue=queue.name)
        self._queue = queue
        self._clear()

    def _clear(self) -> None:
        self.size = 0
        self._numbers: list[int] = []
        self._frames: list[bytes] = []
        self._positions: list[int] = []

    def add(self, first: int, frames: list[bytes], positions: list[int]) -> None:
        """Takes those it needs of messages with numbers from `first` on."""
        for start, end in self._queue.numbers.between(first, first + len(frames)):
            self._numbers += range(start, end)
            self._frames += frames[start - first : end - first]
            self._positions += positions[start - first : end - first]
            self.size += positions[end - first] - positions[start - first]

    def take(self) -> Iterator[pa.RecordBatch]:
        if self._numbers:
            queue, numbers = self._queue, self._numbers
            edges = list(itertools.accumulate(map(len, self._frames), initial=0))
            columns = columns_of(cut(b"".join(self._frames), edges, FRAME_HEAD, FRAME_HEAD - MIN_RECORD_SIZE))
            columns["position"] = pa.array(self._positions, pa.int64())
            columns["attempts"] = pa.array([queue.attempts.get(number, 0) for number in numbers], pa.int32())
            if queue.due:
                columns["due"] = moments(pa.array(list(map(queue.due.get, numbers)), pa.int64()))
            self._clear()
            yield _batch(self._task, columns)


def _read_segment(task: FileTask, plan: SegmentPlan) -> Iterator[pa.RecordBatch | Gap]:
    """Yields the messages of a segment, for each of its queues, and what is damaged there. It has 64 MiB at most."""
    gaps = [*plan.gaps]
    data: bytes | Gap = b""
    if plan.queues:
        with suppress(FileNotFoundError):
            data = _read_whole(task)
    if isinstance(data, Gap):
        yield data
        return
    known = {gap.begin for gap in gaps}
    rows = [_Rows(task, queue) for queue in plan.queues]
    found = Spans()
    for item in read_records(task.path, data, parse_first_line(data)):
        if isinstance(item, Gap):
            if item.begin not in known:
                gaps.append(item)
        elif item.type == PUT:
            payload = data[item.start : item.end]
            first, _, _ = decode_put(payload)
            frames = split_frames(payload, PUT_HEAD, 0)
            found.add(first, first + len(frames))
            positions = list(itertools.accumulate(map(len, frames), initial=item.start + PUT_HEAD))
            for queue in rows:
                queue.add(first, frames, positions)
                if queue.size > _CHUNK:
                    yield from queue.take()
    for queue in rows:
        yield from queue.take()
    yield from gaps
    rest = Spans()
    for part in plan.queues:
        rest.update(part.numbers.without(found))
    were_done = not rest or (task.stored is None and were_finished(task.directory, task.topic, rest))
    if not were_done and not gaps:
        text = f"{rest.count()} messages are not there any more: the file was deleted or replaced while it was read"
        yield Gap(task.path, len(data), len(data), text)


def _read_whole(task: FileTask) -> bytes | Gap:
    if task.stored is not None:
        return task.stored.fetch(LogStore(task.directory), *task.stored.files)[: task.end]
    descriptor = open_file(task.path)
    try:
        return os.pread(descriptor, task.end, 0)
    except OSError as error:
        return Gap(task.path, 0, task.end, reason_of(error))
    finally:
        os.close(descriptor)


def _batch(task: FileTask, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    same = {"topic": task.topic, "channel": task.channel, "nsqd": task.directory}
    return batch_of(ARROW_SCHEMA, len(columns["position"]), columns, **same, queue=task.queue, file=task.file)
