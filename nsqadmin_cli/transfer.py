"""Moves messages from a channel to another place without loss: each is finished only after it has arrived. If a run
ends in between, messages in flight are delivered again, so there may be duplicates.
"""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nsqadmin_cli.cluster import Cluster, errors_of, values_of
from nsqadmin_cli.consumer import Consumer
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import NodeError
from nsqadmin_cli.output import note
from nsqadmin_cli.subscription import Received
from nsqadmin_cli.text import plural

_TICK = 0.2  # seconds
_IN_TRANSIT = 1.0  # seconds after which a message in flight is not one that is on its way here
_PATIENCE = 30.0  # seconds without a message where some wait


@dataclass
class Left:
    """The messages of a topic that nodes have for a channel: `waiting` ones, which can be delivered, and others."""

    waiting: int = 0
    in_flight: int = 0
    deferred: int = 0
    paused: list[str] = field(default_factory=list)
    errors: list[NodeError] = field(default_factory=list)


def look_at_rest(cluster: Cluster, topic: str, channel: str) -> Left:
    """Query all nodes."""
    found = cluster.ask(lambda node: node.stats(topic=topic))
    left = Left(errors=errors_of(found))
    for address, node in values_of(found).items():
        for one in node.topics:
            channels = [entry for entry in one.channels if entry.channel_name == channel]
            left.waiting += one.depth + sum(entry.depth for entry in channels)
            left.in_flight += sum(entry.in_flight_count for entry in channels)
            left.deferred += sum(entry.deferred_count for entry in channels)
            if one.paused and one.depth:
                left.paused.append(f"the topic {topic} is paused at {address}")
            left.paused += [f"the channel {channel} is paused at {address}" for one in channels if one.paused]
    return left


def transfer(
    consumer: Consumer,
    cluster: Cluster,
    topic: str,
    channel: str,
    deliver: Callable[[Sequence[Received]], Sequence[Received] | None],
    *,
    count: int | None,
    follow: bool,
) -> None:
    """Pass messages to `deliver`, and finish them when it returns, or only what it returns: at most `count`, and
    without `follow` no more than there are. AdminError if those do not arrive; KeyboardInterrupt also at SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    moved = 0
    kept: set[bytes] = set()  # ids of what is not finished, and goes back at the end
    last = time.monotonic()
    while count is None or moved < count:
        batch = consumer.receive(_TICK)[: None if count is None else count - moved]
        if batch:
            delivered = deliver(batch)
            done = batch if delivered is None else delivered
            consumer.finish(done)
            moved += len(batch)
            kept.update({message.id for message in batch} - {message.id for message in done})
            last = time.monotonic()
        elif not follow and _is_over(cluster, topic, channel, time.monotonic() - last, len(kept)):
            break


def _is_over(cluster: Cluster, topic: str, channel: str, idle: float, kept: int) -> bool:
    """Whether no more messages will arrive, after none has for `idle` seconds, with `kept` in flight here."""
    left = look_at_rest(cluster, topic, channel)
    in_flight = max(0, left.in_flight - kept)
    if left.errors:
        raise AdminError("; ".join(map(str, left.errors)))
    if left.waiting:
        if left.paused:
            raise AdminError(f"{plural(left.waiting, 'message')} cannot be delivered: {'; '.join(left.paused)}")
        if idle > _PATIENCE:
            raise AdminError(f"{plural(left.waiting, 'message')} not delivered: none arrived for {idle:.0f} s")
        return False
    if in_flight and idle < _IN_TRANSIT:
        return False
    if in_flight or left.deferred:
        note(f"Left in {topic} {channel}: {in_flight:,} in flight to others, {left.deferred:,} deferred")
    return True
