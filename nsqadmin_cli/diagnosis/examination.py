"""Collects the data of a cluster for the rules: two snapshots some seconds apart, and other answers of nodes and
nsqlookupds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from nsqadmin_cli.api import ClientStats, Lookupd, Nsqd, Producer
from nsqadmin_cli.cluster import Answers, Cluster, ask_all, values_of
from nsqadmin_cli.diagnosis.finding import Commands
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import Address, NodeError
from nsqadmin_cli.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Examination:
    """The input of the rules; `after` has the flows since `before`, `seconds` ago. `deep`: depth of a deep queue.

    `whole`: all topics and channels were queried, so that those not seen do not exist.
    """

    before: Snapshot
    after: Snapshot
    seconds: float
    commands: Commands
    deep: int
    whole: bool = True
    clocks: Answers[tuple[float, float] | None] = field(default_factory=dict)  # seconds ahead, at least and at most
    drains: Answers[dict[str, Any]] = field(default_factory=dict)
    listed: Answers[tuple[Producer, ...]] = field(default_factory=dict)  # by each nsqlookupd
    known_topics: Answers[tuple[str, ...]] = field(default_factory=dict)  # to each nsqlookupd
    discovery: Sequence[AdminError] = ()  # why the nodes that nsqlookupds know of could not be found out

    def clients_before(self) -> "dict[tuple[Address, str, str, str, int], ClientStats]":
        """The consumers of the first snapshot, by the identity of their connection."""
        return {
            (address, topic.topic_name, channel.channel_name, client.remote_address, client.connect_ts): client
            for address, node in self.before.nodes.items()
            for topic in node.topics
            for channel in topic.channels
            for client in channel.clients or ()
        }


def examine(
    cluster: Cluster, commands: Commands, *, topic: str, channel: str, interval: float, deep: int
) -> Examination:
    """Take two snapshots of all nodes, `interval` seconds apart, and query nodes and nsqlookupds for everything
    else."""
    discovery: list[AdminError] = []
    try:
        nodes = cluster.nsqds()
    except AdminError as error:  # of all nsqlookupds: each of them has an error among the answers below
        nodes, discovery = [], [error]
    question = partial(Nsqd.stats, topic=topic, channel=channel, clients=True)
    before = Snapshot(cluster.ask(question, nodes), [])
    listed = cluster.ask_lookupds(Lookupd.nodes) if cluster.lookupds else {}
    # Who hangs is waited for once.
    there = [node for node in nodes if node.address in before.nodes]
    clocks = cluster.ask(Nsqd.clock_ahead, there)
    drains = cluster.ask(lambda node: node.drain("GET"), there)
    lookupds = [lookupd for lookupd in cluster.lookupds if lookupd.address in values_of(listed)]
    known = ask_all(lookupds, Lookupd.topics, cluster.timeout)
    if there:
        from nsqadmin_cli.render.progress import wait  # what it needs loads slowly

        wait(f"measuring rates, {interval:g} s", interval)
    after = Snapshot(before.answers | cluster.ask(question, there), [], before)
    # What is left of these are nodes at impossible addresses.
    discovery += [one for one in cluster.lookupd_errors if not isinstance(listed.get(one.address), NodeError)]
    return Examination(
        before,
        after,
        max(1e-3, after.moment - before.moment),
        commands,
        deep,
        not topic and not channel,
        clocks,
        drains,
        listed,
        known,
        discovery,
    )
