"""The statistics of topics and channels in /stats: a field for each, whose metadata is its row. From these the daemon
makes /stats, the pushes to statsd and /metrics, and gnsqadmin what it reads, sums up and shows."""

from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from functools import partial
from typing import Any


class StatKind(Enum):
    """COUNTER only grows, GAUGE goes both ways."""

    COUNTER = "counter"
    GAUGE = "gauge"


def _figure(kind: StatKind, metric: str, meaning: str, statsd: str | None = None, default: Any = MISSING) -> Any:
    """Returns a field. `metric` is the name in Prometheus without prefix and `_total`, `statsd` the name in a push:
    that of the field if None, and not pushed if empty. A figure that the real nsqd lacks needs a `default`."""
    return field(default=default, metadata={"kind": kind, "metric": metric, "meaning": meaning, "statsd": statsd})


_counter, _gauge = partial(_figure, StatKind.COUNTER), partial(_figure, StatKind.GAUGE)


# In the order of /stats (NSQD-COMPAT 5.3).
@dataclass(frozen=True, slots=True)
class TopicFigures:
    """One topic: of one node, or summed over several."""

    topic_name: str
    depth: int = _gauge("depth", "Messages that no channel has yet, in memory and on disk.")
    backend_depth: int = _gauge("backend_depth", "Messages that no channel has yet, on disk.")
    message_count: int = _counter("messages", "Messages published since the daemon started.")
    message_bytes: int = _counter("message_bytes", "Bytes of the messages published since the daemon started.")
    paused: bool = _gauge("paused", "Whether the topic is paused (1) or not (0).", "")


@dataclass(frozen=True, slots=True)
class ChannelFigures:
    """One channel: of one node, or summed over several."""

    channel_name: str
    depth: int = _gauge("depth", "Queued messages, in memory and on disk, without in-flight and deferred ones.")
    backend_depth: int = _gauge("backend_depth", "Queued messages on disk.")
    in_flight_count: int = _gauge("in_flight", "Messages sent to a client that has not finished them yet.")
    deferred_count: int = _gauge("deferred", "Deferred messages.")
    message_count: int = _counter("messages", "Messages put into the channel since the daemon started.")
    requeue_count: int = _counter("requeues", "Messages requeued by clients.")
    timeout_count: int = _counter("timeouts", "Messages requeued because a client did not answer in time.")
    client_count: int = _gauge("clients", "Clients subscribed.", "clients")
    paused: bool = _gauge("paused", "Whether the channel is paused (1) or not (0).", "")


# Advice of doctor, and of the daemon at /queues.
PAUSED = "its consumers get no messages"
START_CONSUMERS = "Start its consumers, or find out why they cannot connect."
NO_CHANNEL = "Start a consumer, which creates its channel; or create a channel"
RDY_ZERO = (
    "They have sent no RDY, are in backoff after failures, are shutting down, or their max_in_flight is smaller than "
    "the number of nodes; see their logs."
)
HANGS = "It hangs or does not finish messages. See the consumer's log"
REQUEUED = "Processing fails; see the consumers' logs."
TIMED_OUT = (
    "Processing takes longer than the msg-timeout of the consumers or the node. Consumers can TOUCH messages, set a "
    "longer msg_timeout, or reduce max_in_flight."
)


def counts_of(kind: type) -> tuple[str, ...]:
    """Returns the names of the figures that can be summed up over nodes."""
    return tuple(one.name for one in fields(kind) if one.type is int)
