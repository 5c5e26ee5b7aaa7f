"""Where the messages of one topic and its channels are kept: a disk queue for each queue, or memory alone for an
ephemeral one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gnsqd.log import Logger
from gnsqd.options import Options
from gnsqd.queues.disk import DiskBackedQueue
from gnsqd.queues.message import Message
from gnsqd.queues.queue import EphemeralQueue, Left, Queue
from gnsqd.shared.names import is_ephemeral
from gnsqd.storage.disk.diskqueue import DiskQueue
from gnsqd.storage.disk.opening import DataFiles
from gnsqd.storage.syncer import Syncer

if TYPE_CHECKING:
    from gnsqd.storage.journal.compactor import Retention


@dataclass(frozen=True)
class Context:
    """What all stores of a data path need. `set_health(error)` is called after writes of messages; None if it worked.
    `check_exit()` raises StartError if the daemon is asked to exit while it loads."""

    options: Options
    log: Logger
    data_files: DataFiles
    syncer: Syncer
    set_health: Callable[[Exception | None], None]
    check_exit: Callable[[], None]

    def open_disk_queue(self, name: str) -> DiskQueue:
        """StorageError."""
        return DiskQueue(name, self.options, self.data_files, self.log, self.syncer)


class Store:
    """Of one topic; `queue` is the topic's own. Each method may raise StorageError."""

    def __init__(self, topic: str, context: Context) -> None:
        self.topic = topic
        self.context = context
        self.log = context.log
        self.queue = self.new_queue(topic)

    def new_queue(self, name: str) -> Queue:
        context = self.context
        if is_ephemeral(name):
            return EphemeralQueue(name, context.options, self.log)
        backend = context.open_disk_queue(name)
        return DiskBackedQueue(name, context.options, self.log, backend, context.set_health)

    @property
    def retention(self) -> "Retention | None":
        """What is kept of messages that all channels have finished, and their log; None if there is no log."""
        return None

    # Channels

    @property
    def restored_channels(self) -> list[str]:
        """Channels that only the store knows so far."""
        return []

    def channel_queue(self, channel: str, past: Queue | None = None) -> Queue:
        """The queue of a channel that is being made, `past` if the store has none. `adopt` it when the channel is
        complete."""
        return self.new_queue(f"{self.topic}:{channel}")

    def past_queue(self, channel: str, begin: int) -> Queue | None:
        """A queue, not yet stored, with what can be delivered again from the message with number `begin` on: for
        `channel_queue`, without a yield in between. None if the store can't. May yield."""
        return None

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
