"""Messages queued in the nsqds, for the planner of a stream: where topics are, and how much is in them.

On an nsqd that has a topic but not the channel, the channel is made: the topic's backlog moves over, and what is
published from then on gets there. Until then the topic's own depth is the backlog.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark_nsq.client import SourceClient
from pyspark_nsq.discovery import Depth, KnownNsqd, depths
from pyspark_nsq.errors import ConnectionLost, DiscoveryError
from pyspark_nsq.nodes import Key, Nodes, Pace
from pyspark_nsq.options import Settings

_MSG_TIMEOUT = 60.0  # seconds, nsqd's default
_SCAN = 5.0  # seconds, more than nsqd needs to notice a timeout
_LOOKS_WITH_OTHERS = 3  # in a row, until a warning
_VAIN_BATCHES = 3  # that bring nothing, before a drain gives up the messages there

_log = logging.getLogger(__name__)


class Backlog:
    """Knows the nsqds; `depths` are what the last look saw."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.nodes = Nodes(settings)
        self.pace = Pace(settings)
        self._reached = False  # at a TCP address
        self._others: dict[Key, int] = {}  # in how many looks in a row there were consumers
        self.depths: dict[Key, Depth] = {}

    def look(self, is_new: bool = False) -> dict[Key, int]:
        """Returns how many messages wait for the channel, after a pause unless `pace` has none.

        Raises DiscoveryError if it is unknown where the topics are; raises DiscoveryError or ConnectionLost if the
        stream is new and no nsqd answers; Refused if an nsqd does not let us make the channel."""
        self.pace.wait()
        answers = self.nodes.ask(lambda nsqd: depths(self._settings, nsqd))
        self.pace.looked(is_new=False)
        if self.nodes.known and not answers and is_new:
            errors = sorted(silence.error for silence in self.nodes.silent.values())
            raise DiscoveryError(f"no nsqd answers: {'; '.join(errors)}")
        if answers and is_new and not self._reached:
            self._reach(answers)
        self.depths = {(topic, nsqd.name): at for nsqd, found in answers.items() for topic, at in found.items()}
        for nsqd, found in answers.items():
            for topic, at in found.items():
                self._warn_of_others((topic, nsqd.name), at.consumers)
                if not at.channel_exists and nsqd in self.nodes.listed.get(topic, self.nodes.listed.get("", ())):
                    self._make_channel(topic, nsqd)
        return {key: at.waiting for key, at in self.depths.items()}

    def _warn_of_others(self, key: Key, consumers: int) -> None:
        """Warns of consumers seen in several looks: the stream has none then, and one that is leaving is seen once."""
        looks = self._others[key] = self._others.get(key, 0) + 1 if consumers else 0
        if looks == _LOOKS_WITH_OTHERS:
            _log.warning(
                "channel %s of topic %s at nsqd %s has %d other consumers: they take a share of the messages, which "
                "this stream never sees. Give each stream a channel of its own",
                self._settings.channel,
                *key,
                consumers,
            )

    def _reach(self, nsqds: Iterable[KnownNsqd]) -> None:
        """Raises ConnectionLost if none can be reached at its TCP address, which may be wrong if the stream is new."""
        errors = []
        for nsqd in nsqds:
            try:
                SourceClient.connect(nsqd.tcp, self._settings).close()
                self._reached = True
                return
            except ConnectionLost as error:
                errors.append(error)
        raise errors[0]

    def _make_channel(self, topic: str, nsqd: KnownNsqd) -> None:
        try:
            with SourceClient.connect(nsqd.tcp, self._settings) as client:
                client.subscribe(topic, self._settings.channel)
        except ConnectionLost as error:
            _log.warning("%s", error)

    def report(self, taken: Mapping[Key, int]) -> dict[str, Any]:
        """Returns what Spark shows as the latest offset of its progress, by topic and nsqd: queued messages, without
        the ones `taken` by the batch, and messages in flight to others when it was planned."""
        unread: dict[str, dict[str, int]] = {}
        in_flight: dict[str, dict[str, int]] = {}
        for (topic, name), at in self.depths.items():
            unread.setdefault(topic, {})[name] = max(0, at.waiting - taken.get((topic, name), 0))
            in_flight.setdefault(topic, {})[name] = at.in_flight
        return {"unread": unread, "in_flight": in_flight}


class BacklogDrain:
    """Reads, with the trigger availableNow, as many messages as were there at the first look, wherever they were.

    nsqd gives what was in flight to a process that died to nobody else before it has timed out: the end of the drain
    waits for that. What is deferred is not waited for.
    """

    def __init__(self, backlog: Backlog, msg_timeout_ms: int | None) -> None:
        self._backlog = backlog
        self.wait = _SCAN + (_MSG_TIMEOUT if msg_timeout_ms is None else msg_timeout_ms / 1000)
        self._left: dict[Key, int] | None = None
        self._vain: dict[Key, int] = {}  # batches in a row that brought nothing
        self._missed: dict[str, str] = {}  # nsqds that answer, but cannot be reached to consume, and why

    def look(self, is_new: bool) -> dict[Key, int]:
        """Returns how many messages of the drain wait; all 0 when it is over. Raises DiscoveryError as
        `Nodes.check_silent`, at its begin and end."""
        deadline = time.monotonic() + self.wait
        self._backlog.look(is_new)
        if self._left is None:
            self._backlog.nodes.check_silent()
            self._left = {key: at.channel + at.topic + at.in_flight + at.deferred for key, at in self._depths()}
        again = any(self._left.values())
        while not any((waiting := self._waiting(self._left)).values()):
            held = any(self._left.get(key) and at.in_flight for key, at in self._depths())
            if not again and not (held and time.monotonic() < deadline):
                self._backlog.nodes.check_silent(missed=self._missed.values())
                break
            again = False  # a message on its way back to the queue may have been overlooked
            self._backlog.look()
        return waiting

    def took(self, planned: Mapping[Key, int], taken: Mapping[Key, int], missed: Mapping[str, str]) -> None:
        """Subtracts what a batch has brought of what it was `planned` to; `missed` nsqds could not be reached."""
        for _, name in planned:
            self._missed.pop(name, None)
        self._missed |= missed
        for key, count in planned.items():
            if count and self._left is not None:
                self._left[key] -= taken.get(key, 0)
                self._vain[key] = 0 if taken.get(key) else self._vain.get(key, 0) + 1

    def _depths(self) -> list[tuple[Key, Depth]]:
        return [(key, at) for key, at in self._backlog.depths.items() if not at.paused]

    def _waiting(self, left: Mapping[Key, int]) -> dict[Key, int]:
        return {
            key: min(at.waiting, left.get(key, 0)) if self._vain.get(key, 0) < _VAIN_BATCHES else 0
            for key, at in self._backlog.depths.items()
        }
