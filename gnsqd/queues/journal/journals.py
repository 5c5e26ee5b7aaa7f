"""All journals of a daemon: which files there are at the start, and the loop that writes what nobody waits for.

What a consumer finishes is not answered, so nobody commits it: it is written with the next message, or by the loop some
milliseconds later.
"""

import os
from collections.abc import Callable, Iterable
from time import monotonic
from typing import TYPE_CHECKING

from gevent import sleep
from gevent.event import Event

from gnsqd.hub.cooperative import BACKGROUND_SECONDS, Turns
from gnsqd.log import Logger
from gnsqd.options import Options
from gnsqd.shared.disk_format import parse_segment_name
from gnsqd.shared.errors import StorageError
from gnsqd.storage.directory import Reserve
from gnsqd.storage.syncer import Syncer

if TYPE_CHECKING:
    from gnsqd.queues.journal.journal import Journal
    from gnsqd.queues.journal.log import Follower
    from gnsqd.queues.journal.segments import OpenFiles

FLUSH_SECONDS = 0.005
RETRY_SECONDS = 1.0
COMPACTION_SECONDS = 1.0
RESERVED = 64 * 1024  # bytes


def find_journals(data_path: str, names: Iterable[str]) -> dict[str, list[tuple[int, str]]]:
    """Returns the segments of every topic, as (number, path) in order, among the `names` in the data path."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        if parsed := parse_segment_name(name):
            topic, number = parsed
            found.setdefault(topic, []).append((number, os.path.join(data_path, name)))
    for paths in found.values():
        paths.sort()
    return found


class Journals:
    """Opens journals. `topics` have one from before; they are among the `names` in the data path.
    `on_error(error)` is called after writes of the loop: with None if one worked after all."""

    def __init__(
        self,
        options: Options,
        names: Iterable[str],
        log: Logger,
        syncer: Syncer,
        on_error: Callable[[StorageError | None], None],
        shipper: "Follower | None" = None,
    ) -> None:
        self._options = options
        self._log = log
        self._syncer = syncer
        self._on_error = on_error
        self._shipper = shipper
        self._found = find_journals(options.data_path, names)
        self._dirty: dict[Journal, None] = {}
        self._failing: dict[Journal, float] = {}  # when to try again
        self._open_files: OpenFiles | None = None  # once a journal is open
        self._all: set[Journal] = set()
        self._look_at = 0.0  # at all of them, while the disk is full (monotonic)
        self._reserve = Reserve(options.data_path, 0 if options.durability == "none" else RESERVED)
        self._bell = Event()
        self._old: dict[Journal, None] = {}  # to be compacted
        self._old_bell = Event()
        self._exit = Event()

    @property
    def topics(self) -> list[str]:
        return sorted(self._found)

    def open(self, topic: str) -> "Journal":
        """Returns the journal of a topic, with what is there replayed."""
        from gnsqd.queues.journal.journal import Journal  # here, as daemons without --durability do not need it
        from gnsqd.queues.journal.segments import OpenFiles

        self._open_files = self._open_files or OpenFiles()
        paths = self._found.pop(topic, [])
        together = self._syncer, self._note, self._open_files, self._reserve, self._shipper
        journal = Journal(topic, self._options, paths, self._log, *together)
        self._all.add(journal)
        self._log.damages += len(journal.replay.damages)
        self._note_old(journal)
        return journal

    def _note(self, journal: "Journal") -> None:
        self._dirty[journal] = None
        self._bell.set()

    def _note_old(self, journal: "Journal") -> None:
        if len(journal.log.segments.all) > 1 or journal.retention.expires:
            self._old[journal] = None
            self._old_bell.set()

    def journal_loop(self) -> None:
        """Flushes what is dirty, until `stop`."""
        self._reserve.fill()
        while not self._exit.is_set():
            self._bell.wait(RETRY_SECONDS if self._failing or not self._reserve.is_whole else None)
            self._bell.clear()
            sleep(FLUSH_SECONDS)
            # On a full disk, every journal gives up what is in the way, also if nothing is published to it.
            if self._reserve.is_needed and monotonic() >= self._look_at:
                self._look_at = monotonic() + RETRY_SECONDS
                self._all = {journal for journal in self._all if not journal.closed}
                self._dirty |= dict.fromkeys(self._all)
            self.flush_dirty()
            self._reserve.fill()

    def compaction_loop(self) -> None:
        """Compacts journals one after the other, all that have changed and COMPACTION_SECONDS apart, until `stop`."""
        while not self._exit.is_set():
            self._old_bell.wait()
            self._old_bell.clear()
            old, self._old = self._old, {}
            for journal in old:
                if not self._exit.is_set() and not journal.compactor.compact():
                    self._old[journal] = None
                    self._old_bell.set()
            self._exit.wait(COMPACTION_SECONDS)

    def flush_dirty(self) -> None:
        """Flushes all; what fails is tried again, some time later. Yields, between journals."""
        now = monotonic()
        for journal, retry_at in list(self._failing.items()):
            if now >= retry_at:
                del self._failing[journal]
                self._dirty[journal] = None
        turns = Turns(BACKGROUND_SECONDS)
        dirty, self._dirty = self._dirty, {}
        for journal in dirty:
            if not journal.closed and journal not in self._failing:
                self._retry(journal)
            turns.give()

    def _retry(self, journal: "Journal") -> None:
        failed_before = journal.failed
        try:
            journal.retry()
        except StorageError as error:
            if journal.closed:
                return
            self._failing[journal] = monotonic() + RETRY_SECONDS
            if failed_before is None:
                self._log.error("JOURNAL(%s): failed to write - %s", journal.topic, error)
            self._on_error(error)
        else:
            if failed_before is not None and journal.failed is None and not self._reserve.is_needed:
                self._on_error(None)
            self._note_old(journal)

    def stop(self) -> None:
        self._exit.set()
        self._bell.set()
        self._old_bell.set()
