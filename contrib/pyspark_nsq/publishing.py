"""Publishes the messages of a task: which nsqd takes them, and what happens when it doesn't.

A task talks to one nsqd at a time, each task beginning with another one. A batch that it does not take, or where no
answer came, is offered to all of them in turn, again and again until `retry_timeout` is over. So a batch may be
published twice, or the first part of it: delivery is at least once, as is Spark's own when it runs a task again.
"""

import random
import time
from collections.abc import Callable

from pyspark_nsq.client import SourceClient
from pyspark_nsq.discovery import KnownNsqd, find_nsqds
from pyspark_nsq.errors import ConnectionLost, DiscoveryError, NotAgreed, NsqSourceError, Refused, WriteError
from pyspark_nsq.message_batches import MessageBatch
from pyspark_nsq.options import Settings

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds between rounds
# What every nsqd would answer: the message is to blame.
_FINAL = frozenset({"E_BAD_TOPIC", "E_BAD_MESSAGE", "E_BAD_BODY", "E_INVALID"})


class TaskPublisher:
    """Owns the connection of a task. `start` is the number of the nsqd to begin with, modulo their number."""

    def __init__(self, settings: Settings, start: int = 0) -> None:
        self._settings = settings
        self._start = start
        self._nsqds: list[KnownNsqd] = []  # the next one to try is the first
        self._client: SourceClient | None = None

    def publish(self, batch: MessageBatch) -> None:
        """Returns when an nsqd has taken all of them. Raises WriteError if none does, Refused if none ever will."""
        self._until_done(
            lambda client: client.publish_joined(batch.topic, batch.data, batch.messages, batch.defer_ms),
            f"no nsqd takes {batch.messages} messages for topic {batch.topic}",
        )

    def connect(self) -> None:
        """Returns when an nsqd could be reached. Raises WriteError if none can."""
        self._until_done(lambda client: None, "no nsqd can be reached")

    def _until_done(self, action: Callable[[SourceClient], None], failure: str) -> None:
        if self._client is not None:
            try:
                action(self._client)
                return
            except (ConnectionLost, Refused) as error:
                self._forget(error)
        deadline = time.monotonic() + self._settings.retry_timeout
        pause = _FIRST_PAUSE
        while errors := self._offer(action):
            if time.monotonic() + pause > deadline or all(map(_is_lasting, errors)):
                reasons = "; ".join(sorted(set(map(str, errors))))
                raise WriteError(f"{failure}: {reasons}")
            time.sleep(pause * random.uniform(0.5, 1.0))  # not all tasks at once
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _offer(self, action: Callable[[SourceClient], None]) -> list[NsqSourceError]:
        """Tries each nsqd once, until the action succeeds with one; returns no errors then."""
        try:
            self._find()
        except DiscoveryError as error:
            return [error]
        errors: list[NsqSourceError] = []
        for nsqd in list(self._nsqds):
            try:
                self._client = SourceClient.connect(nsqd.tcp, self._settings)
                action(self._client)
                return []
            except (ConnectionLost, NotAgreed, Refused) as error:
                self._forget(error)
                errors.append(error)
                self._nsqds.append(self._nsqds.pop(0))
        return errors

    def _find(self) -> None:
        """Asks again, since there may be others by now; the one that served last stays the first."""
        found = find_nsqds(self._settings)
        if not found:
            raise DiscoveryError("there is no nsqd to write to")
        ahead = self._nsqds[0] if self._nsqds else None
        turn = found.index(ahead) if ahead in found else self._start % len(found)
        self._nsqds = found[turn:] + found[:turn]

    def _forget(self, error: NsqSourceError) -> None:
        self.close()
        if isinstance(error, Refused) and error.code in _FINAL:
            raise error

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _is_lasting(error: NsqSourceError) -> bool:
    """Returns True if trying again will not help, though another nsqd may have answered differently."""
    return isinstance(error, NotAgreed) or (isinstance(error, Refused) and error.code == "E_UNAUTHORIZED")
