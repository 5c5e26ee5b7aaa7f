"""The backend of a queue: it keeps the messages that memory has no room for."""

from collections.abc import Callable, Iterator, Sequence
from sys import maxsize

from gnsqd.queues.message import Message
from gnsqd.shared.record import Record

MAX_STEP = 2048  # messages that one step drops


class Left(Record):
    """Counts at the end of queues: messages not written, queues not synced, and messages in journals."""

    lost: int = 0
    unsynced: int = 0
    journaled: int = 0

    @classmethod
    def sum(cls, parts: "Sequence[Left]") -> "Left":
        return cls(*[sum(getattr(part, name) for part in parts) for name in cls.names])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Left) and vars(self) == vars(other)


class Backend:
    """A backend that keeps nothing, that of ephemeral topics and channels, as nsqd's dummyBackendQueue. Subclasses keep
    messages on disk or in a journal."""

    def __init__(self, keeps: bool = False) -> None:
        self.keeps = keeps  # else messages that memory has no room for are dropped
        self.journaled = False  # it has each message of the queue, also those in memory, until `finish`
        self.unsynced = False  # `wait_synced` may have to wait
        self.count = 0  # queued messages; after damage an estimate, but 0 exactly if nothing is left to read
        self.unsettled = 0  # messages that `read` returned last and the backend still has, until `finish`

    @property
    def size(self) -> int:
        """Bytes of the queued messages, as records of a disk queue."""
        return 0

    @property
    def disk_bytes(self) -> int:
        """Bytes of the files, read messages included; those of a journal belong to the topic's queue."""
        return 0

    def put(self, messages: list[Message]) -> None:
        """Keeps messages; raises StorageError if some cannot be written: the first `error.written` are kept
        nevertheless."""

    def read(self, limit: int, max_bytes: int) -> list[Message]:
        """Removes and returns messages as `Queue.take`; `deferred` is set where one is not due yet."""
        return []

    def finish(self, messages: list[Message]) -> None:
        """Forgets messages that the queue need not keep any more."""

    def delivered(self, given: list[Message], messages: list[Message]) -> None:
        """Notes that of `messages`, just read, those `given` are about to be delivered. The others are finished."""

    def discard(self, messages: list[Message]) -> None:
        """Forgets messages that were dropped from memory: if the queue is a topic's, no channel gets them."""

    def messages(self) -> Iterator[Message]:
        """Yields all queued messages that can be read, and keeps them; raises StorageError."""
        return iter(())

    def timestamp(self) -> int:
        """Returns when the next message was published (wall clock, ns); maxsize if that cannot be read now."""
        return maxsize

    def order(self, message: Message) -> int:
        """Returns the value by which messages of memory and backend are compared: the smaller is the older."""
        return message.timestamp

    def front(self) -> int:
        """Returns the `order` of the next message; maxsize if there is none."""
        return maxsize

    def sort(self) -> None:
        """Puts the oldest message first, if the backend can; it need not read messages for that."""

    def drop(self, count: int, size: int, before: int) -> tuple[int, int]:
        """Drops the next messages: `count`, or fewer if these have `size` bytes, and none whose `order` is `before` or
        more; returns their number and bytes."""
        return 0, 0

    def drop_older(self, horizon: int) -> int:
        """Drops about MAX_STEP of the next messages, those published before `horizon`; returns their number."""
        return 0

    def wait_synced(self) -> None:
        """Returns when at most sync-every operations are not fsynced. May yield: call it between batches."""

    def empty(self) -> None:
        """Drops all messages; raises StorageError if that cannot be written."""

    def delete(self) -> None:
        """Drops all messages, and the files; errors as `empty`."""

    def close(self, messages: list[Message]) -> Left:
        """Keeps `messages`, the rest of the queue, as long as the options promise, and stops. May yield."""
        return Left()


def sort_key(backend: Backend) -> Callable[[Message], tuple[int, bytes]]:
    """Returns the function whose results an ordered queue with this backend is sorted by."""
    order = backend.order
    return lambda message: (order(message), message.id)
