"""The lock that keeps a second daemon, ours or the real one, off a data path: flock on the directory itself."""

import fcntl
import os

from gnsqd.errors import StartError
from gnsqd.storage.files import path_error


class DirLock:
    """Holds the lock from `acquire` to `release`, or until the process ends. An empty path is the working directory."""

    def __init__(self, path: str) -> None:
        self._path = path or os.getcwd()
        self._descriptor = -1

    def acquire(self) -> None:
        """StartError, beginning with `failed to lock data-path: `, if the directory is locked or cannot be opened."""
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            text = path_error("open", self._path, error)
            if self._descriptor >= 0:
                reason = str(error.strerror).lower()
                text = f"cannot flock directory {self._path} - {reason} (possibly in use by another instance of nsqd)"
            self.release()
            raise StartError(f"failed to lock data-path: {text}") from error

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
