"""A file that holds some space of the disk for the records that free more of it.

On a full disk, a record that messages are dropped or finished has no room, and nor has the new segment that lets an old
one go. They get the space of this file, bit by bit. Messages do not.
"""

import os
from contextlib import suppress

FILE_NAME = "gnsqd.reserve.dat"
STEP = 16 * 1024  # bytes
# The file of a link has another owner, and a pipe would stop the daemon.
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK


class Reserve:
    """Owns the file, of `size` bytes. `is_needed` from when the disk was full until a message is written again."""

    def __init__(self, data_path: str, size: int) -> None:
        self.is_needed = False
        self.is_whole = False
        self._has_given = False  # since it took something
        self._path = os.path.join(data_path, FILE_NAME)
        self._size = size

    def fill(self) -> None:
        """Takes the space that is missing, as far as the disk has it; without any, there is no file."""
        self._has_given = False
        if self.is_whole:
            return
        with suppress(OSError):
            if not self._size:
                self.is_whole = True
                os.unlink(self._path)
                return
            descriptor, missing = os.open(self._path, _FLAGS, 0o600), 0
            try:
                missing = self._size - os.fstat(descriptor).st_size
                while missing > 0:
                    missing -= os.write(descriptor, os.urandom(min(missing, STEP)))  # zeros may take no space
                self.is_whole = True
            finally:
                if missing == self._size:
                    os.unlink(self._path)  # it has nothing to give
                os.close(descriptor)

    def take_back(self) -> None:
        """Takes what was given and is left; does nothing if nothing was, as publishers are refused again and again."""
        if self._has_given:
            self.fill()

    def give(self) -> bool:
        """Frees some of the space; False if there is none."""
        self.is_whole = False
        try:
            if (size := os.lstat(self._path).st_size) > STEP:
                os.truncate(self._path, size - STEP)
            else:
                os.unlink(self._path)
        except OSError:
            return False
        self._has_given = True
        return True
