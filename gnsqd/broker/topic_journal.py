"""What a topic has to do with its journal: what a replay found finds its way to the topic and its channels, what disk
queues hold is moved to the journal, and at a clean exit everything goes back to disk queues, for any nsqd to come.
"""

from collections.abc import Callable, Collection

from gevent.lock import Semaphore

from gnsqd.broker.channel import Channel
from gnsqd.broker.environment import Environment
from gnsqd.broker.journal_migration import convert, move
from gnsqd.broker.journaled import JournaledQueue, journal_messages
from gnsqd.broker.message import Message
from gnsqd.errors import StorageError
from gnsqd.storage.disk.diskqueue import DiskQueue
from gnsqd.storage.journal.journal import Journal


class TopicJournal:
    """Owns the journal of one topic; `queue` is the topic's own, and channels get theirs from `channel_queue`."""

    def __init__(self, topic: str, journal: Journal, environment: Environment) -> None:
        self._topic = topic
        self._journal = journal
        self._environment = environment
        self._log = environment.log
        self._max_delay = environment.options.max_req_timeout
        self._replaying = True
        self._restored: dict[str, JournaledQueue] = {}  # channels of the replay, not yet made
        self._converted = journal.replay.converting  # disk queues hold copies of what the journal has
        self._unmoved: list[str] = []  # disk queues with messages that the journal has not
        self._moving = Semaphore(1)  # held while a disk queue is open
        self._ending = False
        self.queue = self._restore()

    # The replay

    def _restore(self) -> JournaledQueue:
        """The queue of the topic; those of channels wait until they are made."""
        journal = self._journal
        replay = journal.replay
        topic_state = replay.queues[0]
        queue = self._new_queue(self._topic)
        queue.restore(topic_state, topic_state.finished.gaps(0, journal.next_number), {})
        journal.add_queue(queue, 0)
        latest = {state.name: index for index, state in sorted(replay.queues.items())}
        for index, state in replay.queues.items():
            if index and index == latest[state.name]:  # damage may have hit that an older one was deleted
                channel_queue = self._new_queue(state.name)
                channel_queue.index = index
                wanted = topic_state.finished.without(state.finished)
                due = {number: due for number, due in replay.due.items() if number in wanted} | state.due
                channel_queue.restore(state, wanted, due)
                journal.add_queue(channel_queue, index)
                self._restored[state.name.rpartition(":")[2]] = channel_queue
        return queue

    def _new_queue(self, name: str) -> JournaledQueue:
        return JournaledQueue(self._journal, name, self._log, self._max_delay)

    @property
    def restored_channels(self) -> list[str]:
        """Those that only the journal knows so far."""
        return list(self._restored)

    def channel_queue(self, name: str) -> JournaledQueue:
        """The queue of a channel that is being made."""
        queue = self._restored.pop(name, None)
        if queue is None:
            journal = self._journal
            queue = self._new_queue(f"{self._topic}:{name}")
            queue.finished = self.queue.finished.copy()
            if self._replaying and journal.replay.damaged:
                # It may have been there before: rather everything once more than something not at all.
                queue.finished = journal.replay.present.gaps(0, journal.next_number)
                queue.put_spans(self.queue.finished.without(queue.finished))
            queue.index = journal.add_queue(queue)
        return queue

    def end_replay(self, channels: list[Channel]) -> None:
        """All channels that there were are made: disk queues may be read, and messages move. StartError if the daemon
        was asked to exit meanwhile, while it loads. May yield."""
        if self._replaying:
            for channel in channels:
                self.import_channel(channel)
            self._import(self._topic, self.queue, self.queue.put, lambda: False)
            self._journal.forget_replay()
            self._replaying = self._converted = False

    # From disk queues

    def import_channel(self, channel: Channel) -> None:
        """Move what its disk queue holds, unless that is still to come by `end_replay`. May yield."""
        if isinstance(channel.backend, JournaledQueue):
            self._import(f"{self._topic}:{channel.name}", channel.backend, channel.take_over, lambda: channel.exiting)

    def _import(
        self,
        name: str,
        queue: JournaledQueue,
        receive: Callable[[list[Message]], None],
        is_gone: Callable[[], bool],
    ) -> None:
        """Move what a disk queue holds to the journal. Should that fail, the rest is there for the next start."""
        if not self._environment.has_backend(name):
            return

        def is_over() -> bool:
            self._environment.check_exit()
            return self._ending or is_gone()

        with self._moving:
            self._unmoved.append(name)
            if self._ending or is_gone():
                return
            old: DiskQueue | None = None
            try:
                old = self._environment.make_backend(name)
                if depth := old.depth:
                    if self._converted:
                        self._log.info("JOURNAL(%s): an exit was not finished, its disk queue is a copy", name)
                    else:
                        self._log.info("JOURNAL(%s): moving %d messages from the disk queue", name, depth)
                        move(old, queue, receive, is_over)
                if self._converted or not old.depth:
                    old.delete()
                    self._unmoved.remove(name)
                    return
            except StorageError as error:
                self._environment.set_health(error)
                self._log.error("JOURNAL(%s): moving messages from the disk queue - %s", name, error)
            finally:
                if old is not None:
                    old.close()
            if old is not None and old.depth and not is_gone():
                self._log.error("JOURNAL(%s): %d messages stay in the disk queue until the next start", name, old.depth)

    # Writing

    def put(self, messages: list[Message]) -> None:
        """Append them; StorageError if the disk has refused what came before, and still does."""
        if self._journal.failed is not None:
            self._guard(self._journal.check)
        journal_messages(self._journal, messages)

    def commit(self) -> None:
        """Return when all that was put is kept; StorageError. May yield."""
        self._guard(self._journal.commit)

    def _guard(self, write: Callable[[], None]) -> None:
        """Write, and say how that went."""
        failed_before = self._journal.failed
        try:
            write()
        except StorageError as error:
            self._environment.set_health(error)
            if failed_before is None:
                self._log.error("TOPIC(%s) ERROR: failed to write message to journal - %s", self._topic, error)
            raise
        if failed_before is not None:
            self._environment.set_health(None)

    # The end

    def remove(self) -> None:
        """The topic is deleted, and with it what disk queues still hold; StorageError. May yield."""
        self._ending = True
        with self._moving:
            self._journal.remove()
        failure = None
        for name in self._unmoved:
            try:
                self._environment.make_backend(name).delete()
            except StorageError as error:
                failure = error
        if failure is not None:
            raise failure

    def remove_channel(self, name: str) -> None:
        """A channel is deleted, and with it what its disk queue still holds; StorageError. May yield."""
        queue = f"{self._topic}:{name}"
        with self._moving:
            if queue in self._unmoved:
                self._environment.make_backend(queue).delete()
                self._unmoved.remove(queue)

    def convert(self, memory: Collection[Message], channels: list[Channel]) -> None:
        """Write all that is wanted to disk queues, `memory` being what the topic has there; should that fail, the
        journal stays. May yield."""
        self._ending = True
        with self._moving:
            pass  # whatever moves has ended
        journal = self._journal
        left = 0
        wanted = journal.floor() < journal.next_number
        try:
            if self._unmoved:  # then a kill from now on may multiply, but must not drop
                journal.commit()
            elif wanted:
                journal.mark_converting()
        except StorageError as error:
            left = 1
            self._log.error("TOPIC(%s): %s", self._topic, error)
        for channel in channels:
            if not left:
                left += sum(channel.close())
            else:
                channel.exit()
        if memory:
            self._log.info("TOPIC(%s): flushing %d memory messages to backend", self._topic, len(memory))
        if not left:
            left = convert(list(memory), self.queue, self._environment.make_backend, self._log)
        if wanted and not left:
            try:
                journal.sync_directory()  # before the journal says that it does not count
            except StorageError as error:
                left = 1
                self._log.error("TOPIC(%s): %s", self._topic, error)
        if left:
            self._log.error("TOPIC(%s): the disk queues are incomplete, but the journal has all messages", self._topic)
            journal.close()
        else:
            journal.remove(at_once=wanted)
