"""Where the messages of one topic and its channels are kept: a disk queue for each queue, or memory alone for an
ephemeral one."""

from collections.abc import Callable

from gnsqd.log import Logger
from gnsqd.names import is_ephemeral
from gnsqd.options import Options
from gnsqd.queues.disk import DiskBackedQueue
from gnsqd.queues.message import Message
from gnsqd.queues.queue import EphemeralQueue, Left, Queue
from gnsqd.storage.disk.diskqueue import DiskQueue

SetHealth = Callable[[Exception | None], None]


class Store:
    """Of one topic; `queue` is the topic's own. `open_disk_queue(name)` may raise StorageError, and so may each method.
    `set_health(error)` is called after writes of messages; None if it worked."""

    def __init__(
        self,
        topic: str,
        options: Options,
        log: Logger,
        open_disk_queue: Callable[[str], DiskQueue],
        set_health: SetHealth,
    ) -> None:
        self.topic = topic
        self.options = options
        self.log = log
        self.open_disk_queue = open_disk_queue
        self.set_health = set_health
        self.queue = self.new_queue(topic)

    def new_queue(self, name: str) -> Queue:
        if is_ephemeral(name):
            return EphemeralQueue(name, self.options, self.log)
        backend = self.open_disk_queue(name)
        return DiskBackedQueue(name, self.options, self.log, backend, self.set_health, is_ephemeral(self.topic))

    # Channels

    @property
    def restored_channels(self) -> list[str]:
        """Channels that only the store knows so far."""
        return []

    def channel_queue(self, channel: str) -> Queue:
        """The queue of a channel that is being made. `adopt` it when the channel is complete."""
        return self.new_queue(f"{self.topic}:{channel}")

    def adopt(self, queue: Queue) -> None:
        """Queue what other storage still has for `queue`. May yield."""

    def delete_channel(self, channel: str) -> None:
        """Remove what other storage has for a channel that is deleted. May yield."""

    # Messages

    def start(self) -> None:
        """All channels that there were are made, so messages may move from now on. May yield."""

    def append(self, messages: list[Message]) -> None:
        """Keep messages that are about to be queued; with StorageError none is kept."""

    def commit(self) -> None:
        """Return when what was appended and queued is kept as surely as the options promise. May yield."""
        self.queue.wait_synced()

    # The end

    def delete(self) -> None:
        """Drop the messages of the topic, files included. May yield."""
        self.queue.delete()

    def close(self) -> Left:
        """Keep the messages of the topic; the queues of its channels are closed. May yield."""
        return self.queue.close()
