"""Orders to nodes about one topic or channel: who has it, what would be lost, doing it everywhere, and how it went.

It is looked before anything is done, so that nobody is asked about a topic that is nowhere, a node that does
not have it is left alone, and what is lost can be told. nsqlookupds go first when something is deleted: or else a
consumer that looks for its topic would be sent to a node that has just deleted it, and so make it anew.
"""

import enum
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Generic, Literal, TypeVar

from nsqadmin_cli.api import Lookupd, Nsqd, Peer
from nsqadmin_cli.cluster import Answers, Cluster, ask_all
from nsqadmin_cli.http_client import NodeError, Refused, timed_out
from nsqadmin_cli.models import ChannelStats, NodeStats, TopicStats

Action = Literal["create", "delete", "empty", "pause", "unpause"]
Share = TopicStats | ChannelStats
P = TypeVar("P", bound=Peer)

_ABSENT = ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND")


class Result(enum.StrEnum):
    """How it is with an order at one nsqd or nsqlookupd."""

    PLANNED = "planned"
    DONE = "done"
    ALREADY = "already"  # it was so before
    ABSENT = "absent"  # there is no such topic or channel
    FAILED = "failed"


@dataclass(slots=True)
class Outcome(Generic[P]):
    """One of those that an order is for; `share` is what a node had of the topic or channel shortly before."""

    peer: P
    result: Result
    error: NodeError | None = None
    share: Share | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be done; to the topic itself if `channel` is empty. `with_channels` is for emptying a topic."""

    action: Action
    topic: str
    channel: str = ""
    with_channels: bool = False

    def __str__(self) -> str:
        """What it is about, as in "nobody has ..."."""
        return f"the channel {self.channel} in the topic {self.topic}" if self.channel else f"the topic {self.topic}"

    @property
    def is_destructive(self) -> bool:
        return self.action in ("delete", "empty")

    def share_of(self, node: NodeStats) -> Share | None:
        """What a node has of the topic or channel."""
        topic = next((topic for topic in node.topics if topic.topic_name == self.topic), None)
        if topic is None or not self.channel:
            return topic
        return next((one for one in topic.channels if one.channel_name == self.channel), None)

    def losses(self, share: Share) -> dict[str, int]:
        """What is lost with `share`, named as in Totals; empty if the order does no harm.

        A topic that is emptied keeps what its channels have, a channel that is emptied its clients.
        """
        if not self.is_destructive:
            return {}
        if isinstance(share, TopicStats) and self.action == "empty" and not self.with_channels:
            return {"depth": share.depth}
        channels = share.channels if isinstance(share, TopicStats) else (share,)
        lost = {"channel_count": len(channels)} if self.action == "delete" and not self.channel else {}
        lost |= {
            "depth": sum(one.depth for one in channels) + (share.depth if isinstance(share, TopicStats) else 0),
            "in_flight_count": sum(one.in_flight_count for one in channels),
            "deferred_count": sum(one.deferred_count for one in channels),
        }
        return lost | ({"client_count": sum(one.client_count for one in channels)} if self.action == "delete" else {})


def losses_of(order: Order, outcome: Outcome[Nsqd]) -> dict[str, int]:
    """What is lost on a node if the order is done or to be done there, else nothing."""
    if outcome.share is None or outcome.result not in (Result.PLANNED, Result.DONE):
        return {}
    return order.losses(outcome.share)


def sum_of_losses(order: Order, outcomes: Iterable[Outcome[Nsqd]]) -> dict[str, int]:
    lost: dict[str, int] = {}
    for outcome in outcomes:
        for key, number in losses_of(order, outcome).items():
            lost[key] = lost.get(key, 0) + number
    return lost


def plan_for_nodes(cluster: Cluster, order: Order, nodes: Sequence[Nsqd]) -> list[Outcome[Nsqd]]:
    """What the order means for each of `nodes`, by a look at them."""
    # A channel that is created where the topic is not would make no sense, so that look has to show the topic.
    channel = "" if order.action == "create" else order.channel
    answers = cluster.ask(partial(Nsqd.stats, topic=order.topic, channel=channel), nodes)
    outcomes: list[Outcome[Nsqd]] = []
    for node in nodes:
        answer = answers[node.address]
        if isinstance(answer, NodeError):
            outcomes.append(Outcome(node, Result.FAILED, answer))
        else:
            share = order.share_of(answer)
            has_topic = any(topic.topic_name == order.topic for topic in answer.topics)
            outcomes.append(Outcome(node, _result(order, share, has_topic=has_topic), share=share))
    return outcomes


def _result(order: Order, share: Share | None, *, has_topic: bool) -> Result:
    if order.action == "create":
        if share is not None:
            return Result.ALREADY
        return Result.PLANNED if has_topic or not order.channel else Result.ABSENT
    if share is None:
        return Result.ABSENT
    if order.action in ("pause", "unpause") and share.paused == (order.action == "pause"):
        return Result.ALREADY
    return Result.PLANNED


def plan_for_lookupds(cluster: Cluster, order: Order) -> list[Outcome[Lookupd]]:
    """What the order means for each nsqlookupd; these have to do only with what comes into being or goes."""
    if order.action not in ("create", "delete"):
        return []

    def lists(lookupd: Lookupd) -> bool:
        return order.channel in lookupd.channels(order.topic) if order.channel else order.topic in lookupd.topics()

    outcomes: list[Outcome[Lookupd]] = []
    answers = cluster.ask_lookupds(lists)
    for lookupd in cluster.lookupds:
        answer = answers[lookupd.address]
        if isinstance(answer, NodeError):
            outcomes.append(Outcome(lookupd, Result.FAILED, answer))
        elif answer == (order.action == "delete"):
            outcomes.append(Outcome(lookupd, Result.PLANNED))
        else:
            outcomes.append(Outcome(lookupd, Result.ALREADY if answer else Result.ABSENT))
    return outcomes


def do_at_lookupds(cluster: Cluster, order: Order, outcomes: Sequence[Outcome[Lookupd]]) -> None:
    """Do what is planned; `outcomes` say afterwards how it went."""

    def done(lookupd: Lookupd) -> None:
        assert order.action in ("create", "delete")
        if order.channel:
            lookupd.channel(order.action, order.topic, order.channel)
        else:
            lookupd.topic(order.action, order.topic)

    do_planned(cluster, outcomes, done)


def do_on_nodes(cluster: Cluster, order: Order, outcomes: Sequence[Outcome[Nsqd]]) -> None:
    """Do what is planned; `outcomes` say afterwards how it went."""
    shares = {outcome.peer.address: outcome.share for outcome in outcomes}

    def done(node: Nsqd) -> None:
        if order.channel:
            node.channel(order.action, order.topic, order.channel)
            return
        node.topic(order.action, order.topic)
        share = shares[node.address]
        if order.with_channels and isinstance(share, TopicStats):
            for channel in share.channels:
                _empty_channel(node, order.topic, channel.channel_name)

    with _progress(order, len(outcomes)) as advance:
        do_planned(cluster, outcomes, done, advance)


def _empty_channel(node: Nsqd, topic: str, channel: str) -> None:
    try:
        node.channel("empty", topic, channel)
    except UnicodeEncodeError:
        reason = "answered JSON that is not an nsqd's: no channel can have such a name"
        raise NodeError(node.program, node.address, reason) from None


def do_planned(
    cluster: Cluster,
    outcomes: Sequence[Outcome[P]],
    done: Callable[[P], None],
    advance: Callable[[int], None] = lambda count: None,
) -> None:
    """Call `done` for all whose result is PLANNED; `outcomes` say afterwards how it went."""

    def asked(peer: P) -> None:
        try:
            done(peer)
        finally:
            advance(1)

    planned = [outcome for outcome in outcomes if outcome.result is Result.PLANNED]
    answers: Answers[None] = ask_all([outcome.peer for outcome in planned], asked, cluster.timeout)
    for outcome in planned:
        answer = answers[outcome.peer.address]
        if not isinstance(answer, NodeError):
            outcome.result = Result.DONE
        elif isinstance(answer, Refused) and answer.code in _ABSENT:
            outcome.result = Result.ABSENT  # somebody else was faster
        else:
            outcome.result = Result.FAILED
            outcome.error = _perhaps_done(answer, cluster.timeout)


def _perhaps_done(error: NodeError, timeout: float) -> NodeError:
    """A daemon that was told to do something goes on when nobody waits for its answer any more."""
    if error.reason != timed_out(timeout):
        return error
    return NodeError(error.program, error.address, f"{error.reason}; it may be done nevertheless")


def _progress(order: Order, count: int) -> AbstractContextManager[Callable[[int], None]]:
    if not sys.stderr.isatty():
        return nullcontext(lambda done: None)
    from nsqadmin_cli.render.progress import progress  # not before it is wanted: what it needs loads slowly

    doing = {"create": "creating", "delete": "deleting", "empty": "emptying", "pause": "pausing"}
    return progress(f"{doing.get(order.action, 'unpausing')} {order}", total=count, unit="nodes")
