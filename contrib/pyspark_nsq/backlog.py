"""Messages queued in the nsqds, for the planner of a stream: where topics are, and how much is in them.

On an nsqd that has a topic but not the channel, the channel is made: the topic's backlog moves over, and what is
published from then on gets there. Until then the topic's own depth is the backlog.
"""

import logging
import time
from collections.abc import Iterable, Mapping

from pyspark_nsq.client import Client
from pyspark_nsq.discovery import Depth, Nsqd, depths
from pyspark_nsq.errors import ConnectionLost, DiscoveryError
from pyspark_nsq.nodes import Nodes
from pyspark_nsq.offsets import Key, Offset
from pyspark_nsq.options import Settings
from pyspark_nsq.spool import Spool

_LOOK_INTERVAL = 0.25  # seconds between looks while nothing waits
_MSG_TIMEOUT = 60.0  # seconds, nsqd's default
_SCAN = 5.0  # seconds, more than nsqd needs to notice a timeout
_LOOKS_WITH_OTHERS = 3  # in a row, until a warning
_VAIN_BATCHES = 3  # that bring nothing, before a drain gives up the messages there

_log = logging.getLogger(__name__)


class Backlog:
    """What is known of the nsqds; `depths` are what the last look saw."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.nodes = Nodes(settings)
        self._looked = float("-inf")
        self._reached = False  # at a TCP address
        self._others: dict[Key, int] = {}  # in how many looks in a row there were consumers
        self.depths: dict[Key, Depth] = {}

    def look(self, before: Offset) -> dict[Key, int]:
        """How many messages wait for the channel, after the batch `before`.

        DiscoveryError if it is unknown where the topics are; for a new stream DiscoveryError or ConnectionLost if no
        nsqd answers; Refused if an nsqd does not let us make the channel.
        """
        if not any(at.waiting for at in self.depths.values()):
            time.sleep(max(0.0, self._looked + _LOOK_INTERVAL - time.monotonic()))
        answers = self.nodes.ask(lambda nsqd: depths(self._settings, nsqd), before.nsqds.values())
        self._looked = time.monotonic()
        if self.nodes.known and not answers and before.batch == 0:
            errors = sorted(silence.error for silence in self.nodes.silent.values())
            raise DiscoveryError(f"no nsqd answers: {'; '.join(errors)}")
        if before.batch == 0 and answers and not self._reached:
            self._reach(answers)
        self.depths = {(topic, nsqd.name): at for nsqd, found in answers.items() for topic, at in found.items()}
        for nsqd, found in answers.items():
            for topic, at in found.items():
                self._warn_of_others((topic, nsqd.name), at.consumers)
                if not at.channel_exists and nsqd in self.nodes.listed.get(topic, self.nodes.listed.get("", ())):
                    self._make_channel(topic, nsqd)
        return {key: at.waiting for key, at in self.depths.items()}

    def _warn_of_others(self, key: Key, consumers: int) -> None:
        """No task of the stream runs when its next batch is planned; one that is just leaving is seen in one look."""
        looks = self._others[key] = self._others.get(key, 0) + 1 if consumers else 0
        if looks == _LOOKS_WITH_OTHERS:
            _log.warning(
                "channel %s of topic %s at nsqd %s has %d other consumers: they take a share of the messages, which "
                "this stream never sees. Give each stream a channel of its own",
                self._settings.channel,
                *key,
                consumers,
            )

    def _reach(self, nsqds: Iterable[Nsqd]) -> None:
        """ConnectionLost if none can be reached at its TCP address, which may be wrong if the stream is new."""
        errors = []
        for nsqd in nsqds:
            try:
                Client.connect(nsqd.tcp, self._settings).close()
                self._reached = True
                return
            except ConnectionLost as error:
                errors.append(error)
        raise errors[0]

    def _make_channel(self, topic: str, nsqd: Nsqd) -> None:
        try:
            with Client.connect(nsqd.tcp, self._settings) as client:
                client.subscribe(topic, self._settings.channel)
        except ConnectionLost as error:
            _log.warning("%s", error)


class Drain:
    """Reads, with the trigger availableNow, as many messages as were there at the first look, wherever they were.

    A batch may bring fewer than planned, while others hold messages in flight; those are planned again. nsqd gives
    what was in flight to a task that died to nobody else before it has timed out: the end of the drain waits for that.
    What is deferred is not waited for.
    """

    def __init__(self, backlog: Backlog, msg_timeout_ms: int | None) -> None:
        self._backlog = backlog
        self.wait = _SCAN + (_MSG_TIMEOUT if msg_timeout_ms is None else msg_timeout_ms / 1000)
        self._is_new = True
        self._left: dict[Key, int] = {}
        self._vain: dict[Key, int] = {}
        self._planned: tuple[int, Mapping[Key, int]] = (0, {})

    def look(self, before: Offset, spool: Spool | None) -> dict[Key, int]:
        """Returns how many messages of the drain wait, after the batch `before`; all 0 when it is over. DiscoveryError
        as `Nodes.check_silent`, at its begin and end."""
        deadline = time.monotonic() + self.wait
        self._backlog.look(before)
        if self._is_new:
            self._backlog.nodes.check_silent()
            self._is_new = False
            self._left = {key: at.channel + at.topic + at.in_flight + at.deferred for key, at in self._depths()}
        else:
            self._account(before, spool)
        again = any(self._left.values())
        while not any((waiting := self._waiting()).values()):
            held = any(self._left.get(key) and at.in_flight for key, at in self._depths())
            if not again and not (held and time.monotonic() < deadline):
                break
            again = False  # a message on its way back to the queue may have been overlooked
            self._backlog.look(before)
        if not any(waiting.values()):
            self._backlog.nodes.check_silent()
        return waiting

    def plan(self, batch: int, counts: Mapping[Key, int]) -> None:
        """These are to be read by that batch."""
        self._planned = batch, {key: count for key, count in counts.items() if count}

    def _depths(self) -> list[tuple[Key, Depth]]:
        return [(key, at) for key, at in self._backlog.depths.items() if not at.paused]

    def _waiting(self) -> dict[Key, int]:
        return {
            key: min(at.waiting, self._left.get(key, 0)) if self._vain.get(key, 0) < _VAIN_BATCHES else 0
            for key, at in self._backlog.depths.items()
        }

    def _account(self, before: Offset, spool: Spool | None) -> None:
        """Subtracts what the batch planned last has read, if it is the batch `before`."""
        batch, counts = self._planned
        self._planned = 0, {}
        if batch != before.batch:
            return
        # Of a batch that is committed the spool may have forgotten the segments.
        read = spool.messages(batch) if spool is not None and batch > spool.committed() else counts
        for key, count in counts.items():
            taken = min(count, read.get(key, 0))
            self._left[key] -= taken
            self._vain[key] = 0 if taken else self._vain.get(key, 0) + 1
