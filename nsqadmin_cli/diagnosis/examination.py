"""Findings of the rules of `gnsqadmin doctor`, and the data that they are found in: two snapshots of a cluster
some seconds apart, and other answers of nodes and nsqlookupds.
"""

import enum
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from gnsqd.shared.names import is_ephemeral
from nsqadmin_cli.api import Lookupd, Nsqd, located
from nsqadmin_cli.cluster import Cluster, ask_all, errors_of, values_of
from nsqadmin_cli.context import CommandLines
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.node_options import options_of
from nsqadmin_cli.snapshot import ClusterSnapshot, Key, by_key
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
    """A step against a problem; `command`, if there is one, does it or helps."""

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
    channels: tuple[Key, ...] = json_only("topic and channel of each, if about several", default=())


def troubled(findings: Iterable[Finding]) -> dict[Key, str]:
    """Returns the topics, with "" as channel, and channels that are in trouble: which findings other than notes are
    about. Each has the code of the first of these, the worst."""
    codes: dict[Key, str] = {}
    for finding in findings:
        if finding.severity is not Severity.NOTE and (finding.topic or finding.channels):
            for key in finding.channels or [(finding.topic, finding.channel)]:
                codes.setdefault(key, finding.code)
    return codes


def some_of(names: Sequence[object]) -> str:
    """Returns names for a line: the first three, and how many more there are."""
    return ", ".join(map(str, names[:3])) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


class Examination:
    """The input of the rules: two snapshots of all nodes, and the answers of nodes and nsqlookupds between them."""

    def __init__(
        self,
        cluster: Cluster,
        commands: CommandLines,
        *,
        topic: str = "",
        channel: str = "",
        interval: float = 3.0,
        deep: int = DEEP,
        tcp: bool = False,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        """Takes the snapshots `wait(interval)` apart. With `tcp`, also connects to the TCP ports that nsqlookupds list;
        each nsqd logs such a client."""
        self.commands = commands
        self.deep = deep  # depth of a deep queue
        self.whole = not topic and not channel  # all topics and channels are queried: those not seen do not exist
        self.discovery: list[AdminError] = []  # why the nodes that nsqlookupds know of could not be found out
        try:
            nodes = cluster.nsqds()
        except AdminError as error:  # of all nsqlookupds: each of them has an error among the answers below
            nodes, self.discovery = [], [error]
        question = partial(Nsqd.stats, topic=topic, channel=channel, clients=True)
        self.before = ClusterSnapshot(cluster.ask(question, nodes), [])
        self.listed = cluster.ask_lookupds(Lookupd.nodes) if cluster.lookupds else {}  # by each nsqlookupd
        # Who hangs is waited for once.
        there = [node for node in nodes if node.address in self.before.nodes]
        self.clocks = cluster.ask(Nsqd.clock_ahead, there)  # seconds ahead, at least and at most
        self.drains = cluster.ask(Nsqd.drain, there)
        # The messages that each topic, with "" as channel, and each channel had dropped at the time of each snapshot.
        keys_by_node = {at: by_key(node) for at, node in self.before.nodes.items()}
        dropping = [node for node in there if any(is_ephemeral(key[1] or key[0]) for key in keys_by_node[node.address])]
        self.dropped_before = _sum_dropped(cluster, dropping)
        self.options = cluster.ask(lambda node: options_of(node, COMPARED + _EMBEDDED), there)  # as far as it has them
        # Nodes with an nsqlookupd in their process, where they register without an address.
        self.embedding = {at for at, options in values_of(self.options).items() if any(map(options.get, _EMBEDDED))}
        located_producers = [pair for producers in values_of(self.listed).values() for pair in located(producers)]
        ports = {address: producer.tcp_port for address, producer in located_producers}
        listed_there = [node for node in there if tcp and node.address in ports]
        self.tcp = cluster.ask(lambda node: node.try_tcp(ports[node.address]), listed_there)
        lookupds = [lookupd for lookupd in cluster.lookupds if lookupd.address in values_of(self.listed)]
        self.known_topics = ask_all(lookupds, Lookupd.topics, cluster.timeout)  # to each nsqlookupd
        if there:
            wait(interval)
        self.after = ClusterSnapshot(self.before.answers | cluster.ask(question, there), [], self.before)
        self.seconds = max(1e-3, self.after.moment - self.before.moment)  # between the snapshots
        self.dropped = _sum_dropped(cluster, dropping)
        # What is left of these are nodes at impossible addresses.
        silent = {error.address for error in errors_of(self.listed)}
        self.discovery += [error for error in cluster.lookupd_errors if error.address not in silent]


def _sum_dropped(cluster: Cluster, nodes: Sequence[Nsqd]) -> Counter[tuple[str, str]]:
    return sum(map(Counter, values_of(cluster.ask(Nsqd.dropped, nodes)).values()), Counter())
