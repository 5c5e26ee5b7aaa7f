"""Findings of the rules of `gnsqadmin doctor`, and the data that they are found in: two snapshots of a cluster
some seconds apart, and other answers of nodes and nsqlookupds.
"""

import enum
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from nsqadmin_cli.api import DrainState, Lookupd, Nsqd, Producer, located
from nsqadmin_cli.cluster import Answers, Cluster, ask_all, values_of
from nsqadmin_cli.context import Commands
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import Address, NodeError
from nsqadmin_cli.node_options import options_of
from nsqadmin_cli.snapshot import ClusterSnapshot
from nsqadmin_cli.table import column, json_only

# Options that usually have the same value on all nodes of a cluster.
LOOKUPDS = "nsqlookupd_tcp_addresses"
COMPARED = ("mem_queue_size", "max_msg_size", "msg_timeout", "max_attempts", "durability", LOOKUPDS)
_EMBEDDED = ("embedded_lookupd_tcp_address", "embedded_lookupd_http_address")  # of an nsqlookupd in its process
DEEP = 1000  # messages from which a queue counts as deep


class Severity(enum.StrEnum):
    """Severity, the worst first."""

    CRITICAL = "critical"  # messages are lost, or not taken, or a node is not there
    WARNING = "warning"  # it will be critical, or somebody forgot something
    NOTE = "note"  # worth knowing, and perhaps meant to be so


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do; `command`, if there is one, does it or helps."""

    text: str
    command: str = json_only(null=True, default="")


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. `code` is the stable name of the rule; topic, channel and node are empty if it is not about one."""

    severity: Severity = column("severity", help="critical, warning or note")
    code: str = column("code")
    summary: str = column("summary")
    evidence: tuple[str, ...] = column("evidence", help="list of texts", default=())
    remedies: tuple[Remedy, ...] = json_only("list of text, command (null, or a command line)", default=())
    topic: str = column("topic", null=True, default="")
    channel: str = column("channel", null=True, default="")
    node: str = column("node", null=True, help="null if not about one", default="")


def some_of(names: Sequence[str]) -> str:
    """Names in a line: the first three, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


@dataclass(frozen=True, slots=True)
class Examination:
    """The input of the rules; `after` has the flows since `before`, `seconds` ago. `deep`: depth of a deep queue.
    `whole`: all topics and channels were queried, so that those not seen do not exist."""

    before: ClusterSnapshot
    after: ClusterSnapshot
    seconds: float
    commands: Commands
    deep: int
    whole: bool = True
    clocks: Answers[tuple[float, float] | None] = field(default_factory=dict)  # seconds ahead, at least and at most
    drains: Answers[DrainState] = field(default_factory=dict)
    # The messages that each topic, with "" as channel, and each channel had dropped at the time of each snapshot.
    dropped_before: Counter[tuple[str, str]] = field(default_factory=Counter)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    options: Answers[dict[str, object]] = field(default_factory=dict)  # those of these two that a node has
    listed: Answers[tuple[Producer, ...]] = field(default_factory=dict)  # by each nsqlookupd
    known_topics: Answers[tuple[str, ...]] = field(default_factory=dict)  # to each nsqlookupd
    tcp: Answers[None] = field(default_factory=dict)  # connections to the TCP ports that nsqlookupds list
    discovery: Sequence[AdminError] = ()  # why the nodes that nsqlookupds know of could not be found out

    def has_nsqlookupd(self, address: Address) -> bool:
        """Whether a node has one in its process, where it registers without an address."""
        return any(map(values_of(self.options)[address].get, _EMBEDDED))


def examine(
    cluster: Cluster,
    commands: Commands,
    *,
    topic: str = "",
    channel: str = "",
    interval: float = 3.0,
    deep: int = DEEP,
    tcp: bool = False,
    wait: Callable[[float], object] = time.sleep,
) -> Examination:
    """Take two snapshots of all nodes, `wait(interval)` apart, and query everything else of nodes and nsqlookupds. With
    `tcp`, also connect to the TCP ports that nsqlookupds list; each nsqd logs such a client."""
    discovery: list[AdminError] = []
    try:
        nodes = cluster.nsqds()
    except AdminError as error:  # of all nsqlookupds: each of them has an error among the answers below
        nodes, discovery = [], [error]
    question = partial(Nsqd.stats, topic=topic, channel=channel, clients=True)
    before = ClusterSnapshot(cluster.ask(question, nodes), [])
    listed = cluster.ask_lookupds(Lookupd.nodes) if cluster.lookupds else {}
    # Who hangs is waited for once.
    there = [node for node in nodes if node.address in before.nodes]
    clocks = cluster.ask(Nsqd.clock_ahead, there)
    drains = cluster.ask(lambda node: node.drain("GET"), there)
    dropping = [node for node in there if before.nodes[node.address].has_ephemeral]
    dropped_before = _sum_dropped(cluster, dropping)
    options = cluster.ask(lambda node: options_of(node, COMPARED + _EMBEDDED), there)
    lookupds = [lookupd for lookupd in cluster.lookupds if lookupd.address in values_of(listed)]
    ports = {address: producer.tcp_port for nodes in values_of(listed).values() for address, producer in located(nodes)}
    listed_there = [node for node in there if tcp and node.address in ports]
    connections = cluster.ask(lambda node: node.try_tcp(ports[node.address]), listed_there)
    known = ask_all(lookupds, Lookupd.topics, cluster.timeout)
    if there:
        wait(interval)
    after = ClusterSnapshot(before.answers | cluster.ask(question, there), [], before)
    dropped = _sum_dropped(cluster, dropping)
    # What is left of these are nodes at impossible addresses.
    discovery += [error for error in cluster.lookupd_errors if not isinstance(listed.get(error.address), NodeError)]
    seconds, whole = max(1e-3, after.moment - before.moment), not topic and not channel
    answers = clocks, drains, dropped_before, dropped, options, listed, known, connections
    return Examination(before, after, seconds, commands, deep, whole, *answers, discovery)


def _sum_dropped(cluster: Cluster, nodes: Sequence[Nsqd]) -> Counter[tuple[str, str]]:
    return sum(map(Counter, values_of(cluster.ask(Nsqd.dropped, nodes)).values()), Counter())
