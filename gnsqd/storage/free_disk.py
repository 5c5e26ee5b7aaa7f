"""Whether less is free on the disk of the data path than should be."""

import os

from gnsqd.log import Logger
from gnsqd.storage.files import path_error

LOOK_EVERY = 1 << 20  # bytes that may come between two looks


class FreeDisk:
    """`low` while fewer than `minimum` bytes are free for users without privileges; the log has the changes."""

    def __init__(self, data_path: str, minimum: int, log: Logger) -> None:
        self.low = False
        self.minimum = minimum
        self._path = data_path or "."
        self._log = log
        self._look_every = min(LOOK_EVERY, minimum // 4)
        self._unseen = self._look_every  # bytes since the last look
        self._failing = False

    def is_low(self, size: int) -> bool:
        """`low`, with `size` more bytes to come: looks again from time to time."""
        self._unseen += size
        if self._unseen >= self._look_every:
            self.look()
        return self.low

    def look(self) -> None:
        """Find out how it is. If that can't be found out, it is as it was."""
        self._unseen = 0
        try:
            status = os.statvfs(self._path)
        except OSError as error:
            if not self._failing:
                self._failing = True
                self._log.error("NSQ: free disk space is unknown - %s", path_error("statvfs", self._path, error))
            return
        self._failing = False
        free = status.f_bavail * status.f_frsize
        if self.low != (free < self.minimum):
            self.low = not self.low
            if self.low:
                self._log.warn("NSQ: %d bytes of disk are free, publishers are refused below %d", free, self.minimum)
            else:
                self._log.info("NSQ: %d bytes of disk are free, publishers are no longer refused", free)
