"""The files of a spool: in a directory that driver and executors share, or in a bucket with the protocol of S3.

Both have a way to make a file under a name that nobody else has taken, which the chains of a spool need: a hard link,
or a PUT with `If-None-Match: *`. Errors are OSErrors, such as FileNotFoundError, and SpoolErrors.
"""

import errno
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from gnsqd.shared.errors import reason_of
from pyspark_nsq.errors import SpoolError

Pieces = Iterable[bytes | memoryview]

_TEMPORARY = ".tmp-"
_MARK = ".directory"


def place(path: str) -> "_Directories | _Bucket":
    """Where a path of a spool is, which begins with its location; SpoolError if such a place is not known."""
    return _bucket("/".join(path.split("/")[:3])) if "://" in path else _DIRECTORIES


def names_in(directory: str) -> list[str]:
    """What is in a directory, in any order; nothing if there is no such directory."""
    try:
        return place(directory).names(directory)
    except FileNotFoundError:
        return []


# The steps between a message and its safety. Tests replace them to fail or die at each.


def write_temporary(path: str, pieces: Pieces) -> None:
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


@contextmanager
def _temporary(directory: str) -> Iterator[str]:
    """A name in the directory; a file that still has it in the end is deleted."""
    path = os.path.join(directory, _TEMPORARY + uuid.uuid4().hex)
    try:
        yield path
    finally:
        with suppress(OSError):
            os.unlink(path)


class _Directories:
    """A file system that knows hard links."""

    def check(self, location: str) -> None:
        """Make the directory of a spool; SpoolError or OSError if files there can't be made as `create` has to."""
        os.makedirs(location, exist_ok=True)
        with _temporary(location) as one, _temporary(location) as two, _temporary(location) as name:
            write_temporary(one, [b"1"])
            write_temporary(two, [b"2"])
            try:
                os.link(one, name)
                is_exclusive = not link(two, name)
            except OSError as error:
                reason = f"without hard links: {reason_of(error)}"
                raise SpoolError(f"the spool at {location} is on a file system {reason}") from None
            if not is_exclusive:
                raise SpoolError(f"the spool at {location} is on a file system where links replace files")

    def make_directory(self, path: str) -> None:
        """Make a directory, and the one around it, which survive a power cut."""
        os.makedirs(path, exist_ok=True)
        parent = os.path.dirname(path)
        self.settle(parent)
        self.settle(os.path.dirname(parent))

    def settle(self, directory: str) -> None:
        """Names in the directory survive a power cut when this returns."""
        sync_directory(directory)

    def create(self, path: str, pieces: Pieces) -> bool:
        """Make a whole file, durably and at once, unless there is one; whether there was none."""
        directory = os.path.dirname(path)
        with _temporary(directory) as temporary:
            write_temporary(temporary, pieces)
            won = link(temporary, path)
        self.settle(directory)
        return won

    def replace(self, path: str, pieces: Pieces) -> None:
        """Make or replace a whole file, durably and at once."""
        directory = os.path.dirname(path)
        with _temporary(directory) as temporary:
            write_temporary(temporary, pieces)
            os.replace(temporary, path)
        self.settle(directory)

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return os.path.exists(path)

    def begin(self, path: str, count: int) -> tuple[bytes, int]:
        """The first bytes of a file, at most `count`, and its size."""
        with open(path, "rb") as file:
            return file.read(count), os.fstat(file.fileno()).st_size

    def read(self, path: str, start: int = 0, count: int | None = None) -> bytes:
        """The bytes of a file from `start` on, at most `count`."""
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(-1 if count is None else count)

    def names(self, directory: str) -> list[str]:
        """What is in a directory, in any order."""
        return os.listdir(directory)

    def size(self, path: str) -> int:
        """Bytes of a file, or of all below a directory."""
        if not os.path.isdir(path):
            return os.path.getsize(path)
        return sum(os.path.getsize(os.path.join(root, name)) for root, _, names in os.walk(path) for name in names)

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with all below it."""
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


_DIRECTORIES = _Directories()


@lru_cache
def _bucket(root: str) -> "_Bucket":
    return _Bucket(root)


class _Bucket:
    """A bucket, `s3://name`, with the methods of `_Directories`. Its address and keys come from the environment, as in
    other programs that use S3.

    A directory is there while it has a mark, which is deleted first. So nobody makes a file in a directory that is
    deleted, as in a file system: who sees the mark after making a file made it before the deletion."""

    def __init__(self, root: str) -> None:
        scheme, _, name = root.partition("://")
        if scheme not in ("s3", "s3a") or not name:
            raise SpoolError(f"the spool at {root}: expected a directory, or s3://BUCKET/NAME")
        try:
            import obstore
            from obstore.exceptions import AlreadyExistsError, BaseError
            from obstore.store import S3Store
        except ImportError:
            raise SpoolError(f"a spool at {root} needs obstore: pip install 'gnsqd[object-store]'") from None
        self._obstore = obstore
        self._exists, self._error = AlreadyExistsError, BaseError
        self._store = S3Store(name)
        self._skipped = len(root) + 1

    @contextmanager
    def _request(self, path: str) -> Iterator[str]:
        """The key of a path."""
        try:
            yield path[self._skipped :]
        except self._exists:
            raise FileExistsError(path) from None
        except (self._error, FileNotFoundError) as error:
            text = " ".join(str(error).partition("\n\nDebug source")[0].split())
            if isinstance(error, FileNotFoundError):
                raise FileNotFoundError(text) from None
            raise SpoolError(f"cannot access the spool at {path}: {text}") from None

    def check(self, location: str) -> None:
        path = f"{location}/{_TEMPORARY}{uuid.uuid4().hex}"
        try:
            if not self._put_new(path, b"1") or self._put_new(path, b"2"):
                raise SpoolError(f"the spool at {location} is in a store that ignores If-None-Match")
        finally:
            with suppress(OSError, SpoolError):
                self.delete(path)

    def make_directory(self, path: str) -> None:
        for directory in (os.path.dirname(path), path):
            self._put_new(f"{directory}/{_MARK}", b"\n")

    def settle(self, directory: str) -> None:
        """It is settled."""

    def create(self, path: str, pieces: Pieces) -> bool:
        if not self._put_new(path, b"".join(pieces)):
            return False
        directory = os.path.dirname(path)
        if not self.exists(f"{directory}/{_MARK}"):
            # The name was free because the directory is being deleted, or has been.
            self.delete(path)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory)
        return True

    def _put_new(self, path: str, data: bytes) -> bool:
        while True:
            try:
                with self._request(path) as key:
                    self._obstore.put(self._store, key, data, mode="create", use_multipart=False)
                return True
            except FileExistsError:
                # A repeated request may fail because its own first try has made it. If the
                # request failed because of another one, which failed as well, it is sent again.
                with suppress(FileNotFoundError):
                    return self.read(path) == data

    def replace(self, path: str, pieces: Pieces) -> None:
        with self._request(path) as key:
            self._obstore.put(self._store, key, b"".join(pieces), use_multipart=False)

    def exists(self, path: str) -> bool:
        try:
            with self._request(path) as key:
                self._obstore.head(self._store, key)
        except FileNotFoundError:
            return False
        return True

    def begin(self, path: str, count: int) -> tuple[bytes, int]:
        with self._request(path) as key:
            answer = self._obstore.get(self._store, key, options={"range": (0, count)})
            return bytes(answer.bytes()), answer.meta["size"]

    def read(self, path: str, start: int = 0, count: int | None = None) -> bytes:
        with self._request(path) as key:
            if count is None:
                return bytes(self._obstore.get(self._store, key, options={"range": {"offset": start}}).bytes())
            return bytes(self._obstore.get(self._store, key, options={"range": (start, start + count)}).bytes())

    def names(self, directory: str) -> list[str]:
        with self._request(directory) as key:
            found = self._obstore.list_with_delimiter(self._store, key)
        paths = [*found["common_prefixes"], *(one["path"] for one in found["objects"])]
        if not paths:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory)
        return [name for path in paths if (name := path.rpartition("/")[2]) != _MARK]

    def _all(self, path: str) -> list[Any]:
        """Of a file, or all below a directory."""
        with self._request(path) as key:
            return [one for some in self._obstore.list(self._store, key) for one in some] or [
                self._obstore.head(self._store, key)
            ]

    def size(self, path: str) -> int:
        return sum(one["size"] for one in self._all(path))

    def delete(self, path: str) -> None:
        keys = [one["path"] for one in self._all(path)]
        marks = [key for key in keys if key.endswith(_MARK)]
        with self._request(path):
            self._obstore.delete(self._store, marks)
            self._obstore.delete(self._store, [key for key in keys if key not in marks])
