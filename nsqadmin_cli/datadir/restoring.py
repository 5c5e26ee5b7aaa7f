"""Restores the log of a gnsqd from an object store, to a data directory or, to look at it, to a temporary one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory

from gnsqd.shared import log_store
from gnsqd.shared.directory import DataDirectory, list_directory, locked
from gnsqd.shared.errors import reason_of
from gnsqd.shared.log_store import CLAIM_NAME, Claim, LogStore, StoredLog, Wal, with_log
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.output import progress

_NOTHING = {CLAIM_NAME, "lost+found"}  # files of an empty directory: of an interrupted start, and of a new disk


def is_url(path: str) -> bool:
    return "://" in path


def restore_log(store: LogStore, directory: str, until: int | None = None) -> Wal:
    """Restores the newest state, or the last that is not after `until` (wall clock, ns), to a directory that is absent,
    empty, or has an interrupted restore; returns the object that ends it. Raises AdminError, StorageError."""
    return with_log(store, partial(_restore, store, directory), until)


def _restore(store: LogStore, directory: str, log: StoredLog) -> Wal:
    if log.last is None:
        raise AdminError(f"{store.url}: there is no log")
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        names = set(os.listdir(directory))
    except OSError as error:
        raise AdminError(f"cannot restore to {directory}: {reason_of(error)}") from None
    with locked(directory):
        if not (names <= _NOTHING or Claim.load(directory).restoring):
            raise AdminError(f"{directory} is not empty, and has no interrupted restore; specify another directory")
        # Whoever has put an object after this one owns the log: then no gnsqd goes on with it from here.
        claim = Claim({log.last.writer: log.last.number}, restoring=True)
        claim.save(directory)
        with progress("restoring", sum(file.size for file in log.files.values()), "bytes") as advance:
            log_store.restore(store, log, directory, advance=advance)
        replace(claim, restoring=False).save(directory)
    return log.last


@contextmanager
def opened(path: str) -> Iterator[DataDirectory]:
    """Lists a data directory, or a temporary copy of the log at a URL, whose `path` is then that."""
    if not is_url(path):
        yield list_directory(path)
        return
    with TemporaryDirectory(prefix="gnsqadmin-") as copy:
        restore_log(LogStore(path), copy)
        data_dir = list_directory(copy)
        data_dir.path = path
        yield data_dir
