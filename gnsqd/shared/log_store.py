"""A log in an object store: the journals, nsqd.dat and the rules of one gnsqd, so that they outlive its machine.

At every moment the objects below one URL hold a state that a loss of power could have left in the data directory, so to
restore is to copy bytes, and a start replays them as always.

    wal/N            what was written since N - 1, of all files; N has no holes
    segments/NAME.X  the begin of a segment, nearly always all of it: X has the numbers of messages that it may have

Whoever puts N + 1 owns the log: that object is put only if there is none, and names who wrote it. Each also has the
number of the oldest that is needed (`first`); what older ones hold is in segments of their own, deleted, or repeated in
newer ones.

Nothing here needs gevent, as gnsqadmin and Spark read the log too; every call blocks.
"""

import json
import os
import re
import struct
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlsplit

from gnsqd.shared.disk_format import parse_segment_name, parse_temporary_name
from gnsqd.shared.errors import StorageError, failing_as_go, reason_of

CLAIM_NAME = "gnsqd.store.dat"
WAL, SEGMENTS = "wal/", "segments/"
METADATA = ("nsqd.dat", "gnsqd.rules.dat")
SCHEMES = ("s3", "gs", "az", "file")
THREADS = 8  # that read at once
TRIES = 5  # to read a log that goes on meanwhile
CONNECT_SECONDS, REQUEST_SECONDS, RETRY_SECONDS = 5, 30, 20
PART_SIZE = 8 << 20  # bytes of a large object that are sent at once; S3 takes 10,000 of these
_MAGIC = b"gnsqd.wal.1\n"
_HEAD = struct.Struct(">12sIII")  # the magic; the size and CRC of the JSON, and the CRC of the bytes that follow it
_HEADER_BYTES = 64 * 1024  # that are read at once of an object
_SECTOR = 512  # bytes
_TAIL = 4096  # bytes at the end of a segment's object by which it is recognized

T = TypeVar("T")


class ObjectMissing(StorageError):
    """An object that a log needs is not there: it is lost, or the log has gone on since it was read."""


class Object(NamedTuple):
    """An object of the listing, below the URL; `modified` by the clock of the store."""

    path: str
    size: int
    modified: datetime


class LogStore:
    """The objects below one URL. Every method raises StorageError if the store does not do it."""

    def __init__(self, url: str) -> None:
        self.url = url
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES or "@" in parts.netloc or not (parts.netloc or parts.path.strip("/")):
            self._refuse(f"expected {', '.join(SCHEMES)}://..., such as s3://BUCKET/PREFIX")
        config: dict[str, Any] = dict(parse_qsl(parts.query))
        if others := config.keys() - {"endpoint", "region"}:
            self._refuse(
                f"{min(others)} is not endpoint or region; credentials and all else are set by the environment"
            )
        try:
            import obstore.store  # here, as few need it, and it takes 50 ms
        except ImportError:
            self._refuse("it needs the library obstore: pip install 'gnsqd[store]'")
        self._library: Any = obstore
        limits = {"connect_timeout": timedelta(seconds=CONNECT_SECONDS), "timeout": timedelta(seconds=REQUEST_SECONDS)}
        more: dict[str, Any] = {
            "config": config,
            "client_options": {**limits, "allow_http": True},  # for who names an endpoint of that kind
            "retry_config": {"max_retries": 3, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
        }
        if parts.scheme == "file":
            more = {"mkdir": True}
        try:
            self._store = self._library.store.from_url(url.partition("?")[0], **more)
        except Exception as error:
            self._refuse(_line(error))

    def _refuse(self, text: str) -> None:
        raise StorageError(f"{self.url}: {text}")

    @contextmanager
    def _calling(self, function: str, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:
            raise StorageError(f"{self.url}: {function} {path}: {_line(error)}") from error

    def put_new(self, path: str, data: bytes) -> bool:
        """Puts an object; returns False if there is one of this name, which may be a retry's own."""
        with self._calling("put", path):
            try:
                self._library.put(self._store, path, data, mode="create", use_multipart=False)
            except self._library.exceptions.AlreadyExistsError:
                return False
        return True

    def put_file(self, path: str, file: Path) -> None:
        with self._calling("put", path):
            self._library.put(self._store, path, file, chunk_size=PART_SIZE, max_concurrency=2)

    def size(self, path: str) -> int:
        """Returns the size of an object in bytes, -1 if there is none."""
        with suppress(FileNotFoundError), self._calling("head", path):
            return int(self._library.head(self._store, path)["size"])
        return -1

    def read(self, path: str, begin: int, end: int) -> bytes:
        """Returns bytes of an object."""
        if begin >= end:
            return b""
        with suppress(FileNotFoundError), self._calling("get_range", path):
            return bytes(self._library.get_range(self._store, path, start=begin, end=end))
        raise ObjectMissing(f"{self.url}: there is no {path}")

    def list(self, prefix: str, after: str = "") -> Iterator[Object]:
        """Yields the objects whose names begin with `prefix`, in any order."""
        with suppress(FileNotFoundError), self._calling("list", prefix):
            for piece in self._library.list(self._store, prefix, offset=after or None):
                for each in piece:
                    yield Object(each["path"], each["size"], each["last_modified"])

    def delete(self, paths: Sequence[str]) -> None:
        """Deletes objects, whether or not they are there."""
        if not paths:
            return
        try:
            with self._calling("delete", paths[0]):
                self._library.delete(self._store, list(paths))
        except FileNotFoundError:  # of a store that is asked for one after the other
            for path in paths:
                with suppress(FileNotFoundError), self._calling("delete", path):
                    self._library.delete(self._store, path)


def _line(error: Exception) -> str:
    """Returns the part of an error of the library that is for people: a debugger's view follows it."""
    return str(error).partition("\n")[0].strip() or type(error).__name__


def wal_path(number: int) -> str:
    return f"{WAL}{number:016d}"


# An entry of a wal object is one of these lists:
WRITE = "write"  # name, offset, size, CRC: these bytes of the body are there in the file; they may have been before
FILE = "file"  # name, size, CRC: these bytes of the body are all that the file has
DELETE = "delete"  # name
STORED = "stored"  # a `Stored`: the object has the begin of the file

Entry = list[Any]


class Stored(NamedTuple):
    """A segment that has an object of its own: its file name, its size in bytes, and the messages it may have."""

    object: str
    name: str
    size: int
    first: int
    end: int
    crc: int = 0  # of its last _TAIL bytes

    @classmethod
    def new(cls, path: str, size: int, first: int, end: int) -> "Stored":
        """Returns one for a file, with an object that nobody has yet; raises OSError."""
        name = os.path.basename(path)
        with open(path, "rb") as file:
            file.seek(max(size - _TAIL, 0))
            crc = zlib.crc32(file.read(min(size, _TAIL)))
        return cls(f"{SEGMENTS}{name}.{first}-{end}.{os.urandom(4).hex()}", name, size, first, end, crc)

    @classmethod
    def parse(cls, object: Object) -> "Stored | None":
        """Returns one for an object of the listing, None if its name is another."""
        match = re.fullmatch(rf"{SEGMENTS}(.+\.dat)\.(\d+)-(\d+)\.[0-9a-f]{{8}}", object.path)
        return match and cls(object.path, match[1], object.size, int(match[2]), int(match[3]))


class Part(NamedTuple):
    """Bytes of a file, at `at` in wal object `number`."""

    offset: int
    size: int
    crc: int
    number: int
    at: int


@dataclass
class StoredFile:
    """A file as the store has it: `stored` has its begin, `parts` the rest, in the order in which to write them."""

    name: str
    size: int = 0
    stored: Stored | None = None
    stored_in: int = 0  # the number of the wal object with that entry
    parts: list[Part] = field(default_factory=list)

    def _add(self, part: Part) -> None:
        end = part.offset + part.size
        if part.offset < self.size:  # it repeats what older objects have
            self.parts = [each for each in self.parts if each.offset < part.offset or each.offset + each.size > end]
        self.parts.append(part)
        self.size = max(self.size, end)

    def is_begin_of(self, path: str) -> bool:
        """Returns True if the file there begins with what the store has: another may have taken its name, such as a
        copy, or the first of a topic that was deleted and made again."""
        pieces = [(part.offset, part.size, part.crc) for part in self.parts]
        if self.stored is not None:
            pieces.append((max(self.stored.size - _TAIL, 0), min(self.stored.size, _TAIL), self.stored.crc))
        try:
            with open(path, "rb") as file:
                return all(file.seek(at) == at and zlib.crc32(file.read(size)) == crc for at, size, crc in pieces)
        except OSError:
            return False


@dataclass
class Wal:
    """The content of a wal object, without the bytes. `first` is the oldest that is needed once this one is there."""

    number: int
    first: int
    writer: str
    host: str
    time: int  # wall clock, ns
    entries: list[Entry]
    body_at: int = 0  # in bytes
    body_crc: int = 0

    def encode(self, body: Sequence[bytes]) -> bytes:
        """Returns the object."""
        crc = 0
        for entry, piece in zip((entry for entry in self.entries if entry[0] in (WRITE, FILE)), body, strict=True):
            entry.append(zlib.crc32(piece))
            crc = zlib.crc32(piece, crc)
        fields = {name: getattr(self, name) for name in ("number", "first", "writer", "host", "time", "entries")}
        text = json.dumps(fields, separators=(",", ":")).encode()
        return b"".join([_HEAD.pack(_MAGIC, len(text), zlib.crc32(text), crc), text, *body])

    def __str__(self) -> str:
        return f"{self.host} (object {self.number}, {moment(self.time)})"


def read_wal(store: LogStore, number: int, size: int) -> Wal:
    """Returns the content of wal object `number`, which has that size; raises StorageError."""
    path = wal_path(number)
    data = store.read(path, 0, min(size, _HEADER_BYTES))
    try:
        magic, length, crc, body_crc = _HEAD.unpack(data[: _HEAD.size])
        end = _HEAD.size + length
        if magic == _MAGIC and len(data) < end <= size:
            data += store.read(path, len(data), end)
        text = data[_HEAD.size : end]
        if magic != _MAGIC or zlib.crc32(text) != crc:
            raise ValueError("it is damaged")
        return Wal(**json.loads(text), body_at=end, body_crc=body_crc)
    except (ValueError, TypeError, struct.error) as error:
        raise StorageError(f"{store.url}: {path} is not an object of a log: {error}") from error


@dataclass
class StoredLog:
    """The state of a log behind its wal object `last`, None if there is none."""

    last: Wal | None = None
    files: dict[str, StoredFile] = field(default_factory=dict)
    wals: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # size, begin and CRC of the body, by number
    listing: dict[int, Object] = field(default_factory=dict)  # all wal objects that were listed, needed or not

    @property
    def number(self) -> int:
        return self.last.number if self.last else 0

    def apply(self, wal: Wal) -> None:
        """Goes on to the next object."""
        at, number = wal.body_at, wal.number
        for kind, *rest in wal.entries:
            if kind == WRITE:
                name, offset, size, crc = rest
                self._file(name)._add(Part(offset, size, crc, number, at))
                at += size
            elif kind == FILE:
                name, size, crc = rest
                self.files[name] = StoredFile(name, size, parts=[Part(0, size, crc, number, at)])
                at += size
            elif kind == DELETE:
                self.files.pop(rest[0], None)
            elif kind == STORED:
                stored = Stored(*rest)
                file = self._file(stored.name)
                file.stored, file.stored_in = stored, number
                file.parts = [part for part in file.parts if part.offset + part.size > stored.size]
                file.size = max(file.size, stored.size)
        self.last = wal

    def objects(self) -> set[str]:
        """Returns the objects that segments have of their own."""
        return {file.stored.object for file in self.files.values() if file.stored}

    def _file(self, name: str) -> StoredFile:
        return self.files.setdefault(name, StoredFile(name))


def read_log(store: LogStore, until: int | None = None, after: int = 0) -> StoredLog:
    """Returns the state of the log, the newest or, of those not after `until` (wall clock, ns), the last; raises
    StorageError also if an object that is needed is missing. What is listed may begin `after` a number: with a
    retention there may be a million older ones."""
    begin = wal_path(after) if after > 0 else ""
    listing = {int(each.path.rpartition("/")[2]): each for each in store.list(WAL, begin)}
    if after > 0 and not listing:
        return read_log(store, until)
    sizes = {number: each.size for number, each in listing.items()}
    last = max(sizes, default=0)
    while (size := store.size(wal_path(last + 1))) >= 0:  # a listing may be older than the log
        last += 1
        sizes[last] = size
    log = StoredLog(listing=listing)
    if not last:
        return log
    newest = read_wal(store, last, sizes[last])
    if newest.first <= after:
        return read_log(store, until, newest.first - 1)
    if until is not None:
        newest = _last_until(store, sizes, newest, until)
    numbers = range(newest.first, newest.number + 1)
    if missing := [number for number in numbers if number not in sizes]:
        raise ObjectMissing(f"{store.url}: {wal_path(missing[0])} is missing, which the log needs")
    with ThreadPoolExecutor(THREADS) as pool:
        for wal in pool.map(lambda number: read_wal(store, number, sizes[number]), numbers):
            log.apply(wal)
            log.wals[wal.number] = sizes[wal.number], wal.body_at, wal.body_crc
    return log


def dead_segments(store: LogStore, log: StoredLog) -> list[Stored]:
    """Returns the segments that the disk does not have any more, as far as the store keeps them, by name."""
    found, known = [Stored.parse(each) for each in sorted(store.list(SEGMENTS))], log.objects()
    return [each for each in found if each is not None and each.object not in known]


def with_log(store: LogStore, use: Callable[[StoredLog], T], until: int | None = None) -> T:
    """Returns what `use` makes of the state that `read_log` returns. While somebody goes on with the log, objects may
    go before they are read: then it gets a newer state. Raises StorageError."""
    for _ in range(TRIES - 1):
        with suppress(ObjectMissing):
            return use(read_log(store, until))
    return use(read_log(store, until))


def _last_until(store: LogStore, sizes: dict[int, int], newest: Wal, until: int) -> Wal:
    """Returns the last wal object that is not newer than `until`, if the store has all that it needs."""
    oldest = newest.number
    while oldest - 1 in sizes:
        oldest -= 1
    wal_at = cache(lambda number: read_wal(store, number, sizes[number]))
    found = bisect_right(range(oldest, newest.number + 1), until, key=lambda number: wal_at(number).time) + oldest - 1
    if found < oldest or wal_at(found).first < oldest:
        first = next(number for number in range(oldest, newest.number + 1) if wal_at(number).first >= oldest)
        at = moment(wal_at(first).time)
        raise StorageError(f"{store.url}: it has no state of {moment(until)}: the first is of {at}")
    return wal_at(found)


def moment(time: int) -> str:
    """Returns a wall clock time (ns) for people."""
    return datetime.fromtimestamp(time / 1e9).astimezone().isoformat(timespec="seconds")


def restore(
    store: LogStore,
    log: StoredLog,
    directory: str,
    names: Iterable[str] | None = None,
    advance: Callable[[int], None] = lambda size: None,
) -> None:
    """Writes the files of a log, or those with these `names`, to a directory, durably; `advance` gets the bytes
    written, on several threads. If it is interrupted, the next call goes on, even if the log has gone on: files get
    their names when all are there. Raises StorageError; ObjectMissing as `with_log` expects it."""
    files = [log.files[name] for name in (log.files if names is None else names)]
    if names is None:
        _remove_others(directory, {_unfinished(directory, file) for file in files})
    parts: dict[int, list[tuple[str, Part]]] = {}
    for file in files:
        for part in file.parts:
            parts.setdefault(part.number, []).append((_unfinished(directory, file), part))
    numbers = sorted(parts)
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(partial(_restore_segment, store, directory, advance), files):
            pass
        # In the order of the log, as a later object may repeat what earlier ones have. Some are read ahead, not all.
        for ahead in (numbers[at : at + 2 * THREADS] for at in range(0, len(numbers), 2 * THREADS)):
            for number, body in zip(ahead, pool.map(partial(_read_body, store, log), ahead), strict=True):
                for path, part in parts[number]:
                    begin = part.at - log.wals[number][1]
                    with failing_as_go("write", path), open(path, "r+b") as target:
                        target.seek(part.offset)
                        target.write(body[begin : begin + part.size])
                    advance(part.size)
    for file in files:
        _sync(_unfinished(directory, file))
    for file in sorted(files, key=lambda file: file.name in METADATA):  # it lists the others
        path = _unfinished(directory, file)
        with failing_as_go("rename", path):
            os.rename(path, os.path.join(directory, file.name))
    _sync(directory or ".")


def _unfinished(directory: str, file: StoredFile) -> str:
    """Returns the path of a file until all are there; a start removes it. The number is that of the object with its
    begin, as another file may have had the name when a restore was interrupted: what is there is of this object."""
    number = 0 if file.stored is None else zlib.crc32(file.stored.object.encode())
    return os.path.join(directory, f"{file.name}.{number}.tmp")


def _remove_others(directory: str, unfinished: set[str]) -> None:
    """Removes the files of another state that an interrupted restore has left: a start would read them."""
    with failing_as_go("list", directory):
        names = os.listdir(directory)
    for name in names:
        path = os.path.join(directory, name)
        is_of_log = name in METADATA or parse_segment_name(name) or parse_temporary_name(name)
        if is_of_log and path not in unfinished:
            with failing_as_go("remove", path):
                os.unlink(path)


def _restore_segment(store: LogStore, directory: str, advance: Callable[[int], None], file: StoredFile) -> None:
    """Makes the file with what its own object has, and goes on where an interrupted restore has left it."""
    path, stored = _unfinished(directory, file), file.stored
    size = 0 if stored is None else stored.size
    with failing_as_go("write", path), _open(path) as target:
        begin = min(target.seek(0, os.SEEK_END), size)
        target.truncate(begin)
        target.seek(begin)
        advance(begin)
        while stored is not None and begin < size:
            data = store.read(stored.object, begin, min(begin + PART_SIZE, size))
            if not data:
                raise StorageError(f"{store.url}: {stored.object} is damaged: it has {begin} of {size} bytes")
            target.write(data)
            begin += len(data)
            advance(len(data))


def _read_body(store: LogStore, log: StoredLog, number: int) -> bytes:
    size, begin, crc = log.wals[number]
    body = store.read(wal_path(number), begin, size)
    if zlib.crc32(body) != crc:
        raise StorageError(f"{store.url}: {wal_path(number)} is damaged")
    return body


@dataclass
class Claim:
    """The part of a log in a store that a data directory has: the file gnsqd.store.dat in it. That is all of it if the
    last object is not after the number of its writer: there are two of these while a daemon takes over."""

    numbers: dict[str, int] = field(default_factory=dict)
    restoring: bool = False  # what the log has is not yet here

    @staticmethod
    def load(directory: str) -> "Claim":
        """Returns the claim of a directory, an empty one if there is none; raises StorageError."""
        path = os.path.join(directory, CLAIM_NAME)
        try:
            with open(path, "rb") as file:
                data = file.read()
            return Claim(**json.loads(data or "{}"))  # empty if a kill came before its first bytes
        except FileNotFoundError:
            return Claim()
        except (OSError, ValueError, TypeError) as error:
            raise StorageError(f"{path} does not contain the claim of a log in a store: {reason_of(error)}") from error

    def save(self, directory: str) -> None:
        """Writes the file, durably: one sector, so that a kill leaves the old or the new. Raises StorageError."""
        path = os.path.join(directory, CLAIM_NAME)
        is_new = not os.path.exists(path)
        with failing_as_go("write", path), _open(path) as file:
            file.write(json.dumps(self.__dict__).encode().ljust(_SECTOR))
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            _sync(directory or ".")

    def covers(self, log: StoredLog) -> bool:
        """Returns True if this directory has all that the log has: nobody else has gone on with it."""
        return log.last is None or log.number <= self.numbers.get(log.last.writer, 0)


def _open(path: str) -> BinaryIO:
    """Opens a file for writing, and makes it if there is none; raises OSError."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")


def _sync(path: str) -> None:
    """Makes a file, or the names in a directory, survive a loss of power; raises StorageError."""
    with failing_as_go("sync", path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
