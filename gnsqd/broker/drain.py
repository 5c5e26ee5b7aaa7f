"""The drain: publishers are refused, consumers take the remaining messages, and then the daemon exits.

It lasts until no queue has queued, in-flight or deferred messages, or until its time is over. Queues may be checked one
by one because an empty one stays empty: only publishers put messages into a topic, and only its topic into a channel.
Dead letters come from other channels, so their topics are checked last.
"""

from collections.abc import Callable, Iterator, Sized
from heapq import nlargest
from operator import attrgetter
from time import monotonic
from typing import NamedTuple

from gevent import Greenlet, sleep

from gnsqd.broker.dead_letter_format import is_dead_letter_topic
from gnsqd.broker.registry import Registry
from gnsqd.broker.topic import Topic
from gnsqd.gotext import format_duration
from gnsqd.hub.cooperative import Spawn, Turns
from gnsqd.log import Logger
from gnsqd.options import SECOND

POLL_SECONDS = 0.1
REPORT_SECONDS = 5.0
SHOWN = 10  # queues in a report

_messages = attrgetter("messages")


class Holder(NamedTuple):
    """A queue that is not empty."""

    topic: str
    channel: str  # "" for a topic's queue
    messages: int
    remark: str  # a reason why it may stay so

    def __str__(self) -> str:
        name = f"{self.topic}:{self.channel}" if self.channel else self.topic
        return f"{name} {self.messages}{f' ({self.remark})' if self.remark else ''}"


class Drain:
    """Owns the drain's state. `finish()` is called when all queues are empty, or after `timeout` ns."""

    def __init__(self, registry: Registry, timeout: int, log: Logger, spawn: Spawn, finish: Callable[[], None]) -> None:
        self._registry = registry
        self._timeout = timeout
        self._log = log
        self._spawn = spawn
        self._finish = finish
        self._deadline = 0.0
        self._loop: Greenlet[..., None] | None = None

    def start(self) -> None:
        """Starts the drain, unless it is running. Never yields."""
        if self._loop is None:
            self._registry.set_draining(True)
            self._deadline = monotonic() + self._timeout / SECOND
            self._log.info(
                "DRAIN: refusing new messages; exit when all queues are empty, after %s at most",
                format_duration(self._timeout),
            )
            self._loop = self._spawn("drainLoop", self.drain_loop)

    def cancel(self) -> None:
        """Ends the drain: the daemon accepts messages again. Never yields."""
        if self._loop is not None:
            self.stop()
            self._registry.set_draining(False)
            self._log.info("DRAIN: cancelled")

    def stop(self) -> None:
        """Stops the loop, for the daemon's exit. Never yields."""
        if self._loop is not None:
            self._loop.kill(block=False)
            self._loop = None

    def drain_loop(self) -> None:
        next_report = monotonic()
        while next(self._holders(), None) is not None:
            now = monotonic()
            if now >= self._deadline:
                self._log.warn("DRAIN: timed out with %s", self._report())
                break
            if now >= next_report:
                self._log.info("DRAIN: waiting for %s", self._report())
                next_report = now + REPORT_SECONDS
            sleep(min(POLL_SECONDS, self._deadline - now))
        else:
            self._log.info("DRAIN: all queues are empty")
        if self._registry.draining:  # and not cancelled a moment ago
            self._finish()

    def state(self) -> dict[str, object]:
        """Returns the answer of `/drain`: `remaining` is in ns, `holding` names the fullest queues. May yield."""
        holders = list(self._holders())
        draining = self._registry.draining
        return {
            "draining": draining,
            "remaining": max(int((self._deadline - monotonic()) * SECOND), 0) if draining else 0,
            "messages": sum(map(_messages, holders)),
            "holding": [holder._asdict() for holder in nlargest(SHOWN, holders, key=_messages)],
        }

    def _report(self) -> str:
        holders = list(self._holders())
        fullest = ", ".join(map(str, nlargest(SHOWN, holders, key=_messages)))
        more = f", and {len(holders) - SHOWN} more" if len(holders) > SHOWN else ""
        return f"{sum(map(_messages, holders))} messages in {len(holders)} queues: {fullest}{more}"

    def _topics(self) -> Iterator[Topic]:
        """Yields the topics; dead-letter topics, new ones included, after the topics whose messages move there."""
        for dead in (False, True):
            yield from [topic for topic in self._registry.topics.values() if is_dead_letter_topic(topic.name) == dead]

    def _holders(self) -> Iterator[Holder]:
        turns = Turns()
        for topic in turns.over(self._topics()):
            if messages := topic.depth:
                yield Holder(topic.name, "", messages, _remark(topic.paused, topic.channels, "no channel"))
            for channel in turns.over(list(topic.channels.values())):
                if messages := channel.depth + len(channel.in_flight) + channel.deferred_count:
                    remark = _remark(channel.paused, channel.clients, "no consumer")
                    yield Holder(topic.name, channel.name, messages, remark)


def _remark(paused: bool, takers: Sized, none: str) -> str:
    return "paused" if paused else "" if takers else none
