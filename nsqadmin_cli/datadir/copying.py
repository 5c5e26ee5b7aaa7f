"""Writes into a data directory, durably, and with the owner and mode of nsqd's own files."""

import os
from contextlib import suppress

from gnsqd.storage.disk.record import LENGTH
from nsqadmin_cli.datadir.records import Advance

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
