"""The store of a topic: makes the queues of the topic and its channels."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from gnsqd.log import Logger
from gnsqd.options import Options
from gnsqd.queues.backend import Backend, Left
from gnsqd.queues.deferred import Deferred
from gnsqd.queues.disk import DiskBackend, DiskDeferred
from gnsqd.queues.queue import Queue
from gnsqd.shared.names import is_ephemeral
from gnsqd.shared.record import Record
from gnsqd.storage.disk.diskqueue import DiskQueue
from gnsqd.storage.disk.opening import DataFiles
from gnsqd.storage.syncer import Syncer

if TYPE_CHECKING:
    from gnsqd.queues.journal.store import JournalStore


class Context(Record):
    """Common objects of all stores. `set_health(error)` is called after writes of messages; None if it succeeded.
    `check_exit()` raises StartError if the daemon is asked to exit while it loads."""

    options: Options
    log: Logger
    data_files: DataFiles
    syncer: Syncer
    set_health: Callable[[Exception | None], None]
    check_exit: Callable[[], None]

    def open_disk_queue(self, name: str) -> DiskQueue:
        """Opens the disk queue of a topic or channel; raises StorageError."""
        return DiskQueue(name, self.options, self.data_files, self.log, self.syncer)


class Store:
    """The storage of one topic, whose own queue is `queue`: a disk queue for each queue that is not ephemeral. Each
    method may raise StorageError."""

    def __init__(self, topic: str, context: Context) -> None:
        self.topic = topic
        self.context = context
        self.log = context.log
        self.write_ahead: JournalStore | None = None  # the store itself, if it has a journal
        self.queue = self.new_queue(topic)

    def new_queue(self, name: str) -> Queue:
        context = self.context
        backend, deferred = Backend(), Deferred()
        if not is_ephemeral(name):
            disk_queue = context.open_disk_queue(name)
            backend = DiskBackend(disk_queue, context.options, self.log, context.set_health)
            deferred = DiskDeferred(disk_queue)
        return Queue(name, context.options, self.log, backend, deferred if ":" in name else None)

    def channel_queue(self, channel: str, past: Queue | None = None) -> Queue:
        """Returns the queue of a channel that is being made: `past`, if the log does not know the channel."""
        return self.new_queue(f"{self.topic}:{channel}")

    def delete(self) -> None:
        """Drops the messages of the topic, files included. May yield."""
        self.queue.delete()

    def close(self) -> Left:
        """Keeps the messages of the topic; the queues of its channels are closed. May yield."""
        return self.queue.close()
