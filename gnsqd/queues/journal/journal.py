"""The journal of a topic: each message once, and what the topic and its channels have done with it.

It has three parts: the `Log` of the messages, the `QueueStates`, and the `Compactor` with the `Retention`. `records`
has the bytes, `replay` what happens at a start.

Appending only collects. `flush` writes what was collected, at once, and `commit` also has it fsynced where the journal
is durable: many wait for one fsync, which runs in the Syncer's threads. Until a large snapshot is complete, the last
segment grows on.

Nothing here yields to the hub but `commit` and what calls it, and the compaction.
"""

from collections.abc import Callable

from gnsqd.log import Logger
from gnsqd.options import Options
from gnsqd.queues.journal.compactor import Compactor, Retention
from gnsqd.queues.journal.log import Follower, Log
from gnsqd.queues.journal.segments import OpenFiles
from gnsqd.queues.journal.states import QueueStates
from gnsqd.shared.errors import StorageError, is_disk_full
from gnsqd.shared.journal.records import CONVERTING, VOID, PutBatch
from gnsqd.shared.journal.replay import Replay
from gnsqd.storage.directory import Reserve
from gnsqd.storage.syncer import Syncer


class Journal:
    """Owns the files `{topic}.journal.*` of the data path, and connects the parts. It begins with what `paths` hold:
    see `replay`. `on_dirty(journal)` is called when there is something that nobody may flush soon."""

    def __init__(
        self,
        topic: str,
        options: Options,
        paths: list[tuple[int, str]],
        logger: Logger,
        syncer: Syncer,
        on_dirty: "Callable[[Journal], None]",
        open_files: OpenFiles,
        reserve: Reserve,
        shipper: Follower | None,
    ) -> None:
        self.topic = topic
        self.closed = False
        self._on_dirty = on_dirty
        self._dirty = False  # `on_dirty` was called since the last `retry`
        self._write_failed: StorageError | None = None  # the error of the last write
        self._reserve = reserve
        self.replay = Replay(topic, logger, repairs=True)
        self.replay.read([path for _, path in paths])
        next_segment = max((number for number, _ in paths), default=-1) + 1
        bells = self._note_dirty, self._note_synced
        self.log = Log(topic, options, self.replay, next_segment, logger, syncer, open_files, *bells, shipper)
        self.states = QueueStates(self.log.encoder, self.replay.next_queue, open_files, self._note_dirty)
        self.retention = Retention(self.log, self.states, options, self.replay, self.commit)
        self.compactor = Compactor(self.retention, reserve, self.flush, self.commit)
        if not self.log.durable:
            self.log.mark_continued()
        if shipper is not None:
            shipper.opened(self.log)

    def forget_replay(self) -> None:
        """Drops all that the replay found: it has its place."""
        self.replay = Replay(self.topic, self.log.logger, repairs=True)

    def _note_dirty(self) -> None:
        if not self._dirty and not self.closed:
            self._dirty = True
            self._on_dirty(self)

    def _note_synced(self) -> None:
        if self.log.has_older:
            self.compactor.reclaim()
        if self.log.tail.safe >= self.log.snapshot_end:
            self.log.mark_continued()

    @property
    def failed(self) -> StorageError | None:
        """Returns the error of the last write, or of an fsync since the last that worked."""
        return self._write_failed or self.log.tail.failed

    def check(self) -> None:
        """Raises StorageError if nothing can be kept just now."""
        if self.log.tail.failed is not None:
            raise StorageError(str(self.log.tail.failed))
        if self._write_failed is not None:
            self.flush()

    def retry(self) -> None:
        """Writes what is not written, or, after a failed fsync, not known to be; errors as `commit`. May yield."""
        self._dirty = False
        if self.log.tail.failed is not None:
            self.commit()
        else:
            self.flush(advance=True)

    def commit(self) -> None:
        """Returns when all that was appended survives what it is to survive; raises StorageError. May yield."""
        self.flush()
        self.wait_synced()

    def wait_synced(self) -> None:
        """Returns when all that was written survives what it is to survive; raises StorageError. May yield."""
        self.log.tail.synced(self.log.tail.position)

    def flush(self, advance: bool = False) -> None:
        """Writes everything; after a StorageError the next call tries again. `advance`: with a step of a snapshot."""
        if self.closed:
            if self.log.unwritten.first < self.log.next_number:
                raise StorageError("exiting")
            return
        try:
            try:
                is_written = self._flush(advance)
            except StorageError as error:
                is_written = self._flush_after_room(advance, error)
        except StorageError as error:
            self.states.drop_snapshot()
            self._write_failed = error
            raise
        if is_written:
            self._write_failed = None
        if self.states.snapshot is not None:
            self._note_dirty()

    def _flush_after_room(self, advance: bool, error: StorageError) -> bool:
        """Makes room on a full disk for what `_flush` did not write because of `error`, and returns what that returns;
        raises StorageError. Messages that somebody needs get what unneeded segments took, everything else also the
        reserve."""
        log = self.log
        is_full = is_disk_full(error)
        self._reserve.is_needed = self._reserve.is_needed or is_full
        self.states.drop_snapshot()  # it may be what the disk has no room for
        has_room = self.compactor.make_room()
        if log.unwritten.puts and self.retention.are_finished(log.next_number):
            self.retention.absent.add(log.unwritten.first, log.next_number)
            log.unwritten.clear_messages()
            has_room = True
        try:
            while has_room or (is_full and not log.unwritten.puts and self._reserve.give()):
                has_room = False
                try:
                    return self._flush(advance)
                except StorageError as again:
                    self.states.drop_snapshot()
                    error = again
            raise error
        finally:
            self._reserve.take_back()  # what the records leave, publishers would get

    def _flush(self, advance: bool) -> bool:
        """Returns False if there was nothing to write."""
        position = self.log.tail.position
        has_messages = self.log.unwritten.first < self.log.next_number
        self._write(advance)
        if has_messages:
            self._reserve.is_needed = False
        return self.log.tail.position > position

    def _write(self, advance: bool) -> None:
        log, states = self.log, self.states
        batch = log.unwritten
        batch.close_record()
        is_empty = not (batch.puts or batch.lasts or states.changes or states.noted)
        if log.tail.file is None:
            # What the last segment has may be nowhere, after an fsync that failed.
            if not is_empty or log.tail.failed is not None or self.retention.is_aged():
                self._roll_now()
            return
        snapshot = states.snapshot
        if snapshot is not None:
            if advance:
                snapshot.advance()
        elif (
            (not is_empty and log.is_full(self.retention.floor))
            or (self.retention.max_age and self.retention.is_aged())
            or (self._reserve.is_needed and self._is_in_the_way())
        ):
            states.begin_snapshot(log.next_path).advance()
        head, notes = states.records(snapshot)
        if states.snapshot is not None and states.snapshot.complete:
            self._roll()
            return
        if head or notes or batch.puts or batch.lasts:
            if log.durable or log.tail.file.descriptor < 0:  # only an fsync needs it held open
                try:
                    log.tail.file.open()
                except OSError:
                    self._roll_now()
                    return
            log.write(log.segments.all[-1], log.tail.file, head, notes)
            states.forget_records()
        if log.has_older:
            self.compactor.note_written()

    def _is_in_the_way(self) -> bool:
        """True if the last segment has only messages that nobody needs: a full disk needs its space."""
        last = self.log.segments.all[-1]
        return last.count > 0 and self.retention.floor() >= last.end

    def _roll_now(self) -> None:
        """Goes on in a new segment, whatever the snapshot takes."""
        snapshot = self.states.begin_snapshot(self.log.next_path)
        while not snapshot.advance():
            pass
        self._roll()

    def _roll(self) -> None:
        """Goes on in a new segment, which begins with the snapshot, which is complete."""
        log, states = self.log, self.states
        assert states.snapshot is not None
        number = min(log.unwritten.first, log.next_number)
        file, rest = states.snapshot.finish(number, states.next_index)
        log.roll(number, file, states.snapshot.size, rest)
        states.snapshot = None
        states.forget_records()
        self.retention.advance()
        self.compactor.note_written()
        if not log.durable:
            log.mark_continued()

    @property
    def is_needed(self) -> bool:
        """True if it has anything that the next start needs."""
        return self.retention.floor() < self.log.next_number or self.retention.is_own or bool(self.log.epoch)

    def mark_converting(self) -> None:
        """Records that what the disk queues of the topic hold from now on is a copy; raises StorageError. May yield."""
        self.log.declare(CONVERTING, self.log.encoder.record(CONVERTING))
        self.commit()

    def remove(self, at_once: bool = True) -> None:
        """Deletes all files; if `at_once`, as one step for whoever finds them after a kill: the newest, which records
        that none counts, goes last. Nothing is written from now on. May yield."""
        if self.closed:
            return
        log, segments = self.log, self.log.segments.all
        self.states.forget_records()
        log.unwritten = PutBatch(log.encoder)
        if segments and (at_once or len(segments) > 1):
            log.unwritten.lasts.append(log.encoder.record(VOID))
            try:
                self.commit()
            except StorageError as error:
                log.logger.error("JOURNAL(%s): %s", self.topic, error)
                segments = segments[::-1]  # what a kill leaves of them then records too little rather than too much
        self.close()
        log.delete_files(segments)

    def close(self) -> None:
        """Writes nothing any more; files stay. May yield."""
        self.closed = True
        self.compactor.close()
        self.states.drop_snapshot()
        self.log.close()
