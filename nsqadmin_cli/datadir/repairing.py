"""Makes a copy of a data directory in which every queue is whole; the directory itself is only read.

Undamaged queues are copied unchanged. Of the others, every readable message is written, in order, to new files with
numbers above the old ones, so that names of files set aside are not reused. Messages already read, and unfinished files
of a killed nsqd, are not copied.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from gnsq_shared.directory import METADATA, DataDirectory, Listed, Queue, read_file, reason_of
from gnsqd.storage.disk.record import LENGTH, Meta, data_file_name, due_times_file_name, meta_file_name, segment_name
from gnsqd.version import NSQD_VERSION
from nsqadmin_cli.datadir.checking import Report
from nsqadmin_cli.datadir.records import Record, Saved, read_queue
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.output import Advance
from nsqadmin_cli.units import size

_CHUNK = 1 << 20


class Writer:
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

    def __enter__(self) -> "Writer":
        return self

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


def copy_file(source: str, target: str, advance: Advance) -> None:
    """A copy with the same owner and mode; OSError."""
    with open(source, "rb") as file, Writer(target, source) as writer:
        while data := file.read(_CHUNK):
            writer.write(data)
            advance(len(data))


def replace_file(path: str, data: bytes, like: str) -> None:
    """Replace `path` by a file with this content, or leave it unchanged; OSError."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with suppress(FileNotFoundError):
        os.unlink(temporary)  # of a run that was killed
    with Writer(temporary, like) as writer:
        writer.write(data)
    os.rename(temporary, path)


def take_over_owner(path: str, like: str, mode: int) -> None:
    """Give `path` this mode and the owner of `like`, as far as permitted."""
    os.chmod(path, mode)
    found = os.stat(like)
    with suppress(PermissionError):
        os.chown(path, found.st_uid, found.st_gid)


def sync_directory(path: str) -> None:
    """Make new and changed directory entries durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every file system can sync a directory
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


_NAME = re.compile(r"[.a-zA-Z0-9_-]{1,64}(:[.a-zA-Z0-9_-]{1,64})?")  # of a queue that nsqd.dat can list


class Repair:
    """Copies the directory `found`, with the state of its queues in `reports`, to `target`, which must not exist.

    With `adopt`, adds topics and channels to nsqd.dat that it does not list.
    """

    def __init__(
        self, found: DataDirectory, reports: Sequence[Report], target: str, *, adopt: bool, max_msg_size: int
    ) -> None:
        self._found = found
        self._reports = reports
        self._target = target
        self._adopt = adopt
        self._max_msg_size = max_msg_size

    @property
    def adopted(self) -> list[str]:
        """The queues that nsqd.dat will list and does not list now."""
        if self._found.listed is not None and not self._adopt:
            return []
        unknown = [queue for queue in self._found.queues.values() if queue.name not in (self._found.listed or {})]
        return sorted(
            queue.name for queue in unknown if _NAME.fullmatch(queue.name) and (queue.numbers or queue.has_meta)
        )

    @property
    def is_needed(self) -> bool:
        return bool(self._found.listed is None or self.adopted or any(report.needs_repair for report in self._reports))

    @property
    def size(self) -> int:
        """Bytes to write, at most."""
        bad = sum(sum(report.queue.bad.values()) for report in self._reports)
        return bad + sum(report.queue.size for report in self._reports)

    def run(self, advance: Advance) -> list[Saved]:
        """Make the copy; on failure, AdminError, and the copy is removed."""
        source, target = self._found.path, self._target
        with _made_directory(source, target, self.size) as unfinished:
            repaired = []
            for report in self._reports:
                if report.needs_repair:
                    repaired.append(self._rewrite(report, unfinished, advance))
                else:
                    self._copy(report.queue, unfinished, advance)
            self._write_metadata(unfinished)
            journals = self._found.journals.values()
            segments = [segment_name(journal.topic, number) for journal in journals for number in journal.numbers]
            self._copy_names([*self._found.unknown, *segments], unfinished, advance)
        return repaired

    def _copy(self, queue: Queue, target: str, advance: Advance) -> None:
        names = [queue.file_name(number) for number in queue.numbers]
        if queue.has_meta:
            names.append(meta_file_name(queue.name))
        if queue.due_times_size is not None:
            names.append(due_times_file_name(queue.name))
        self._copy_names([*names, *_bad_names(queue)], target, advance)

    def _copy_names(self, names: Sequence[str], target: str, advance: Advance) -> None:
        for name in names:
            copy_file(os.path.join(self._found.path, name), os.path.join(target, name), advance)

    def _rewrite(self, report: Report, target: str, advance: Advance) -> Saved:
        queue, meta = report.queue, report.plan.meta
        first = last = max([-1, *queue.numbers, *queue.bad, meta.write_file if meta else -1]) + 1
        messages, position = 0, 0
        like = queue.path(min(queue.numbers)) if queue.numbers else self._found.path
        records = self._messages(report, advance)
        record = next(records, None)
        while record is not None:
            number = record[0]
            last = first if not messages else last + 1
            with Writer(os.path.join(target, data_file_name(queue.name, last)), like) as writer:
                while record is not None and record[0] == number:
                    writer.write_record(record[1])
                    messages += 1
                    record = next(records, None)
                position = writer.size
        with Writer(os.path.join(target, meta_file_name(queue.name)), like) as writer:
            writer.write(Meta(messages, first, 0, last, position).format())
        if report.due_times.end:
            with Writer(os.path.join(target, due_times_file_name(queue.name)), like) as writer:
                writer.write(read_file(queue.due_times_path, report.due_times.end))
        self._copy_names(_bad_names(queue), target, advance)
        return Saved(queue.name, messages, sum(tally.lost for tally in report.files.values()))

    def _messages(self, report: Report, advance: Advance) -> Iterator[tuple[int, bytes]]:
        """File number and payload of each readable message."""
        for number, item in read_queue(report.queue, report.plan, self._max_msg_size, advance):
            if isinstance(item, Record):
                yield number, item.payload

    def _write_metadata(self, target: str) -> None:
        source = os.path.join(self._found.path, METADATA)
        path = os.path.join(target, METADATA)
        adopted = self.adopted
        if self._found.listed is not None and not adopted:
            copy_file(source, path, lambda count: None)
            return
        names = dict.fromkeys([*(self._found.listed or {}), *adopted])
        like = source if os.path.isfile(source) else self._found.path
        with Writer(path, like) as writer:
            writer.write(_metadata(self._found.listed or {}, names))


def _metadata(listed: dict[str, Listed], queues: dict[str, None]) -> bytes:
    """The content of nsqd.dat for these queues, with the channels of a topic behind it."""
    topics: dict[str, list[str]] = {}
    for name in queues:
        topic, _, channel = name.partition(":")
        channels = topics.setdefault(topic, [])
        if channel:
            channels.append(channel)

    def entry(name: str, queue: str) -> dict[str, object]:
        return {"name": name, "paused": queue in listed and listed[queue].paused}

    document = {
        "topics": [
            entry(topic, topic) | {"channels": [entry(name, f"{topic}:{name}") for name in channels] or None}
            for topic, channels in topics.items()
        ]
        or None,
        "version": NSQD_VERSION,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _bad_names(queue: Queue) -> list[str]:
    names = [queue.file_name(number, bad=True) for number in queue.bad]
    return [*names, f"{due_times_file_name(queue.name)}.bad"] if queue.bad_due_times else names


@contextmanager
def _made_directory(source: str, target: str, needed: int) -> Iterator[str]:
    """A directory that becomes `target` when `with` succeeds, and is removed otherwise."""
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
    """Rename the directory `path` to `kept`, and `copy` to `path`; AdminError."""
    try:
        os.rename(path, kept)
    except OSError as error:
        text = f"cannot rename {path}: {reason_of(error)}; the repaired copy is {copy}"
        raise AdminError(text) from error
    try:
        os.rename(copy, path)
    except OSError as error:
        os.rename(kept, path)
        raise AdminError(f"cannot rename {copy}: {reason_of(error)}; nothing was replaced") from error
    sync_directory(os.path.dirname(os.path.abspath(path)))
