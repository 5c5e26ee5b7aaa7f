"""Removes what a daemon that was killed, ours or the real one, left in the data path and nobody will ever read.

That is files on their way to becoming nsqd.dat, a meta file or a file of due times, and due times of a queue that has
neither meta nor data files, because the real nsqd, which does not know them, has deleted the queue.
"""

import os
import re

from gnsqd.errors import StorageError
from gnsqd.log import Logger
from gnsqd.storage.files import failing_as_go
from gnsqd.storage.metadata import FILE_NAME
from gnsqd.storage.record import data_file_number, due_times_file_name, meta_file_name

_NAME = r"[.a-zA-Z0-9_-]{1,64}(?:#ephemeral)?"  # of a topic or a channel, generously
_QUEUE = rf"{_NAME}(?::{_NAME})?"
_META, _DUE_TIMES = re.escape(meta_file_name("")), re.escape(due_times_file_name(""))
_TEMPORARY = re.compile(
    rf"(?:{re.escape(FILE_NAME)}|{_QUEUE}(?:{_META}|{_DUE_TIMES}|\.journal\.[0-9]+\.dat))\.[0-9]+\.tmp"
)
_OF_QUEUE = re.compile(rf"({_QUEUE})(?:({_META})|({_DUE_TIMES})|\.diskqueue\.[0-9]+\.dat)")


def sweep(data_path: str, log: Logger) -> None:
    """Remove the leftovers and log how many there were; what can't be removed is logged, too. Call it under the lock
    of the data path, before any queue is opened.
    """
    directory = data_path or "."
    try:
        temporary, due_times = _find(directory)
    except StorageError as error:
        log.warn("NSQ: failed to look for temporary files - %s", error)
        return
    removed = 0
    errors = []
    for name in [*temporary, *due_times]:
        path = os.path.join(directory, name)
        try:
            with failing_as_go("remove", path):
                os.unlink(path)
            removed += 1
        except StorageError as error:
            errors.append(error)
    if removed:
        log.info("NSQ: removed %d files that an nsqd before this one left unfinished or without their queue", removed)
    if errors:
        log.warn("NSQ: failed to remove %d files that nobody needs - %s", len(errors), errors[0])


def _find(directory: str) -> tuple[list[str], list[str]]:
    """Names of temporary files, and of due times without a queue; StorageError."""
    temporary = []
    due_times: dict[str, str] = {}  # by queue
    queues = set()
    with failing_as_go("open", directory), os.scandir(directory) as entries:
        for entry in entries:
            name = entry.name
            if name.endswith(".tmp"):
                if _TEMPORARY.fullmatch(name) and entry.is_file(follow_symlinks=False):
                    temporary.append(name)
            elif match := _OF_QUEUE.fullmatch(name):
                queue, is_meta, is_due_times = match.groups()
                if is_due_times:
                    if entry.is_file(follow_symlinks=False):
                        due_times[queue] = name
                elif is_meta or data_file_number(queue, name) is not None:
                    queues.add(queue)
    return temporary, [name for queue, name in due_times.items() if queue not in queues]
