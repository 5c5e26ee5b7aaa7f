"""The spool: messages on disk from before their FIN until Spark has committed them.

    {spoolLocation}/{stream}/stream                               what the stream is, JSON, written once by the driver
                             plan                                 of a batch read: what all scans of it read, JSON
                             committed                            number of the last batch that needs no replay
                             batches/{batch}/{topic}@{nsqd}/000000   a chain: segments and ends, numbered by slot
                                                            fin-*    markers: the segments whose FINs are confirmed
                             ids/{topic}@{nsqd}/*.ids             ids of committed batches, see known_ids

A chain belongs to one batch, topic and nsqd; the tasks of that batch share it. An entry is written to a temporary
file, fsynced, and then linked to the next slot. Linking fails when somebody else has taken the slot, so whoever links
has seen all entries before its own: a second run of a task (a retry, speculation, a zombie on a lost executor) can't
fork the chain, nor go on behind its task's end, and a message that came twice is noticed by the later of both.
What a task delivers is what the chain has between its start and the task's END, so every run delivers the same.

The directory must be the same for driver and executors; the file system must know hard links.
"""

import errno
import json
import logging
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from pyspark_nsq.errors import SpoolError
from pyspark_nsq.options import Settings
from pyspark_nsq.segment import Damaged, Entry, Kind, pack_entry, read_entry

_MARKER = "fin-"
_TEMPORARY = ".tmp-"

_log = logging.getLogger(__name__)


# The steps between a message and its safety. Tests replace them to fail or die at each.


def write_temporary(path: str, pieces: Iterable[bytes | memoryview]) -> None:
    """A new file with the pieces, on the disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def link(temporary: str, path: str) -> bool:
    """Give the file its name unless that is taken; whether it was free."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        # Over NFS a repeated request may fail because its own first try has taken the name.
        return os.path.samefile(temporary, path)
    return True


def sync_directory(path: str) -> None:
    """Names in the directory survive a power cut when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: str) -> None:
    """Make a directory, and the one around it, which survive a power cut."""
    os.makedirs(path, exist_ok=True)
    parent = os.path.dirname(path)
    sync_directory(parent)
    sync_directory(os.path.dirname(parent))


@contextmanager
def _temporary(directory: str) -> Iterator[str]:
    """A name in the directory; a file that still has it in the end is deleted."""
    path = os.path.join(directory, _TEMPORARY + uuid.uuid4().hex)
    try:
        yield path
    finally:
        with suppress(OSError):
            os.unlink(path)


def write_file(path: str, pieces: Iterable[bytes | memoryview]) -> None:
    """Write or replace a whole file, durably and at once."""
    directory = os.path.dirname(path)
    with _temporary(directory) as temporary:
        write_temporary(temporary, pieces)
        os.replace(temporary, path)
    sync_directory(directory)


def _create(path: str, pieces: Iterable[bytes | memoryview]) -> bool:
    """Make a whole file, durably and at once, unless there is one; whether there was none. SpoolError."""
    directory = os.path.dirname(path)
    try:
        with _temporary(directory) as temporary:
            write_temporary(temporary, pieces)
            won = link(temporary, path)
        sync_directory(directory)
    except OSError as error:
        raise _trouble("write", directory, error) from None
    return won


def _trouble(doing: str, path: str, error: OSError) -> SpoolError:
    what = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what += " (messages stay in NSQ until there is room)"
    return SpoolError(f"cannot {doing} the spool at {path}: {what}")


def check_location(location: str) -> None:
    """Make the directory of a spool; SpoolError if that fails, or hard links there fail or replace files."""
    try:
        os.makedirs(location, exist_ok=True)
        with _temporary(location) as one, _temporary(location) as two, _temporary(location) as name:
            write_temporary(one, [b"1"])
            write_temporary(two, [b"2"])
            try:
                os.link(one, name)
                is_exclusive = not link(two, name)
            except OSError as error:
                reason = f"without hard links: {error.strerror}"
                raise SpoolError(f"the spool at {location} is on a file system {reason}") from None
            if not is_exclusive:
                raise SpoolError(f"the spool at {location} is on a file system where links replace files")
    except OSError as error:
        raise _trouble("make", location, error) from None


class Chain:
    """What the tasks of a batch have taken from one topic of one nsqd, as far as this process has seen it.

    An entry that is damaged or missing raises Damaged; if not `strict`, it is passed over with a warning.
    """

    def __init__(self, directory: str, strict: bool = True) -> None:
        self.directory = directory
        self._strict = strict
        self.entries: list[Entry] = []
        self._ended: set[int] = set()
        self._closed = False

    def open(self) -> None:
        """Make the directory if there is none, and read what is in it.

        What was linked by a run that died may not be durable yet: that is made up for, because messages that are in
        the chain are finished without another look.
        """
        try:
            make_directory(self.directory)
            self.refresh()
            if self.entries:
                sync_directory(self.directory)
        except OSError as error:
            raise _trouble("open", self.directory, error) from None

    def refresh(self) -> list[Entry]:
        """The entries that are new since the last look; none if there is no such directory."""
        new: list[Entry] = []
        first_look = not self.entries
        slot = len(self.entries)
        while True:
            try:
                entry = read_entry(self._path(slot), slot)
            except FileNotFoundError:
                if not (first_look and self._is_gap(slot)):
                    break
                entry = self._lost(slot, Damaged(f"{self._path(slot)} is missing, but there are later ones"))
            except Damaged as error:
                entry = self._lost(slot, error)
            new.append(entry)
            slot += 1
            if entry.kind is Kind.END:
                self._ended.add(entry.part)
            elif entry.kind is Kind.CLOSE:
                self._closed = True
        self.entries += new
        return new

    def _is_gap(self, slot: int) -> bool:
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return False
        # Entries that were linked meanwhile are none.
        return any(name.isdecimal() and int(name) > slot for name in names) and not os.path.exists(self._path(slot))

    def _lost(self, slot: int, error: Damaged) -> Entry:
        if self._strict:
            raise error
        _log.warning("%s", error)
        return Entry(self._path(slot), slot, Kind.LOST, 0, 0, 0, b"", b"", 0, 0, 0)

    def _path(self, slot: int) -> str:
        return os.path.join(self.directory, f"{slot:06d}")

    def ended(self, part: int) -> bool:
        """Whether nothing of that task may follow."""
        return self._closed or part in self._ended

    def segments(self, part: int) -> list[Entry]:
        """The segments of a task, in order."""
        return [entry for entry in self.entries if entry.kind is Kind.SEGMENT and entry.part == part]

    def append(self, pieces: Sequence[bytes | memoryview]) -> bool:
        """Put an entry into the next slot; False, having looked at what is new, if somebody else was first.

        SpoolError if it can't be written. When this returns True the entry is durable.
        """
        won = _create(self._path(len(self.entries)), pieces)
        self.refresh()
        return won

    def end(self, part: int) -> None:
        """Nothing of that task may follow."""
        while not self.ended(part):
            self.append(pack_entry(Kind.END, part))

    def close(self) -> None:
        """Nothing may follow."""
        while not self._closed:
            self.append(pack_entry(Kind.CLOSE))

    def confirm(self, part: int, slots: Sequence[int]) -> None:
        """Note that the nsqd has processed the FINs of these segments. Not noting it costs only disk space."""
        path = Path(self.directory, f"{_MARKER}{part:04d}-{uuid.uuid4().hex[:12]}")
        with suppress(OSError):  # written halfway, its segments stay in doubt, which is safe
            path.write_text(json.dumps(list(slots)))

    def confirmed(self) -> set[int]:
        """The slots of all segments whose FINs are confirmed."""
        slots: set[int] = set()
        for path in Path(self.directory).glob(f"{_MARKER}*"):
            try:
                slots.update(json.loads(path.read_text()))
            except (ValueError, TypeError):
                continue
        return slots


class Spool:
    """The directory of one stream; `strict`: what is damaged is an error, not a warning."""

    def __init__(self, location: str, stream: str, strict: bool = True) -> None:
        self.location = location
        self.strict = strict
        self.stream = stream
        self.directory = os.path.join(location, stream)

    @classmethod
    def of(cls, settings: Settings, stream: str) -> "Spool":
        """The directory of a stream whose settings have a spool."""
        assert settings.spool_location is not None
        return cls(settings.spool_location, stream, strict=settings.fail_on_data_loss)

    @classmethod
    def create(cls, location: str, stream: str, *, kind: str, topics: Sequence[str], channel: str) -> "Spool":
        """A new stream's directory, made by the driver; `kind` is "readStream" or "read". SpoolError if it can't be."""
        spool = cls(location, stream)
        check_location(location)
        about = {"version": 1, "kind": kind, "created": int(time.time()), "topics": list(topics), "channel": channel}
        try:
            for name in ("batches", "ids"):
                os.makedirs(os.path.join(spool.directory, name), exist_ok=True)
            if not spool.exists():
                write_file(spool._file("stream"), [json.dumps(about).encode() + b"\n"])
            sync_directory(location)
        except OSError as error:
            raise _trouble("make", spool.directory, error) from None
        return spool

    def _file(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def exists(self) -> bool:
        """Whether the stream's directory is what `create` made, seen from here."""
        return os.path.exists(self._file("stream"))

    def about(self) -> dict[str, object]:
        """What `create` noted; empty if that is unreadable."""
        try:
            value = json.loads(Path(self._file("stream")).read_text())
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def plan(self) -> dict[str, Any] | None:
        """What `settle_plan` settled; None if nobody has done it. SpoolError if it is unreadable."""
        path = self._file("plan")
        try:
            value: dict[str, Any] = json.loads(Path(path).read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise SpoolError(f"cannot read the plan of a batch read at {path}: {error}") from None
        return value

    def settle_plan(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Settle what a batch read reads, once for all of its scans: the plan of whoever was first."""
        _create(self._file("plan"), [json.dumps(plan).encode()])
        settled = self.plan()
        assert settled is not None
        return settled

    def chain(self, batch: int, topic: str, nsqd: str) -> Chain:
        """The chain of a batch, topic and nsqd; look at it with `open` or `refresh`."""
        return Chain(os.path.join(self.batch_directory(batch), chain_name(topic, nsqd)), self.strict)

    def batch_directory(self, batch: int) -> str:
        return os.path.join(self.directory, "batches", f"{batch:010d}")

    def chains(self, batch: int) -> list[tuple[str, str, Chain]]:
        """(topic, nsqd, chain) of all chains of a batch, not looked at yet."""
        try:
            names = sorted(os.listdir(self.batch_directory(batch)))
        except FileNotFoundError:
            return []
        return [(*split_chain_name(name), self.chain(batch, *split_chain_name(name))) for name in names if "@" in name]

    def ids_directory(self, topic: str, nsqd: str) -> str:
        return os.path.join(self.directory, "ids", chain_name(topic, nsqd))

    def batches(self) -> list[int]:
        """Numbers of the batches whose segments are still there, lowest first."""
        try:
            return sorted(int(name) for name in os.listdir(self._file("batches")) if name.isdecimal())
        except FileNotFoundError:
            return []

    def committed(self) -> int:
        """The last batch that needs no replay any more: nothing is finished for it or one before. 0: none."""
        try:
            return int(Path(self._file("committed")).read_text())
        except FileNotFoundError:
            return 0
        except ValueError:
            raise Damaged(f"{self._file('committed')} does not hold a number") from None

    def set_committed(self, batch: int) -> None:
        write_file(self._file("committed"), [b"%d\n" % batch])


def chain_name(topic: str, nsqd: str) -> str:
    """A file name for a topic of an nsqd."""
    return f"{quote(topic, safe='')}@{quote(nsqd, safe='[]:')}"


def split_chain_name(name: str) -> tuple[str, str]:
    """The topic and nsqd of `chain_name`."""
    topic, _, nsqd = name.partition("@")
    return unquote(topic), unquote(nsqd)
