"""The spool: messages on disk from before their FIN until Spark has committed them.

    {spoolLocation}/{stream}/stream                               what the stream is, JSON, written once by the driver
                             named                                of a batch read whose name somebody has used
                             plan                                 of a batch read: what all scans of it read, JSON
                             committed                            number of the last batch that needs no replay
                             batches/{batch}/{chain}@{nsqd}/000000   a chain: segments and ends, numbered by slot
                                                            fin-*    markers: the segments whose FINs are confirmed
                             ids/{nsqd}/*.ids                     ids of committed batches, see known_ids

The tasks of a batch that read the same topic of an nsqd share a chain. An entry is written to a temporary
file, fsynced, and then linked to the next slot. Linking fails when somebody else has taken the slot, so whoever links
has seen all entries before its own: a second run of a task (a retry, speculation, a zombie on a lost executor) can't
fork the chain, nor go on behind its task's end, and a message that came twice is noticed by the later of both.
What a task delivers is what the chain has between its start and the task's END, so every run delivers the same.

The directory must be the same for driver and executors. It may also be in an object store: see files.
"""

import errno
import json
import logging
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote, unquote

from gnsqd.shared.errors import reason_of
from pyspark_nsq.errors import SpoolError
from pyspark_nsq.files import Pieces, names_in, place
from pyspark_nsq.options import Settings
from pyspark_nsq.segment import ID_LENGTH, Damaged, Entry, EntryKind, pack_entry, parse_header, read_entry, read_ids

_MARKER = "fin-"

_log = logging.getLogger(__name__)


@contextmanager
def _spool_errors(doing: str, path: str) -> Iterator[None]:
    """Turns an OSError into a SpoolError."""
    try:
        yield
    except OSError as error:
        what = reason_of(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what += " (messages stay in NSQ until there is room)"
        raise SpoolError(f"cannot {doing} the spool at {path}: {what}") from None


def _create(path: str, pieces: Pieces) -> bool:
    """Make a whole file, durably and at once, unless there is one; whether there was none. SpoolError."""
    with _spool_errors("write", os.path.dirname(path)):
        return place(path).create(path, pieces)


def check_location(location: str) -> None:
    """Make the directory of a spool; SpoolError if that fails, or files there can be replaced by mistake."""
    with _spool_errors("make", location):
        place(location).check(location)


class Chain:
    """What tasks of a batch have taken from one nsqd, as far as this process has seen it.

    An entry that is damaged or missing raises Damaged; if not `strict`, it is passed over with a warning.
    """

    def __init__(self, directory: str, strict: bool = True) -> None:
        self.directory = directory
        self._place = place(directory)
        self._strict = strict
        self.entries: list[Entry] = []

    def open(self) -> None:
        """Make the directory if there is none, and read what is in it.

        What was linked by a run that died may not be durable yet: that is made up for, because messages that are in
        the chain are finished without another look.
        """
        with _spool_errors("open", self.directory):
            self._place.make_directory(self.directory)
            self.refresh()
            if self.entries:
                self._place.settle(self.directory)

    def refresh(self) -> None:
        """Look at the entries that are new since the last look; none if there is no such directory."""
        first_look = not self.entries
        while True:
            slot = len(self.entries)
            try:
                entry = read_entry(self._path(slot), slot)
            except FileNotFoundError:
                if not (first_look and self._is_gap(slot)):
                    return
                entry = self._lost(slot, Damaged(f"{self._path(slot)} is missing, but there are later ones"))
            except Damaged as error:
                entry = self._lost(slot, error)
            self.entries.append(entry)

    def _is_gap(self, slot: int) -> bool:
        # Entries that were linked meanwhile are none.
        later = (name for name in names_in(self.directory) if name.isdecimal() and int(name) > slot)
        return any(later) and not self._place.exists(self._path(slot))

    def _lost(self, slot: int, error: Damaged) -> Entry:
        if self._strict:
            raise error
        _log.warning("%s", error)
        return Entry(self._path(slot), slot, EntryKind.LOST, 0, 0, 0, b"", b"", 0, 0, 0, 0)

    def _path(self, slot: int) -> str:
        return os.path.join(self.directory, f"{slot:06d}")

    def ended(self, part: int) -> bool:
        """Whether nothing of that task may follow."""
        return any(entry.kind is EntryKind.END and entry.part == part for entry in self.entries)

    def segments(self, part: int | None = None) -> list[Entry]:
        """The segments of a task, or of all tasks, in order."""
        segments = [entry for entry in self.entries if entry.kind is EntryKind.SEGMENT]
        return segments if part is None else [entry for entry in segments if entry.part == part]

    def append(self, pieces: Sequence[bytes | memoryview]) -> bool:
        """Put an entry into the next slot; False, having looked at what is new, if somebody else was first.

        SpoolError if it can't be written. When this returns True the entry is durable.
        """
        slot = len(self.entries)
        path = self._path(slot)
        if _create(path, pieces):
            self.entries.append(parse_header(path, slot, b"".join(pieces[:2]), sum(map(len, pieces))))
            return True
        self.refresh()
        return False

    def end(self, part: int, dropped: int = 0) -> None:
        """Nothing of that task may follow, which has dropped that many messages."""
        while not self.ended(part):
            self.append(pack_entry(EntryKind.END, part, dropped))

    def confirm(self, part: int, slots: Sequence[int]) -> None:
        """Note that the nsqd has processed the FINs of these segments. Not noting it costs only disk space."""
        path = os.path.join(self.directory, f"{_MARKER}{part:04d}-{uuid.uuid4().hex[:12]}")
        with suppress(OSError, SpoolError):  # its segments stay in doubt, which is safe
            self._place.replace(path, [json.dumps(list(slots)).encode()])

    def confirmed(self) -> set[int]:
        """The slots of all segments whose FINs are confirmed."""
        slots: set[int] = set()
        for name in names_in(self.directory):
            if name.startswith(_MARKER):
                with suppress(ValueError, TypeError):
                    slots.update(json.loads(self._place.read(os.path.join(self.directory, name))))
        return slots


class Spool:
    """The directory of one stream; `strict`: what is damaged is an error, not a warning."""

    def __init__(self, location: str, stream: str, strict: bool = True) -> None:
        self.location = location
        self.strict = strict
        self.stream = stream
        self.directory = os.path.join(location, stream)
        self._place = place(location)

    @classmethod
    def of(cls, settings: Settings, stream: str) -> "Spool":
        """The directory of a stream whose settings have a spool."""
        assert settings.spool_location is not None
        return cls(settings.spool_location, stream, strict=settings.fail_on_data_loss)

    @classmethod
    def create(cls, settings: Settings, stream: str, kind: str, session: str = "") -> "Spool":
        """A new stream's directory, made by the driver; `kind` is "readStream" or "read", `session` that of a read
        without a name. SpoolError if it can't be."""
        spool = cls.of(settings, stream)
        check_location(spool.location)
        about = {"version": 1, "kind": kind, "created": int(time.time()), "session": session}
        about |= {"topics": settings.subscription, "channel": settings.channel}
        with _spool_errors("make", spool.directory):
            for name in ("batches", "ids"):
                spool._place.make_directory(spool._file(name))
            if not spool.exists():
                spool._place.replace(spool._file("stream"), [json.dumps(about).encode() + b"\n"])
        return spool

    def mark_named(self) -> None:
        """Let other reads begin: somebody knows this batch read by its name, or has published its messages again."""
        _create(self._file("named"), [b""])

    def _file(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def exists(self, name: str = "stream") -> bool:
        """Whether the stream's directory has this file, seen from here; `create` makes the file `stream`."""
        return self._place.exists(self._file(name))

    def about(self) -> dict[str, Any]:
        """What `create` noted; empty if that is unreadable."""
        try:
            value = json.loads(self._place.read(self._file("stream")))
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def plan(self) -> dict[str, Any] | None:
        """What `settle_plan` settled; None if nobody has done it. SpoolError if it is unreadable."""
        path = self._file("plan")
        try:
            return dict(json.loads(self._place.read(path)))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise SpoolError(f"cannot read the plan of a batch read at {path}: {error}") from None

    def settle_plan(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Settle what a batch read reads, once for all of its scans: the plan of whoever was first."""
        _create(self._file("plan"), [json.dumps(plan).encode()])
        return self.plan() or {}

    def chain(self, batch: int, number: int, nsqd: str) -> Chain:
        """A chain of a batch; look at it with `open` or `refresh`."""
        return Chain(os.path.join(self.batch_directory(batch), f"{number:04d}@{_quoted(nsqd)}"), self.strict)

    def batch_directory(self, batch: int) -> str:
        return os.path.join(self.directory, "batches", f"{batch:010d}")

    def chains(self, batch: int, of_nsqd: str | None = None) -> Iterator[tuple[str, Chain]]:
        """Yields (nsqd, chain) of all chains of a batch, or those of one nsqd, as they are now."""
        for name in sorted(names_in(self.batch_directory(batch))):
            number, at, quoted = name.partition("@")
            nsqd = unquote(quoted)
            if at and of_nsqd in (nsqd, None):
                chain = self.chain(batch, int(number), nsqd)
                chain.refresh()
                yield nsqd, chain

    def messages(self, batch: int) -> Counter[tuple[str, str]]:
        """Returns by topic and nsqd how many messages the segments of a batch have."""
        found: Counter[tuple[str, str]] = Counter()
        for nsqd, chain in self.chains(batch):
            for entry in chain.segments():
                try:
                    ids_of = read_ids(entry)
                except Damaged:  # the task that reads it warns
                    if self.strict:
                        raise
                    continue
                found.update({(topic, nsqd): len(ids) // ID_LENGTH for topic, ids in ids_of.items()})
        return found

    def ids_directory(self, nsqd: str) -> str:
        return os.path.join(self.directory, "ids", _quoted(nsqd))

    def batches(self) -> list[int]:
        """Numbers of the batches whose segments are still there, lowest first."""
        return sorted(int(name) for name in names_in(self._file("batches")) if name.isdecimal())

    def committed(self) -> int:
        """The last batch that needs no replay any more: nothing is finished for it or one before. 0: none."""
        try:
            return int(self._place.read(self._file("committed")))
        except FileNotFoundError:
            return 0
        except ValueError:
            raise Damaged(f"{self._file('committed')} does not hold a number") from None

    def set_committed(self, batch: int) -> None:
        self._place.replace(self._file("committed"), [b"%d\n" % batch])


def chain_name(topic: str, nsqd: str) -> str:
    """A file name for a topic of an nsqd, and for the name of a batch read of a channel."""
    return f"{quote(topic, safe='')}@{quote(nsqd, safe='[]:')}"


def split_chain_name(name: str) -> tuple[str, str]:
    """The topic and nsqd of `chain_name`."""
    topic, _, nsqd = name.partition("@")
    return unquote(topic), unquote(nsqd)


def _quoted(nsqd: str) -> str:
    return quote(nsqd, safe="[]:")
