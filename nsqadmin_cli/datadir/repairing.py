"""Writes the messages of a data directory elsewhere: to a repaired copy, to an archive, or back to their queue.

In the copy every queue is whole; the directory itself is only read. Undamaged queues are copied unchanged. Of the
others, every readable message is written, in order, to new files with numbers above the old ones, so that names of
files set aside are not reused. Messages already read, and unfinished files of a killed nsqd, are not copied.

nsqd reads a file from its beginning and sets it aside as `.bad` at damage, so the messages before the damage were
delivered, and those behind it were not. It also sets whole files aside: files that it had read to the end, files that
it could not open when the system was short of file descriptors, and files in which its read position was inside a
message. Only its log shows which case applies, so nobody knows which of their messages were delivered. Recovered
messages become new data files at the end of their queue, and their file is renamed, so that they are recovered once.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from gnsqd.shared.directory import METADATA, DataDirectory, StoredQueue, read_file
from gnsqd.shared.disk_format import LENGTH, Meta, StoredRecord, due_times_file_name, meta_file_name, segment_name
from gnsqd.shared.errors import StorageError, reason_of
from gnsqd.shared.names import EPHEMERAL_SUFFIX, is_valid_queue
from gnsqd.shared.version import NSQD_VERSION
from nsqadmin_cli.datadir.checking import FileTally, QueueReport
from nsqadmin_cli.datadir.records import Saved, read_data_file, read_queue
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.output import Advance
from nsqadmin_cli.table import ALWAYS, Form, Tone, column, json_only
from nsqadmin_cli.units import grouped, size

_CHUNK = 1 << 20


class Writer(AbstractContextManager["Writer"]):
    """A new file with the owner and mode of `like`; `with` makes it durable, or removes it on failure."""

    def __init__(self, path: str, like: str) -> None:
        self.path = path
        self.size = 0
        self._file = open(path, "xb")  # noqa: SIM115  closed by __exit__
        take_over_owner(path, like, os.stat(like).st_mode & 0o666)

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)

    def write_record(self, payload: bytes) -> None:
        self.write(LENGTH.pack(len(payload)) + payload)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
        except OSError:
            kind = OSError
            raise
        finally:
            with suppress(OSError):
                self._file.close()
            if kind is not None:
                os.unlink(self.path)


def take_over_owner(path: str, like: str, mode: int) -> None:
    """Gives `path` this mode and the owner of `like`, as far as permitted."""
    os.chmod(path, mode)
    status = os.stat(like)
    with suppress(PermissionError):
        os.chown(path, status.st_uid, status.st_gid)


def sync_directory(path: str) -> None:
    """Makes new and changed directory entries durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every file system can sync a directory
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Repair:
    """Copies a data directory, with the state of its queues in `reports`, to `target`, which must not exist. With
    `adopt`, adds topics and channels to nsqd.dat that it does not list."""

    _directory: DataDirectory
    _reports: Sequence[QueueReport]
    _target: str
    _adopt: bool
    _max_msg_size: int

    @property
    def adopted(self) -> list[str]:
        """Returns the queues that nsqd.dat will list and does not list now, sorted."""
        listed = self._directory.listed
        if listed is not None and not self._adopt:
            return []
        unknown = [queue for queue in self._directory.queues.values() if queue.name not in (listed or {})]
        names = {queue.name for queue in unknown if queue.numbers or queue.has_meta}
        if listed is None:
            names.update(self._directory.journals)
        return sorted(name for name in names if is_valid_queue(name) and EPHEMERAL_SUFFIX not in name)

    @property
    def is_needed(self) -> bool:
        if self._directory.listed is None or self.adopted:
            return True
        return any(report.needs_repair for report in self._reports)

    @property
    def size(self) -> int:
        """Bytes to write, at most."""
        bad = sum(sum(report.queue.bad.values()) for report in self._reports)
        return bad + sum(report.queue.size for report in self._reports)

    def run(self, advance: Advance) -> list[Saved]:
        """Makes the copy, and returns what was repaired. Raises AdminError if that fails; then there is no copy."""
        source, target = self._directory.path, self._target
        with _made_directory(source, target, self.size) as unfinished:
            repaired = []
            for report in self._reports:
                if report.needs_repair:
                    repaired.append(self._rewrite(report, unfinished, advance))
                else:
                    self._copy_names(_names(report.queue), unfinished, advance)
            self._write_metadata(unfinished)
            journals = self._directory.journals.values()
            segments = [segment_name(journal.topic, number) for journal in journals for number in journal.numbers]
            self._copy_names([*self._directory.unknown, *segments], unfinished, advance)
        return repaired

    def _copy_names(self, names: Sequence[str], target: str, advance: Advance) -> None:
        """Copies files with their owners and modes; raises OSError."""
        for name in names:
            source = os.path.join(self._directory.path, name)
            with open(source, "rb") as file, Writer(os.path.join(target, name), source) as writer:
                while data := file.read(_CHUNK):
                    writer.write(data)
                    advance(len(data))

    def _rewrite(self, report: QueueReport, target: str, advance: Advance) -> Saved:
        queue, meta = report.queue, report.plan.meta
        first = last = max([-1, *queue.numbers, *queue.bad, meta.write_file if meta else -1]) + 1
        messages, position = 0, 0
        like = queue.path(min(queue.numbers)) if queue.numbers else self._directory.path
        items = read_queue(queue, report.plan, self._max_msg_size, advance)
        records = ((number, item.payload) for number, item in items if isinstance(item, StoredRecord))
        for last, (_, same_file) in enumerate(groupby(records, itemgetter(0)), first):
            with Writer(os.path.join(target, queue.file_name(last)), like) as writer:
                for _, payload in same_file:
                    writer.write_record(payload)
                    messages += 1
                position = writer.size
        with Writer(os.path.join(target, meta_file_name(queue.name)), like) as writer:
            writer.write(Meta(messages, first, 0, last, position).format())
        if report.due_times.end:
            with Writer(os.path.join(target, due_times_file_name(queue.name)), like) as writer:
                writer.write(read_file(queue.due_times_path, report.due_times.end))
        self._copy_names(_bad_names(queue), target, advance)
        return Saved(queue.name, messages, report.lost)

    def _write_metadata(self, target: str) -> None:
        adopted, listed = self.adopted, self._directory.listed or {}
        if self._directory.listed is not None and not adopted:
            self._copy_names([METADATA], target, lambda count: None)
            return

        def entry(name: str, queue: str) -> dict[str, object]:
            return {"name": name, "paused": queue in listed and listed[queue].paused}

        topics = []
        for topic, channels in grouped(name.partition(":")[::2] for name in dict.fromkeys([*listed, *adopted])).items():
            topics.append(entry(topic, topic))
            topics[-1]["channels"] = [entry(name, f"{topic}:{name}") for name in channels if name] or None
        document = {"topics": topics or None, "version": NSQD_VERSION}
        source = os.path.join(self._directory.path, METADATA)
        like = source if os.path.isfile(source) else self._directory.path
        with Writer(os.path.join(target, METADATA), like) as writer:
            writer.write(json.dumps(document, separators=(",", ":")).encode())


def _names(queue: StoredQueue) -> list[str]:
    names = [queue.file_name(number) for number in queue.numbers] + [meta_file_name(queue.name)] * queue.has_meta
    return names + [due_times_file_name(queue.name)] * (queue.due_times_size is not None) + _bad_names(queue)


def _bad_names(queue: StoredQueue) -> list[str]:
    names = [queue.file_name(number, bad=True) for number in queue.bad]
    return names + [f"{due_times_file_name(queue.name)}.bad"] * queue.bad_due_times


@contextmanager
def _made_directory(source: str, target: str, needed: int) -> Iterator[str]:
    """Makes a directory that becomes `target` when `with` succeeds, and is removed otherwise."""
    unfinished = f"{target}.unfinished"
    parent = os.path.dirname(os.path.abspath(target))
    try:
        free = shutil.disk_usage(parent).free
        if free < needed:
            raise AdminError(f"a copy needs {size(needed)}, and only {size(free)} are free in {parent}")
        os.mkdir(unfinished, 0o700)
    except FileExistsError:
        raise AdminError(f"{unfinished} is left from an interrupted run; remove it") from None
    except OSError as error:
        raise AdminError(f"cannot make {unfinished}: {reason_of(error)}") from error
    try:
        yield unfinished
        take_over_owner(unfinished, source, os.stat(source).st_mode & 0o777)
        sync_directory(unfinished)
        os.rename(unfinished, target)
        sync_directory(parent)
    except BaseException as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if isinstance(error, OSError):
            raise AdminError(f"cannot make the copy in {target}: {reason_of(error)}") from error
        raise


def exchange(path: str, copy: str, kept: str) -> None:
    """Renames the directory `path` to `kept`, and `copy` to `path`; raises AdminError, and changes nothing."""
    try:
        os.rename(path, kept)
    except OSError as error:
        raise AdminError(f"cannot rename {path}: {reason_of(error)}; the repaired copy is {copy}") from error
    try:
        os.rename(copy, path)
    except OSError as error:
        os.rename(kept, path)
        raise AdminError(f"cannot rename {copy}: {reason_of(error)}; nothing was replaced") from error
    sync_directory(os.path.dirname(os.path.abspath(path)))


@dataclass(slots=True)
class BadFile:
    file: str = column("file")
    queue: str = json_only()
    delivered: int = column(
        "delivered before", "before", Form.COUNT, default=0, help="messages before the damage, which nsqd had read"
    )
    unknown: int = column(
        "delivered or not", "?", Form.COUNT, default=0, help="messages of a file without damage; --all recovers them"
    )
    recovered: int = column("recovered", "rec", Form.COUNT, ALWAYS, default=0)
    lost_bytes: int = column("lost", form=Form.BYTES, keep=ALWAYS, tone=Tone.BAD, help="unreadable", default=0)
    error: str = column(
        "error", keep=6, tone=Tone.BAD, null=True, help="null, or why nothing was recovered", default=""
    )

    def read(self, path: str, *, everything: bool, max_msg_size: int, advance: Advance) -> Iterator[bytes]:
        """Yields the payloads behind the first damage, or all, and counts them. Raises AdminError if the file cannot be
        read."""
        tally = FileTally()
        for item in read_data_file(path, 0, max_msg_size, advance):
            tally.add(item)
            self.delivered, self.lost_bytes = tally.messages - tally.behind, tally.lost
            if isinstance(item, StoredRecord) and (tally.flaw or everything):
                self.recovered += 1
                yield item.payload
        if not tally.flaw:
            self.unknown, self.delivered = self.delivered, 0


def put_back(queue: StoredQueue, bad: str, payloads: Iterator[bytes], directory: DataDirectory) -> None:
    """Puts the messages of the file `bad` back at the end of its queue, and renames it. Raises AdminError, with the
    queue as it was, if that fails or the queue is not in order. The lock of the directory must be held."""
    if directory.listed is None or not directory.is_listed(queue):
        text = f"nsqd.dat does not list the topic or channel {queue.name}"
        raise AdminError(f"{text}; --to writes the messages to a file")
    try:
        meta = queue.read_meta()
    except StorageError as error:
        if queue.numbers or queue.has_meta:
            raise AdminError(f"{error}; the queue must be repaired first") from error
        meta = Meta()
    if max(queue.numbers, default=-1) > meta.write_file or queue.numbers.get(meta.write_file, 0) != meta.write_pos:
        raise AdminError("the meta file and the data files do not agree; the queue must be repaired first")
    number = meta.write_file + 1 if meta.write_pos else meta.write_file
    path, written = queue.path(number), f"{queue.meta_path}.{os.getpid()}.tmp"
    try:
        if number in queue.numbers:
            os.unlink(path)  # it is empty
        count = 0
        with Writer(path, bad) as writer:
            for payload in payloads:
                writer.write_record(payload)
                count += 1
        if not count:
            os.unlink(path)
            return
        sync_directory(queue.directory)
        is_empty = meta.read_position == meta.write_position
        reading = (number, 0) if is_empty else meta.read_position
        repaired = Meta(meta.depth * (not is_empty) + count, *reading, number, writer.size)
        try:
            with suppress(FileNotFoundError):
                os.unlink(written)  # of a run that was killed
            with Writer(written, bad) as meta_writer:
                meta_writer.write(repaired.format())
            os.rename(written, queue.meta_path)
        except BaseException:
            os.unlink(path)  # gnsqd would read it even without meta
            raise
        queue.has_meta, queue.numbers[number] = True, writer.size
        os.rename(bad, f"{bad}.recovered")
        if is_empty and number != meta.write_file and queue.numbers.pop(meta.write_file, 0):
            os.unlink(queue.path(meta.write_file))
        sync_directory(queue.directory)
    except OSError as error:
        raise AdminError(f"its messages cannot be recovered: {reason_of(error)}") from error
