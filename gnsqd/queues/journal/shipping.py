"""Ships the journals to a log in an object store: what they have written, at most an interval later.

Nothing is kept for the store but where it is behind: bytes are read back from the files when it takes them. So while it
is away the memory does not grow, and what went from the disk meanwhile is never sent.

One greenlet walks through the journals that have changed, and puts what is new of all of them into one wal object
(`shared.log_store`). Of each journal the store has at any moment what a kill could have left: bytes go in the order of
the files, a copy takes the place of its segments in one step, once it has an object of its own, and files are deleted
last. Another greenlet puts segments that are not written any more, the third deletes what nothing needs.
"""

import os
import socket
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic, time_ns
from typing import Any

from gevent import Greenlet, get_hub, joinall
from gevent.event import Event

from gnsqd.hub.cooperative import BACKGROUND_SECONDS, Report, Spawn, Turns
from gnsqd.log import Logger
from gnsqd.options import MILLISECOND, SECOND, Options
from gnsqd.queues.journal.log import Log
from gnsqd.shared import log_store
from gnsqd.shared.disk_format import parse_queue_file, topic_of
from gnsqd.shared.errors import StartError, StorageError
from gnsqd.shared.journal.segment import Segment
from gnsqd.shared.log_store import DELETE, FILE, METADATA, STORED, WRITE, Claim, Entry, LogStore, Stored, StoredLog, Wal
from gnsqd.storage.syncer import Syncer

INTERVAL = 250 * MILLISECOND
MOST_BYTES = 4 << 20  # of a wal object, unless one file of metadata is larger
READ_AT_ONCE = 64 * 1024  # bytes that the hub reads from the page cache by itself
MOST_WAL = 1000  # objects, before what only the oldest have is repeated in new ones,
REPEATED_BYTES = 1 << 20  # with about that many bytes in each
RETRY_SECONDS = (0.25, 5.0)  # after the first failure, and at most
EXIT_SECONDS = 5.0  # that an exit waits for a store that is away
LOOK_SECONDS = 10.0  # without a put, until it is asked whether the log is still ours
CLEAN_SECONDS = 60.0

Key = tuple[str, str]  # what a wal object is needed for: the kind of entry, and the name of the file


class Shipped:
    """A file as the store has it: `sent` bytes of `segment`, which is None if it is not that of the data path."""

    def __init__(self, name: str, journal: Log | None = None, segment: Segment | None = None, sent: int = 0) -> None:
        self.name = name
        self.journal = journal
        self.segment = segment
        self.sent = sent
        self.stored: Stored | None = None

    @property
    def unstored(self) -> int:
        """The position from which on only wal objects have its bytes."""
        return 0 if self.stored is None else self.stored.size


class Ledger:
    """Knows what the store has, and for what each wal object is needed."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, Shipped]] = {}  # files by name; those of metadata are of the topic ""
        self._numbers: OrderedDict[Key, int] = OrderedDict()  # of wal objects, in order

    def load(self, log: StoredLog) -> None:
        """Takes over what another daemon has sent."""
        keys: list[tuple[int, Key]] = []
        for stored in log.files.values():
            file = self.files_of(topic_of(stored.name))[stored.name] = Shipped(stored.name, sent=stored.size)
            file.stored = stored.stored
            keys += [(part.number, (WRITE, file.name)) for part in stored.parts]
            keys += [(stored.stored_in, (STORED, file.name))] if file.stored else []
        for number, key in sorted(keys):
            self.hold_also(key, number)

    def files_of(self, topic: str) -> dict[str, Shipped]:
        return self.topics.setdefault(topic, {})

    def find(self, name: str) -> Shipped | None:
        return self.topics.get(topic_of(name), {}).get(name)

    def objects(self) -> set[str]:
        """Returns the objects that segments have of their own."""
        return {file.stored.object for files in self.topics.values() for file in files.values() if file.stored}

    def hold(self, key: Key, number: int) -> None:
        """Notes that from now on this wal object, the newest, is the oldest that is needed for something."""
        self._numbers[key] = number
        self._numbers.move_to_end(key)

    def hold_also(self, key: Key, number: int) -> None:
        """Does the same, unless an older one is needed for it."""
        self._numbers.setdefault(key, number)

    def release(self, key: Key) -> None:
        self._numbers.pop(key, None)

    def oldest(self) -> tuple[Key, int]:
        """Returns something for which the oldest wal object is needed, and its number; 0 if none is."""
        return next(iter(self._numbers.items()), (("", ""), 0))


class Batch:
    """The content of the next wal object: entries with the bytes for them, or the files that have these."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.size = 0  # bytes of the body
        self.then: list[Callable[[], None]] = []  # to be called once this one is there
        self._pieces: list[bytes | tuple[int, int, int]] = []  # or a descriptor, an offset and a size

    def write(self, name: str, path: str, offset: int, size: int) -> bool:
        """Adds bytes of a file; False if it is gone. Raises OSError."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        piece = descriptor, offset, size
        self._pieces.append(_read(*piece) if size <= READ_AT_ONCE else piece)
        self.entries.append([WRITE, name, offset, size])
        self.size += size
        return True

    def replace(self, name: str, data: bytes) -> None:
        self.entries.append([FILE, name, len(data)])
        self._pieces.append(data)
        self.size += len(data)

    def encode(self, wal: Wal) -> bytes:
        """Returns the object; in a thread, and once."""
        return wal.encode([piece if isinstance(piece, bytes) else _read(*piece) for piece in self._pieces])


def _read(descriptor: int, offset: int, size: int) -> bytes:
    """Returns bytes of a file and closes it: zeros, which a replay takes for damage, where the disk has them no
    more."""
    try:
        data = os.pread(descriptor, size, offset)
    except OSError:
        data = b""
    finally:
        os.close(descriptor)
    return data.ljust(size, b"\0")


def find_here(log: StoredLog, directory: str) -> set[str]:
    """Returns the names of files there that begin with what the store has; in a thread."""
    return {name for name, file in log.files.items() if file.is_begin_of(os.path.join(directory, name))}


class Shipper:
    """Owns the log in the store, until somebody else goes on with it: then it calls `lost()`, and confirms
    nothing any more. Raises StorageError if there is no such store by its URL."""

    def __init__(self, options: Options, log: Logger, lost: Callable[[], None]) -> None:
        self.is_away = False  # somebody has waited too long, until an object is put
        self._error: StorageError | None = None  # of the last call, until one works
        self._store = LogStore(options.log_store)
        self._retention = options.log_store_retention
        self._interval = (options.log_store_interval or INTERVAL) / SECOND
        self._gathers = options.log_store_interval > 0  # also what publishers wait for
        self._limit = options.log_store_timeout / SECOND
        self._data_path = options.data_path
        self._log = log
        self._lost = lost
        self._threads = Syncer()
        self._ledger = Ledger()
        self._writer = os.urandom(8).hex()
        self._claim = Claim()
        self._number = 0  # of the newest wal object; 0 while the log is not ours
        self._puts = self._errors = 0
        self._batch = Batch()
        self._dirty: dict[Log, float] = {}  # since when (monotonic)
        self._in_hand = 0.0  # the same of what is being put
        self._unsent = 0  # bytes that were noted since the last look
        self._waiting: dict[Log, list[Report]] = {}
        self._timers: dict[Report, Any] = {}  # of all who wait, until when
        self._opened: dict[Segment, Log] = {}  # segments that were there when their journals were opened
        self._here: set[str] = set()  # names of files that begin with what another daemon has sent
        self._is_metadata_new = True
        self._uploads: dict[Segment, Log] = {}
        self._uploading = ""  # the object
        self._uploaded: dict[Segment, tuple[Log, Stored]] = {}
        self._delay = RETRY_SECONDS[0]
        self._bell, self._full, self._upload_bell = Event(), Event(), Event()
        self._stopping = Event()
        self._greenlets: list[Greenlet[..., None]] = []
        self._end_error: StorageError | None = None  # what waiters get from now on

    # Start

    def attach(self) -> None:
        """Takes over the log, and restores it if the data path is empty. Raises StorageError if the store does not
        answer, StartError if the log has gone on without this data path."""
        names = os.listdir(self._data_path or ".")
        is_empty = not any(topic_of(name) or name in METADATA or parse_queue_file(name) for name in names)
        try:
            claim = Claim.load(self._data_path)
            is_empty |= claim.restoring
            log = self._threads.run(self._take_over, claim, is_empty)
            self._log.info("STORE: %s is ours from object %d on", self._store.url, log.number + 1)
            if self._claim.restoring:
                text = "STORE: the data path is empty: %d bytes of %s are restored"
                self._log.info(text, sum(file.size for file in log.files.values()), log.last)
                self._threads.run(log_store.restore, self._store, log, self._data_path)
                self._claim.restoring = False
                self._threads.run(self._save_claim, log.number + 1)
        except StorageError as error:
            if is_empty:
                raise StartError(f"{error}, and as the data path is empty, its log may be needed") from error
            raise
        self._here = self._threads.run(find_here, log, self._data_path)
        self._ledger.load(log)
        self._number = log.number + 1
        for segment, journal in self._opened.items():  # the store was away then
            self._adopt(segment, journal)
        topics = {topic_of(name) for name in os.listdir(self._data_path or ".")}
        for topic in self._ledger.topics.keys() - topics - {""}:
            for file in [*self._ledger.files_of(topic).values()]:
                self._drop(file)
        self._bell.set()

    def _take_over(self, claim: Claim, is_empty: bool) -> StoredLog:
        """Puts the next object of the log, in a thread; returns the state before that."""
        store, data_path = self._store, self._data_path
        log = log_store.read_log(store, after=max(claim.numbers.values(), default=0) - 2 * MOST_WAL)
        last, number = log.last, log.number + 1
        if not is_empty and not claim.covers(log):
            text = f"--log-store={store.url}: {last} has gone on with this log, and what it wrote is not in "
            text += f"{data_path or '.'}: move that directory away to start from the store, or name another URL"
            raise StartError(text)
        # What others put from now on is not here, also if our put fails: their numbers stay.
        numbers = {last.writer: claim.numbers.get(last.writer, last.number)} if last else {}
        self._claim = Claim(numbers, restoring=last is not None and is_empty)
        data = self._wal(number, last.first if last else 1, []).encode([])
        self._put_next(number, data)
        if store.put_new(log_store.wal_path(number), data):
            raise StartError(f"--log-store={store.url}: it replaces objects, though it is asked to put only new ones")
        return log

    def opened(self, journal: Log) -> None:
        """Reports a journal, with the segments that it has from before."""
        for segment in journal.segments.all:
            self._opened[segment] = journal
            self._adopt(segment, journal)
        self.note(journal)

    def _adopt(self, segment: Segment, journal: Log) -> None:
        file = self._ledger.find(os.path.basename(segment.path))
        if file is not None and file.name in self._here:
            file.segment, file.journal = segment, journal

    # What journals report

    def note(self, journal: Log, size: int = 0) -> None:
        """Reports that `size` bytes were written, or files changed. Never yields."""
        if journal not in self._dirty:
            self._dirty[journal] = monotonic()
            self._bell.set()
        self._unsent += size
        if self._unsent >= MOST_BYTES:
            self._full.set()

    def note_metadata(self) -> None:
        """Reports that nsqd.dat or the rules were written. Never yields."""
        self._is_metadata_new = True
        self._bell.set()

    def call_when_stored(self, journal: Log, report: Report) -> None:
        """Calls `report` when the store has all that is written now, or with an error after the limit. Never yields."""
        if self._end_error is not None:
            report(self._end_error)
            return
        self._waiting.setdefault(journal, []).append(report)
        self._limit_wait(report)
        self.note(journal)
        if not self._gathers:
            self._full.set()

    def _limit_wait(self, report: Report) -> None:
        timer = self._timers[report] = get_hub().loop.timer(self._limit)
        timer.start(self._give_up, report)

    def _give_up(self, report: Report) -> None:
        self.is_away = True
        self._answer(report, StorageError(f"the log store has not confirmed it: {self._error or 'it takes too long'}"))

    def _answer(self, report: Report, error: Exception | None) -> None:
        """Reports the outcome, unless another was reported before."""
        if (timer := self._timers.pop(report, None)) is not None:
            timer.close()
            report(error)

    def needs(self, segment: Segment) -> bool:
        """Returns True if a segment has to stay on the disk until the store has it, which keeps it for longer."""
        file = self._ledger.find(os.path.basename(segment.path))
        return self._retention > 0 and (file is None or file.segment is not segment or file.unstored < segment.size)

    def figures(self) -> dict[str, float]:
        """Returns the figures for /metrics and /stats: for how long something was written that the store does not have,
        and so on."""
        since = min(filter(None, (self._in_hand, *self._dirty.values())), default=None)
        size = self._batch.size
        for journal in self._dirty:
            files = self._ledger.topics.get(journal.topic, {})
            for segment in journal.segments.all:
                file = files.get(os.path.basename(segment.path))
                size += segment.size if file is None else max(segment.size - file.sent, 0)
        return {
            "log_store_lag_seconds": 0.0 if since is None else monotonic() - since,
            "log_store_lag_bytes": size,
            "log_store_puts": self._puts,
            "log_store_errors": self._errors,
        }

    # Loops

    def start(self, spawn: Spawn) -> None:
        loops = {"shipLoop": self._ship_loop, "segmentLoop": self._segment_loop, "storeCleanLoop": self._clean_loop}
        self._greenlets = [spawn(name, loop) for name, loop in loops.items()]

    def hurry(self) -> None:
        """Reports that the daemon exits: nobody waits long any more for a store that is away."""
        self._limit = min(self._limit, EXIT_SECONDS)
        for report, timer in self._timers.items():
            timer.close()
            self._limit_wait(report)

    def stop(self) -> None:
        """Ships what is left, and ends all loops. Yields."""
        self._stopping.set()
        for bell in (self._bell, self._full, self._upload_bell):
            bell.set()
        ended = joinall(self._greenlets, 2 * EXIT_SECONDS)
        if seconds := self.figures()["log_store_lag_seconds"]:
            text = "STORE: what was written in the last %.3f seconds is not in %s"
            self._log.warn(text, seconds, self._store.url)
        if len(ended) == len(self._greenlets):  # else a call of the store takes too long
            self._threads.stop()

    def _ship_loop(self) -> None:
        while not self._number and not self._stopping.is_set() and self._end_error is None:
            self._try(self.attach)
        shipped, is_last = 0.0, False
        while self._number and not is_last:
            if not self._bell.wait(LOOK_SECONDS):
                self._try(self._threads.run, self._check_owner, self._number + 1)
                continue
            self._bell.clear()
            self._full.wait(max(shipped + self._interval - monotonic(), 0))
            self._full.clear()
            shipped, is_last = monotonic(), self._stopping.is_set()
            self._ship()
        self._end(StorageError("exiting"))

    def _end(self, error: StorageError) -> None:
        self._end_error = self._end_error or error
        for report in [*self._timers]:
            self._answer(report, self._end_error)

    def _try(self, call: Callable[..., object], *args: object) -> bool:
        """Calls the store; False if it failed: then some time has passed. Ends all if the log is not ours. Yields."""
        try:
            call(*args)
        except StartError as error:
            self._log.fatal("STORE: %s", error)
            self._number = 0
            self._end(StorageError(str(error)))
            self._lost()
            return False
        except StorageError as error:
            self._errors += 1
            if self._error is None:
                self._log.error("STORE: %s; it is tried again", error)
                self._delay = RETRY_SECONDS[0]
            self._error = error
            self._stopping.wait(self._delay)
            self._delay = min(2 * self._delay, RETRY_SECONDS[1])
            return False
        if self._error is not None:
            self._error = None
            self._log.info("STORE: %s answers again", self._store.url)
        return True

    # Shipping

    def _ship(self) -> None:
        """Ships all that has changed. Yields."""
        self._unsent = 0
        self._uploaded = {each: by for each, by in self._uploaded.items() if each in by[0].segments.all}
        dirty, self._dirty = self._dirty, {}
        self._in_hand = min(dirty.values(), default=0.0)
        turns = Turns(BACKGROUND_SECONDS)
        for journal, since in dirty.items():
            waiting = self._waiting.pop(journal, [])
            while (is_whole := self._add(journal)) is None and self._flush():
                pass
            if is_whole:
                self._batch.then += [partial(self._answer, report, None) for report in waiting]
            else:  # `_segment_loop` wakes us, or all has ended
                self._dirty[journal] = since
                self._waiting[journal] = waiting + self._waiting.get(journal, [])
            turns.give()
        if self._is_metadata_new:
            self._is_metadata_new = False
            for name in METADATA:
                self._add_metadata(name)
        with suppress(OSError):  # what cannot be read is repeated later
            self._repeat()
        if self._flush():
            self._in_hand = 0.0

    def _add(self, journal: Log) -> bool | None:
        """Adds what is new of a journal to the next object; None if there is more than it takes, False if a segment has
        to be in the store before the rest. Never yields."""
        batch, files, segments = self._batch, self._ledger.files_of(journal.topic), journal.segments.all
        copies = []  # that take the place of what the store has
        is_replaced = False  # there is another, which has no object yet
        for segment in segments:
            name = os.path.basename(segment.path)
            file, is_final = files.get(name), journal.is_final(segment)
            if file is not None and (file.segment is not segment or segment.size < file.sent):
                if segment in self._uploaded:
                    copies.append(segment)
                    continue
                if segment in self._opened:  # what it has may be nowhere else
                    self._upload(journal, segment)
                    return False
                if is_final:
                    self._upload(journal, segment)
                    is_replaced = True
                    continue
                self._drop(file)  # of another log of this topic
                file = None
            if segment in self._uploaded:
                file = self._add_stored(segment)
            left = segment.size - (0 if file is None else file.sent)
            if is_final and left > MOST_BYTES:
                self._upload(journal, segment)
                return False
            if left > 0:
                size = min(left, MOST_BYTES - batch.size)
                if size <= 0:
                    return None
                file = file or Shipped(name, journal, segment)
                try:
                    if not batch.write(name, segment.path, file.sent, size):
                        continue  # it was deleted by others
                except OSError as error:  # such as too many open files: again, an interval later
                    self._log.warn("STORE: %s cannot be read - %s", segment.path, error)
                    self._bell.set()
                    return False
                files[name] = file
                self._ledger.hold_also((WRITE, name), self._number + 1)
                file.sent += size
                if size < left:
                    return None
            if is_final and file is not None and file.unstored < segment.size:
                self._upload(journal, segment)
        # Last, as what finished the messages that a copy or no file has any more is in the bytes before.
        for segment in copies:
            self._drop(files[os.path.basename(segment.path)])
            self._add_stored(segment)
        if not is_replaced:
            names = {os.path.basename(segment.path) for segment in segments}
            for file in [*files.values()]:
                if file.name not in names and file.journal in (journal, None):
                    self._drop(file)
        return True

    def _add_stored(self, segment: Segment) -> Shipped:
        """Adds that a segment has an object of its own."""
        journal, stored = self._uploaded.pop(segment)
        file = self._ledger.files_of(journal.topic).setdefault(stored.name, Shipped(stored.name, journal, segment))
        file.stored = stored
        file.sent = max(file.sent, stored.size)
        self._batch.entries.append([STORED, *stored])
        self._batch.then.append(journal.reclaim)
        self._ledger.hold((STORED, stored.name), self._number + 1)
        if file.sent == stored.size:
            self._ledger.release((WRITE, stored.name))
        return file

    def _drop(self, file: Shipped) -> None:
        """Adds that a file is deleted."""
        self._batch.entries.append([DELETE, file.name])
        del self._ledger.files_of(topic_of(file.name))[file.name]
        if file.segment is not None:
            self._opened.pop(file.segment, None)
        for kind in (WRITE, STORED):
            self._ledger.release((kind, file.name))

    def _add_metadata(self, name: str) -> None:
        """Adds nsqd.dat or the rules."""
        path, files = os.path.join(self._data_path, name), self._ledger.files_of("")
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            if name in files:
                self._drop(files[name])
        except OSError as error:
            self._log.warn("STORE: %s cannot be read - %s", path, error)
            self._is_metadata_new = True
        else:
            files[name] = Shipped(name, sent=len(data))
            self._batch.replace(name, data)
            self._ledger.hold((WRITE, name), self._number + 1)

    def _repeat(self) -> None:
        """Repeats some of what only the oldest wal object has, if there are many, so that it can go. Only with what is
        new: an idle daemon puts nothing. Yields."""
        turns = Turns(BACKGROUND_SECONDS)
        batch, most = self._batch, self._batch.size + REPEATED_BYTES
        while batch.entries and batch.size < most:
            turns.give()
            key, number = self._ledger.oldest()
            if not number or self._number - number < MOST_WAL:
                return
            (kind, name), file = key, self._ledger.find(key[1])
            assert file is not None
            most -= 100  # for the entry
            if name in METADATA:
                self._add_metadata(name)
                if self._ledger.oldest()[0] == key:
                    return  # it cannot be read
                continue
            if kind == STORED and file.stored is not None:
                batch.entries.append([STORED, *file.stored])
            elif file.journal is None or file.segment not in file.journal.segments.all:
                return  # it is about to be replaced, and what is on the disk may be the copy
            elif file.sent - file.unstored > REPEATED_BYTES:
                self._upload(file.journal, file.segment)
                return
            elif not batch.write(name, file.segment.path, file.unstored, file.sent - file.unstored):
                return  # it is about to be deleted
            self._ledger.hold(key, self._number + 1)

    # Objects

    def _wal(self, number: int, first: int, entries: list[Entry]) -> Wal:
        return Wal(number, first, self._writer, socket.gethostname(), time_ns(), entries)

    def _flush(self) -> bool:
        """Puts what was added, and reports; False if nothing can be put any more. Yields."""
        batch = self._batch
        if self._end_error is not None:
            return False
        if batch.entries:
            number = self._number + 1
            data = self._threads.run(batch.encode, self._wal(number, self._ledger.oldest()[1] or number, batch.entries))
            # The same bytes each time: a put that failed may have worked.
            while not self._try(self._threads.run, self._put_next, number, data):
                if self._end_error is not None or (self._stopping.is_set() and self._error is not None):
                    return False
            self._puts += 1
            self.is_away = False
            self._number = number
        self._batch = Batch()
        for call in batch.then:
            call()
        return True

    def _put_next(self, number: int, data: bytes) -> None:
        """Puts a wal object, in a thread; raises StartError if the log is not ours any more."""
        # Not for several at once: a copy of the data path, put back later, would claim what was written after it.
        if number > self._claim.numbers.get(self._writer, 0):
            self._save_claim(number)
        if not self._store.put_new(log_store.wal_path(number), data) and not self._check_owner(number):
            raise StorageError(f"{self._store.url}: {log_store.wal_path(number)} was refused, and is not there")

    def _check_owner(self, number: int) -> bool:
        """Returns True if this wal object is there; raises StartError if somebody else has put it. In a thread."""
        if (size := self._store.size(log_store.wal_path(number))) < 0:
            return False
        owner = log_store.read_wal(self._store, number, size)
        if owner.writer != self._writer:
            text = f"--log-store={self._store.url}: {owner} has taken over this log; what it does not have is in "
            raise StartError(f"{text}{self._data_path or '.'} alone")
        return True

    def _save_claim(self, number: int) -> None:
        self._claim.numbers[self._writer] = number
        self._claim.save(self._data_path)

    def _upload(self, journal: Log, segment: Segment) -> None:
        """Has a segment put as an object of its own."""
        self._uploads[segment] = journal
        self._upload_bell.set()

    def _segment_loop(self) -> None:
        while not self._stopping.is_set():
            self._upload_bell.wait()
            self._upload_bell.clear()
            while self._uploads and not self._stopping.is_set() and self._end_error is None:
                segment, journal = next(iter(self._uploads.items()))
                if self._put_segment(segment, journal):
                    del self._uploads[segment]
                    self.note(journal)
                    self._bell.set()  # also if it was noted before

    def _put_segment(self, segment: Segment, journal: Log) -> bool:
        """Puts one, unless it is gone; False if that is to be tried again. Yields."""
        try:
            if segment in journal.segments.all:
                stored = Stored.new(segment.path, segment.size, segment.first, segment.end)
                self._uploading = stored.object
                if not self._try(self._threads.run, self._store.put_file, stored.object, Path(segment.path)):
                    return False
                if segment in journal.segments.all:  # else a copy has taken its name, perhaps before it was read
                    self._uploaded[segment] = journal, stored
        except OSError:
            pass  # it is gone, or who needs it reports that it cannot be read
        return True

    # Deletions

    def _clean_loop(self) -> None:
        """Deletes the objects that nothing needs. They were listed while the log was ours, if a put has worked since:
        nobody else has put any of them."""
        garbage: set[str] = set()
        number = 0
        while not self._stopping.wait(max(CLEAN_SECONDS, self._retention / SECOND / 100)):
            if garbage and number < self._number:
                self._try(self._threads.run, self._store.delete, sorted(garbage))
            if number := self._number:
                found = self._threads.run(self._find_garbage, self._ledger.oldest()[1])
                ours = {self._uploading, *(stored.object for _, stored in self._uploaded.values())}
                garbage = found.difference(self._ledger.objects(), ours)

    def _find_garbage(self, first: int) -> set[str]:
        """Returns the objects that no state needs, of those within the retention; in a thread."""
        store, kept, horizon = self._store, set[str](), datetime.max.replace(tzinfo=UTC)
        try:
            if self._retention:
                old = log_store.read_log(store, time_ns() - self._retention)
                if old.last is None:
                    return set()
                kept, first, horizon = old.objects(), old.last.first, old.listing[old.number].modified
            garbage = {each.path for each in store.list(log_store.WAL) if each.path < log_store.wal_path(first)}
            segments = {each.path for each in store.list(log_store.SEGMENTS) if each.modified < horizon}
            return garbage | (segments - kept)
        except StorageError:  # also if there is no state that old
            return set()
