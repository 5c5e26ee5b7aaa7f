"""The files that journals have open: a bounded number, because there may be thousands of topics.

Where there are too many, the file that was used the longest ago is closed; whoever needs it opens it again. A file
that has messages no fsync has confirmed is held open: an error of the disk could go unnoticed otherwise.
"""

import errno
import os
import resource
from contextlib import suppress
from typing import Protocol

from gnsqd.shared.errors import StorageError, failing_as_go
from gnsqd.storage.files import rename_file, temporary_path, write_at

SHARE = 4  # of all descriptors that the process may have, journals get 1 / SHARE
MOST = 256


class Closable(Protocol):
    def close(self) -> None:
        """Closes the file, if it is open; it is opened again when that is needed."""


class OpenFiles:
    """Knows who has a file open, and closes those above the limit."""

    def __init__(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = MOST if soft == resource.RLIM_INFINITY else min(max(soft // SHARE, 1), MOST)
        self._users: dict[Closable, None] = {}  # the one whose file was used the longest ago first

    def open(self, path: str, flags: int) -> int:
        """Calls os.open, with mode 0600; OSError. Where the process may open no more, others are closed for it."""
        while True:
            try:
                return os.open(path, flags, 0o600)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._users:
                    raise
                self._close_first()

    def use(self, user: Closable) -> None:
        """Notes that the file of `user` is used now."""
        users = self._users
        users.pop(user, None)
        users[user] = None
        if len(users) > self._limit:
            self._close_first()

    def _close_first(self) -> None:
        user = next(iter(self._users))
        del self._users[user]
        user.close()

    def hold(self, user: Closable) -> None:
        """Notes that the file of `user` is closed, or has to stay open until the next `use`."""
        self._users.pop(user, None)


class AppendedFile:
    """Owns a new file, made by the first `write`, with another name than `target` until `finish`."""

    def __init__(self, target: str, files: OpenFiles) -> None:
        self.path = temporary_path(target)
        self.descriptor = -1  # closed
        self._target = target
        self._files = files
        self._flags = os.O_RDWR | os.O_CREAT | os.O_EXCL

    def open(self) -> None:
        """Opens it, not to be closed by others before `release`; OSError."""
        if self.descriptor < 0:
            self.descriptor = self._files.open(self.path, self._flags)
            self._flags = os.O_RDWR
        self._files.hold(self)

    def write(self, parts: list[bytes], position: int) -> int:
        """Writes all `parts` there, at the end of the file, or nothing; returns their size in bytes. StorageError."""
        if self.descriptor < 0:
            with failing_as_go("open", self._target):
                self.open()
        try:
            with failing_as_go("write", self._target):
                return write_at(self.descriptor, parts, position)
        except StorageError:
            with suppress(OSError):  # if this also fails, the next write goes over it
                os.ftruncate(self.descriptor, position)
            raise

    def finish(self) -> None:
        """Gives it its name; StorageError: it has the old one, or none."""
        rename_file(self.path, self._target)
        self.path = self._target

    def release(self) -> None:
        """Lets others close it."""
        if self.descriptor >= 0:
            self._files.use(self)

    def close(self) -> None:
        self._files.hold(self)
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            with suppress(OSError):
                os.close(descriptor)

    def discard(self) -> None:
        """Closes it and leaves no file."""
        self.close()
        with suppress(OSError):
            os.unlink(self.path)
