"""The rules about a local data directory: a full disk, damaged and orphaned files.

Only names, sizes, meta files and nsqd.dat are read, so that a running daemon is not disturbed; `gnsqadmin data verify`
reads the records.
"""

import os
import shlex
from collections.abc import Iterator, Sequence

from gnsqd.errors import StorageError
from nsqadmin_cli import units
from nsqadmin_cli.datadir.directory import METADATA, DataDirectory, Queue, list_directory, reason_of
from nsqadmin_cli.datadir.lock import is_held
from nsqadmin_cli.diagnosis.finding import Finding, Remedy, Severity, some_of
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.units import plural

_LOW, _VERY_LOW = 0.10, 0.03  # of the disk


def examine_directory(path: str) -> Iterator[Finding]:
    """All problems of a data directory; AdminError if it cannot be read, or is not a data directory."""
    found = list_directory(path)
    yield from _disk(path)
    bad = {
        queue.file_name(number, bad=True): size for queue in found.queues.values() for number, size in queue.bad.items()
    }
    if bad:
        yield Finding(
            Severity.WARNING,
            "bad-files",
            f"{path} holds {plural(len(bad), 'damaged file')} set aside, which will not be read",
            (units.size(sum(bad.values())), some_of(sorted(bad))),
            (Remedy("Show what can be recovered, then recover it:", _data("recover-bad", path)),),
        )
    yield from _journals(found)
    unread = [queue for queue in found.queues.values() if _holds_messages(queue)]
    if found.listed is None:
        yield from _no_metadata(found, unread)
    elif orphans := [queue for queue in unread if not found.is_listed(queue)]:
        yield Finding(
            Severity.WARNING,
            "orphan-files",
            f"{path} has messages of {plural(len(orphans), 'queue')} that {METADATA} does not list, and which will "
            "not be read",
            (units.size(sum(queue.size for queue in orphans)), _names(orphans)),
            (
                Remedy(
                    "A topic or channel created with that name gets them. To show them:",
                    _data("ls", path),
                ),
            ),
        )


def _journals(found: DataDirectory) -> Iterator[Finding]:
    """Journals of a gnsqd with --durability, which only gnsqd reads."""
    path = found.path
    if found.journals and not is_held(path):
        size = sum(journal.size for journal in found.journals.values())
        yield Finding(
            Severity.NOTE,
            "journals",
            f"{path} has journals of {plural(len(found.journals), 'topic')}: only gnsqd reads them",
            (units.size(size), some_of(sorted(found.journals))),
            (
                Remedy("gnsqd loads them when it starts. To count their messages:", _data("verify", path)),
                Remedy("For the real nsqd, move the messages to disk queues:", _data("convert", path)),
            ),
        )


def _data(words: str, path: str) -> str:
    return shlex.join(["gnsqadmin", "data", words, path])


def _names(queues: Sequence[Queue]) -> str:
    return some_of(sorted(queue.name for queue in queues))


def _holds_messages(queue: Queue) -> bool:
    """Whether its files have unread messages."""
    if not queue.size:
        return False
    try:
        meta = queue.read_meta()
    except StorageError:
        return True
    return meta.read_position != meta.write_position


def _disk(path: str) -> Iterator[Finding]:
    try:
        disk = os.statvfs(path)
    except OSError as error:
        raise AdminError(f"cannot get the free space of the disk of {path}: {reason_of(error)}") from None
    rooms = (
        ("room", disk.f_bavail, disk.f_blocks, f"{units.size(disk.f_bavail * disk.f_frsize)} free"),
        ("inodes", disk.f_favail, disk.f_files, f"{disk.f_favail:,} free"),
    )
    for what, free, whole, text in rooms:
        if whole and free / whole < _LOW:
            yield Finding(
                Severity.CRITICAL if free / whole < _VERY_LOW else Severity.WARNING,
                "disk-full",
                f"the disk of {path} has {free / whole:.1%} of its {what} left",
                (text, "nsqd refuses messages that it cannot write"),
                (Remedy("Free disk space, or let consumers catch up. To show the size of queues:", _data("ls", path)),),
            )


def _no_metadata(found: DataDirectory, unread: list[Queue]) -> Iterator[Finding]:
    """nsqd.dat does not exist, or cannot be read."""
    file = os.path.join(found.path, METADATA)
    queues = f"{plural(len(unread), 'queue')} with messages: {_names(unread)}" if unread else "no messages on disk"
    if os.path.lexists(file):
        yield Finding(
            Severity.CRITICAL,
            "bad-metadata",
            f"{file} cannot be used: no daemon starts with it",
            (found.metadata_error, queues),
            (Remedy("Restore it, or move it away and create the topics and channels again."),),
        )
    elif unread:
        yield Finding(
            Severity.CRITICAL,
            "no-metadata",
            f"{found.path} has no {METADATA}: a daemon that starts there finds no topics",
            (queues,),
            (Remedy("Restore it, or create the topics and channels again: they get their messages back."),),
        )
