"""File operations that raise StorageError with the text that Go prints."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gnsqd.shared.errors import StorageError, failing_as_go, path_error

# Errors of file systems that cannot sync a directory. Not EROFS: a failing disk is remounted read-only.
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY)
_F_FULLFSYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)  # of macOS
_NO_FULLFSYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY)  # some file systems
MAX_PARTS = 1024  # that Linux and macOS write at once (IOV_MAX)


def list_names(directory: str) -> list[str]:
    """Returns the names of all files in a directory, the working directory when empty; raises StorageError."""
    with failing_as_go("open", directory or "."):
        return os.listdir(directory or ".")


@contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    """Opens a file, with mode 0600 if it is new."""
    with failing_as_go("open", path):
        descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_file(path: str, data: bytes, sync: bool) -> None:
    """Creates a file of mode 0600 with this content, fsynced if `sync`; if that fails, there is no such file."""
    with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        try:
            with failing_as_go("write", path):
                _write_all(descriptor, data)
            if sync:
                with failing_as_go("sync", path):
                    _sync(descriptor, "fsync")
        except StorageError:
            with suppress(OSError):
                os.unlink(path)
            raise


def _sync(descriptor: int, call: str) -> None:
    """Makes written data durable, by fsync or fdatasync; raises OSError. macOS has no fdatasync, and its fsync leaves
    all in the memory of the disk: F_FULLFSYNC is what Go uses there."""
    if _F_FULLFSYNC is not None:
        try:
            fcntl.fcntl(descriptor, _F_FULLFSYNC)
            return
        except OSError as error:
            if error.errno not in _NO_FULLFSYNC:
                raise
    getattr(os, call, os.fsync)(descriptor)


def append_file(path: str, data: bytes) -> None:
    """Appends all of it, creating a file of mode 0600, or nothing; raises StorageError."""
    with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as descriptor:
        size = os.fstat(descriptor).st_size
        try:
            with failing_as_go("write", path):
                _write_all(descriptor, data)
        except StorageError:
            with suppress(OSError):
                os.ftruncate(descriptor, size)
            raise


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def write_at(descriptor: int, parts: list[bytes], position: int) -> int:
    """Writes all of `parts`, one behind the other, at `position`; returns the number of bytes. Raises OSError."""
    if len(parts) > MAX_PARTS:
        parts = [b"".join(parts)]
    size = sum(map(len, parts))
    written = os.pwritev(descriptor, parts, position)
    if written < size:
        rest = memoryview(b"".join(parts))
        while written < size:
            written += os.pwrite(descriptor, rest[written:], position + written)
    return size


def temporary_path(path: str) -> str:
    """Returns a name for the file that is to replace `path`; `clean_up` removes it after a kill."""
    return f"{path}.{int.from_bytes(os.urandom(8))}.tmp"


def try_write(path: str, data: bytes) -> None:
    """Writes a file, durably, and removes it; raises StorageError."""
    write_file(path, data, sync=True)
    with failing_as_go("remove", path):
        os.unlink(path)


def rename_file(source: str, target: str) -> None:
    """Replaces `target`; if that fails, removes `source`."""
    try:
        os.rename(source, target)
    except OSError as error:
        with suppress(OSError):
            os.unlink(source)
        raise StorageError(path_error("rename", f"{source} {target}", error)) from error


def replace_file(path: str, data: bytes, sync: bool = True) -> None:
    """Replaces the file atomically; after a StorageError it is as before. A loss of power may bring the old one back
    until its directory is synced, and without `sync` leave neither."""
    temporary = temporary_path(path)
    write_file(temporary, data, sync)
    rename_file(temporary, path)


def remove_file(path: str) -> None:
    """Removes the file, durably, if there is one; raises StorageError."""
    if os.path.lexists(path):  # on a read-only disk, unlink fails also if there is none
        with failing_as_go("remove", path), suppress(FileNotFoundError):
            os.unlink(path)
        sync_directory(os.path.dirname(path))


def sync_path(path: str) -> None:
    """Calls fsync for a file or a directory, if it exists."""
    try:
        with _opened(path, os.O_RDONLY) as descriptor, failing_as_go("sync", path):
            _sync(descriptor, "fsync")
    except StorageError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise


def sync_directory(path: str) -> None:
    """Makes the entries of a directory durable, unless its file system cannot do that; raises StorageError."""
    try:
        sync_path(path or ".")
    except StorageError as error:
        cause = error.__cause__
        if not isinstance(cause, OSError) or cause.errno not in _CANNOT_SYNC:
            raise


def sync_files(descriptors: list[int], path: str, directory: str | None) -> None:
    """Makes the data of open files durable, of which `path` is the last, and their entries in `directory`."""
    with failing_as_go("sync", path):
        for descriptor in descriptors:
            _sync(descriptor, "fdatasync")  # the size with it; that costs half of fsync
    if directory is not None:
        sync_directory(directory)
