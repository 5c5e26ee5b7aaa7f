"""Polls nodes continuously, each on its own thread, so that one that hangs delays neither the others nor the
display."""

import threading
import time
from collections import deque
from dataclasses import dataclass, field

from nsqadmin_cli.address import Address
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.cluster import Answers, Cluster
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import NodeError
from nsqadmin_cli.models import NodeStats
from nsqadmin_cli.totals import Flow, Key, node_flows

_DISCOVERY = 15.0  # seconds between questions to the nsqlookupds

HISTORY = 60  # looks that are remembered


class _Watched:
    """One node: its last answer and the flows since the one before."""

    def __init__(self, node: Nsqd) -> None:
        self.node = node
        self.answer: NodeStats | NodeError | None = None
        self.flows: dict[Key, Flow] = {}
        self._latest: NodeStats | None = None  # before errors
        self.moment = time.monotonic()  # of the last answer, or of the beginning
        self.gone = False

    def ask(self) -> None:
        try:
            answer = self.node.stats()
        except AdminError as error:
            reason = error.reason if isinstance(error, NodeError) else str(error)  # a file for TLS, for one
            self.flows, self.answer = {}, NodeError(self.node.program, self.node.address, reason)
            return
        # Nothing of the old answer is changed: who looks at it meanwhile sees one or the other.
        self.flows = node_flows(self._latest, answer) if self._latest else {}
        self.answer, self.moment = answer, answer.moment
        self._latest = answer


class Watcher:
    """Owns the threads that ask all nodes of a cluster every `interval` seconds."""

    def __init__(self, cluster: Cluster, interval: float) -> None:
        self.interval = interval
        self.troubles: list[AdminError] = []  # with the nsqlookupds
        self._cluster = cluster
        self._nodes: dict[Address, _Watched] = {}
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._discover, name="discover", daemon=True).start()

    def stop(self) -> None:
        """Stop polling; threads that wait for an answer are abandoned."""
        self._stopped.set()

    @property
    def pending(self) -> bool:
        """Whether a first answer is pending."""
        return not self._nodes or any(watched.answer is None for watched in self._nodes.values())

    def see(self) -> tuple[Answers[NodeStats], dict[Key, Flow]]:
        """The last answers of all nodes, by address, and their total flows."""
        answers: Answers[NodeStats] = {}
        flows: dict[Key, Flow] = {}
        for address, watched in sorted(self._nodes.items()):
            silent = time.monotonic() - watched.moment
            if silent > 2 * self.interval + 2 and not isinstance(watched.answer, NodeError):
                answers[address] = NodeError("nsqd", address, f"no answer for {silent:.0f} s")
                continue
            if watched.answer is None:
                continue  # it has been asked just now
            answers[address] = watched.answer
            for key, flow in watched.flows.items():
                flows[key] = flows[key] + flow if key in flows else flow
        return answers, flows

    def _discover(self) -> None:
        """Find nodes repeatedly, watch new ones and drop nodes that are gone."""
        while True:
            try:
                nodes = {node.address: node for node in self._cluster.nsqds()}
                self.troubles = list(self._cluster.lookupd_errors)
            except AdminError as error:
                nodes = {address: watched.node for address, watched in self._nodes.items()}
                self.troubles = [error]
            known = dict(self._nodes)
            for address in known.keys() - nodes.keys():
                known.pop(address).gone = True
            for address in nodes.keys() - known.keys():
                known[address] = _Watched(nodes[address])
                threading.Thread(target=self._watch, args=(known[address],), name=str(address), daemon=True).start()
            self._nodes = known
            if self._stopped.wait(_DISCOVERY) or not self._cluster.lookupds:
                return

    def _watch(self, watched: _Watched) -> None:
        while not watched.gone:
            due = time.monotonic() + self.interval
            watched.ask()
            if self._stopped.wait(max(0.05, due - time.monotonic())):
                return


@dataclass(slots=True)
class Trend:
    """History of a topic or channel: its last depths, and smoothed flows, None before the second snapshot."""

    depths: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY))
    flow: Flow | None = None
    idle: int = 0  # looks since something went out

    def add(self, depth: int, flow: Flow | None) -> None:
        """Add a snapshot. Flows are smoothed over about five, so that drain times do not jump."""
        self.depths.append(depth)
        self.idle = 0 if flow and flow.egress else self.idle + 1
        if self.flow is None:
            self.flow = flow
        elif flow is not None and flow != self.flow:
            self.flow = Flow(*(old + (new - old) * 0.3 for old, new in zip(self.flow, flow, strict=True)))

    def drain_seconds(self) -> float | None:
        """Time until the queue is empty; None: it does not shrink."""
        return (self.flow or Flow()).drain_seconds(self.depths[-1])
