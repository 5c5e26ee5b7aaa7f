"""Removes what a daemon that was killed, ours or the real one, left in the data path and nobody will ever read.

That is files on their way to becoming nsqd.dat, a meta file or a file of due times, and due times of a queue that has
neither meta nor data files, because the real nsqd, which does not know them, has deleted the queue.
"""

import os
import re
import stat
from collections.abc import Iterable

from gnsqd.errors import StorageError
from gnsqd.log import Logger
from gnsqd.storage.disk.opening import DataFiles
from gnsqd.storage.disk.record import due_times_file_name, meta_file_name
from gnsqd.storage.files import failing_as_go
from gnsqd.storage.metadata import FILE_NAME

_NAME = r"[.a-zA-Z0-9_-]{1,64}(?:#ephemeral)?"  # of a topic or a channel, generously
_QUEUE = rf"{_NAME}(?::{_NAME})?"
_META, _DUE_TIMES = re.escape(meta_file_name("")), re.escape(due_times_file_name(""))
_TEMPORARY = re.compile(
    rf"(?:{re.escape(FILE_NAME)}|{_QUEUE}(?:{_META}|{_DUE_TIMES}|\.journal\.[0-9]+\.dat))\.[0-9]+\.tmp"
)
_OF_DUE_TIMES = re.compile(rf"({_QUEUE}){_DUE_TIMES}")


def clean_up(data_files: DataFiles, names: Iterable[str], log: Logger) -> None:
    """Remove the leftovers among `names`, all files in the data path, and log how many there were. Call it under the
    lock of the data path, before any queue is opened."""
    removed = 0
    errors = []
    for name in names:
        due_times = _OF_DUE_TIMES.fullmatch(name)
        if not _TEMPORARY.fullmatch(name) and (not due_times or due_times[1] in data_files):
            continue
        path = os.path.join(data_files.data_path, name)
        try:
            with failing_as_go("remove", path):
                if stat.S_ISREG(os.lstat(path).st_mode):
                    os.unlink(path)
                    removed += 1
        except StorageError as error:
            errors.append(error)
    if removed:
        log.info("NSQ: removed %d files that an nsqd before this one left unfinished or without their queue", removed)
    if errors:
        log.warn("NSQ: failed to remove %d files that nobody needs - %s", len(errors), errors[0])
