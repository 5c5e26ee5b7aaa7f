"""A snapshot of all nodes' statistics, and the changes since the previous one."""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from nsqadmin_cli.address import Address
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.cluster import Answers, Cluster, errors_of, values_of
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import NodeError
from nsqadmin_cli.models import ChannelStats, ClientStats, NodeStats, TopicStats
from nsqadmin_cli.output import not_found
from nsqadmin_cli.table import as_json
from nsqadmin_cli.text import suggestion
from nsqadmin_cli.totals import Flow, Key, Totals, flows


@dataclass
class Snapshot:
    """One snapshot. `clock` is in unix seconds, `moment` monotonic; there are flows if there was a snapshot before."""

    answers: Answers[NodeStats]
    lookupd_errors: list[NodeError]
    before: "Snapshot | None" = None
    clock: float = field(default_factory=time.time)
    moment: float = field(default_factory=time.monotonic)
    flows: dict[Key, Flow] | None = None
    latest: dict[Address, NodeStats] = field(
        default_factory=dict
    )  # the last answer of each node, from this snapshot or before

    def __post_init__(self) -> None:
        self.latest = self.nodes
        if self.before is not None:
            self.flows = flows(self.before.latest, self.nodes)
            self.latest = self.before.latest | self.nodes
            self.before = None  # or each snapshot would keep all previous ones

    @cached_property
    def nodes(self) -> dict[Address, NodeStats]:
        """The nodes that answered."""
        return values_of(self.answers)

    @cached_property
    def totals(self) -> Totals:
        return Totals.over(self.nodes.values())

    @cached_property
    def topic_shares(self) -> dict[str, dict[Address, TopicStats]]:
        """Each topic on each node that has it."""
        found: dict[str, dict[Address, TopicStats]] = {}
        for address, node in self.nodes.items():
            for topic in node.topics:
                found.setdefault(topic.topic_name, {})[address] = topic
        return found

    @cached_property
    def channel_shares(self) -> dict[Key, dict[Address, ChannelStats]]:
        """Each channel, by topic and name, on each node that has it."""
        found: dict[Key, dict[Address, ChannelStats]] = {}
        for address, node in self.nodes.items():
            for topic in node.topics:
                for channel in topic.channels:
                    found.setdefault((topic.topic_name, channel.channel_name), {})[address] = channel
        return found

    @property
    def errors(self) -> list[NodeError]:
        return [*self.lookupd_errors, *errors_of(self.answers)]


def every(seconds: float | None, count: int | None = None) -> Iterator[int]:
    """Numbers of snapshots from 0 on, `seconds` apart: `count` of them, one without `seconds`.

    After a slow snapshot, the next one waits for at least half of `seconds`: rates over less are not meaningful.
    """
    due = time.monotonic()
    for number in itertools.count():
        yield number
        if seconds is None or number + 1 == count:
            return
        now = time.monotonic()
        due = due + seconds if due + seconds / 2 > now else now + seconds
        time.sleep(due - now)


def require(cluster: Cluster, seen: Snapshot, topic: str, channel: str = "") -> None:
    """Raise unless a node has the topic or channel of the options (empty: none), or no node answered."""
    names = [name for name in seen.channel_shares if channel == name[1]] if channel else seen.topic_shares
    if seen.nodes and (topic or channel) and not names:
        raise no_such(cluster, seen.errors, topic, channel)


def no_such(cluster: Cluster, errors: Sequence[AdminError], topic: str, channel: str = "") -> AdminError:
    """The error if no node has a topic, or a channel of it or of any; it suggests the most similar name."""
    of = f" in the topic {topic}" if topic else ""
    what = f"the channel {channel}{of}" if channel else f"the topic {topic}"
    if errors:  # those nodes are not waited for again
        return not_found(what, errors)
    known: dict[str, set[str]] = {}
    for node in values_of(cluster.ask(Nsqd.stats)).values():
        for found in node.topics:
            known.setdefault(found.topic_name, set()).update(one.channel_name for one in found.channels)
    if topic and topic not in known:
        return not_found(what + suggestion(topic, known), [])
    channels = known[topic] if topic else set().union(*known.values())
    return not_found(what + suggestion(channel, sorted(channels)), [])


def take_snapshot(
    cluster: Cluster, *, topic: str = "", channel: str = "", clients: bool = False, before: Snapshot | None = None
) -> Snapshot:
    """Query all nodes for statistics, of all topics and channels or the given ones."""
    answers = cluster.ask(partial(Nsqd.stats, topic=topic, channel=channel, clients=clients))
    return Snapshot(answers, cluster.lookupd_errors, before)


def stats_document(seen: Snapshot) -> dict[str, Any]:
    """Nodes, sums and flows, as specified by `gnsqadmin stats --help`."""
    nodes = []
    unknown = dict.fromkeys(("version", "health", "start_time"), None) | {"topics": [], "producers": None}
    for address, answer in seen.answers.items():
        if isinstance(answer, NodeError):
            nodes.append({"address": str(address), "error": answer.reason} | unknown)
        else:
            nodes.append({"address": str(address), "error": None} | as_json(answer))
    flows = seen.flows and [
        {"topic": topic, "channel": channel, "ingress_rate": flow.ingress, "egress_rate": flow.egress}
        for (topic, channel), flow in seen.flows.items()
    ]
    return {"time": seen.clock, "nodes": nodes, "totals": as_json(seen.totals), "flows": flows}


def client_document(client: ClientStats, address: Address) -> dict[str, Any]:
    """A client and its node."""
    return {"node": str(address), **as_json(client)}
