"""The messages of a channel that were delivered max-attempts times, on their way to the dead-letter topic."""

from collections.abc import Iterator
from itertools import islice
from time import time_ns

from gnsqd.queues.message import Message

MAX_ASIDE = 1024  # messages; beyond that they are requeued


class SetAside:
    """Owns them, the oldest first, each with why and when (wall clock, ns) it died. `max_attempts` of 0: there are
    never any."""

    def __init__(self, max_attempts: int) -> None:
        self._max_attempts = max_attempts
        self._messages: dict[Message, tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def add(self, messages: list[Message], reason: str) -> list[Message]:
        """Set aside those that were delivered as often as that; the others."""
        if not self._max_attempts:
            return messages
        others = []
        for message in messages:
            if message.attempts < self._max_attempts or len(self._messages) >= MAX_ASIDE:
                others.append(message)
            else:
                self._messages[message] = (reason, time_ns())
        return others

    def look(self, limit: int, max_bytes: int) -> list[tuple[Message, str, int]]:
        """The first: at most `limit` messages, together at most `max_bytes` but for a single larger one."""
        found: list[tuple[Message, str, int]] = []
        for message, (reason, died) in islice(self._messages.items(), limit):
            max_bytes -= len(message.frame)
            if found and max_bytes < 0:
                break
            found.append((message, reason, died))
        return found

    def remove(self, messages: list[Message]) -> list[Message]:
        """Those that were there until now."""
        return [message for message in messages if self._messages.pop(message, None) is not None]

    def clear(self) -> list[Message]:
        """All that were there until now."""
        messages = list(self._messages)
        self._messages.clear()
        return messages
