"""Expiry: messages that are older than --message-ttl are dropped instead of delivered."""

from time import time_ns

from gnsqd.queues.message import Message


class Expiry:
    """The age limit of a queue: `ttl` ns since the publication. `expired` counts the messages that were dropped."""

    def __init__(self, ttl: int) -> None:
        self._ttl = ttl
        self.expired = 0

    @property
    def horizon(self) -> int:
        """Messages published before this time (wall clock, ns) are too old."""
        return time_ns() - self._ttl

    def without_expired(self, messages: list[Message]) -> list[Message]:
        """Returns the messages that are not too old, and counts the others."""
        horizon = self.horizon
        fresh = [message for message in messages if message.timestamp >= horizon]
        self.expired += len(messages) - len(fresh)
        return fresh
