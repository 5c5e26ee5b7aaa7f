"""The consumers of a channel that could take a message but found none."""

from itertools import islice

from gnsqd.broker.consumer import Consumer


class WaitingConsumers:
    """A line: who is at its front is woken first. A consumer that was woken has a message promised until it comes."""

    def __init__(self) -> None:
        self._waiting: dict[int, Consumer] = {}
        self._woken: set[int] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def promised(self) -> int:
        """Messages that woken consumers have yet to take, one each."""
        return len(self._woken)

    def leave(self, client: Consumer) -> int:
        """It does not wait. How many messages are promised to others: none if it was woken itself."""
        self._waiting.pop(client.id, None)
        if client.id in self._woken:
            self._woken.remove(client.id)
            return 0
        return len(self._woken)

    def join(self, client: Consumer) -> None:
        """It waits at the end of the line."""
        self._waiting[client.id] = client

    def go_to_the_end(self, client_id: int) -> None:
        """If it waits, then at the end of the line from now on."""
        client = self._waiting.pop(client_id, None)
        if client is not None:
            self._waiting[client_id] = client

    def wake(self, count: int) -> None:
        """Wake the first `count` of the line."""
        for client in list(islice(self._waiting.values(), max(count, 0))):
            del self._waiting[client.id]
            self._woken.add(client.id)
            client.wake()
