"""Topology: how near consumers are, where the daemon has a zone or a region (NSQD-COMPAT section 11)."""

from operator import attrgetter
from typing import Any

from gnsqd.broker.channel import Channel, WaitingConsumers
from gnsqd.broker.environment import Consumer
from gnsqd.options import TOPOLOGY_AWARE
from gnsqd.queues.message import Message

_rank = attrgetter("rank")


class NearestFirst(WaitingConsumers):
    """Wakes the consumers with the lowest rank first, those of a rank in the order of the line."""

    def wake(self, count: int) -> None:
        self.line = dict.fromkeys(sorted(self.line, key=_rank))
        super().wake(count)


class TopologyChannel(Channel):
    """Counts the messages from memory by their consumers, also those outside a consumer's sample, as nsqd does: in the
    zone of this nsqd, in its region, or elsewhere. With the experiment, the nearest consumers are woken first."""

    def __init__(self, topic_name: str, name: str, environment: Any, *others: Any) -> None:
        super().__init__(topic_name, name, environment, *others)
        self.local_counts = [0, 0, 0]
        if TOPOLOGY_AWARE in environment.options.experiments:
            self.waiting = NearestFirst()
        self.on_taken = self._count

    def _count(self, client: Consumer, messages: list[Message]) -> None:
        if self.queue.backend_next:  # they were in memory
            self.local_counts[client.locality] += len(messages)
