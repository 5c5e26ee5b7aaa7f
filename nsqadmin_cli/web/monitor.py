"""The page's view of the cluster: snapshots, rates, the last hour and findings, shared by everybody who looks.

While nobody looks, nothing is queried, except for the charts in the hour after a look. Threads may share a Monitor; at
most one of them queries the nodes at a time, and the others wait for its answer. Of earlier snapshots only the counts
are kept that rates are made of: answers may be large.
"""

import ctypes
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from msgspec.structs import replace

from nsqadmin_cli import units
from nsqadmin_cli.api import ChannelStats, Latency, Lookupd, NodeStats, Nsqd
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.commands.doctor import findings_of
from nsqadmin_cli.commands.nodes import listed_topics, rows_with_daemons
from nsqadmin_cli.context import CommandLines
from nsqadmin_cli.diagnosis.examination import Examination, Finding, Severity
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import Address
from nsqadmin_cli.snapshot import ClusterSnapshot
from nsqadmin_cli.web.history import ClusterHistory

INTERVAL = 2.0  # seconds between two live snapshots
FRESH = 1.0  # seconds for which a snapshot serves every view
SHARED = 0.9 * INTERVAL  # seconds for which it serves the live ones
_LEAST = 1.5  # seconds between two snapshots that rates are of; over less they are not meaningful
_MOST = 30.0  # seconds; after a longer pause, rates begin again
_QUICK = 1.0  # seconds to wait for a node that did not answer in time before
_SAMPLED = 10.0  # seconds between two snapshots for the charts while nobody looks
_REMEMBERED = 3600.0  # seconds after the last look until they end
_NODES = 5.0  # seconds for which the list of nodes is used
_EXAMINING = 3.0  # seconds between the two snapshots of an examination
_EXAMINED = 15.0  # seconds for which findings are used; older ones are shown until there are new ones

_M_MMAP_THRESHOLD = -3  # of mallopt(3)

T = TypeVar("T")


def _return_large_blocks() -> None:
    """Returns large blocks to the system when they are freed. glibc would keep the largest answer for each thread."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 18)


def _counts_of(node: NodeStats) -> NodeStats:
    """Returns an answer without quantiles and names of clients, which may be long. The clients stay for nsqd alone,
    which counts what is finished for each of them."""

    def counts(channel: ChannelStats) -> ChannelStats:
        clients = channel.clients if channel.finish_count is None else None
        nameless = clients and tuple(replace(client, **_NAMELESS) for client in clients)
        return replace(channel, e2e_processing_latency=Latency(), clients=nameless)

    topics = tuple(
        replace(topic, e2e_processing_latency=Latency(), channels=tuple(map(counts, topic.channels)))
        for topic in node.topics
    )
    return replace(node, topics=topics, producers=None)


_NAMELESS = dict.fromkeys(("client_id", "hostname", "version", "user_agent", "auth_identity", "auth_identity_url"), "")


class Kept(Generic[T]):
    """A value that takes long to get. An old value is used while a thread gets the next one; AdminErrors are kept."""

    def __init__(self, get: Callable[[], T], seconds: float) -> None:
        self._get = get
        self._seconds = seconds
        self._lock = threading.Lock()
        self._change = object()  # stands for what was changed last
        self._kept: tuple[T | AdminError, float, object] | None = None  # with the last change before it

    def latest(self) -> T | None:
        """Returns the latest value, which may be old, or None; starts to get a newer one."""
        kept = self._kept
        if self._is_older(self._seconds) and self._lock.acquire(blocking=False):
            threading.Thread(target=self._renew_and_release, daemon=True).start()
        return None if kept is None or isinstance(kept[0], AdminError) else kept[0]

    def value(self, oldest: float = 60.0) -> T:
        """Returns the latest value; if it is older than `oldest` seconds, waits for a new one. Raises AdminError."""
        if self._is_older(oldest):
            with self._lock:
                if self._is_older(oldest):  # else another thread has renewed it meanwhile
                    self._renew()
        else:
            self.latest()
        assert self._kept is not None
        value = self._kept[0]
        if isinstance(value, AdminError):
            raise value
        return value

    def expire(self) -> None:
        """Makes the value too old from now on, also one that a thread is getting, until there is a newer one."""
        self._change = object()

    def _is_older(self, seconds: float) -> bool:
        kept = self._kept
        return kept is None or kept[2] is not self._change or time.monotonic() - kept[1] > seconds

    def _renew(self) -> None:
        change = self._change
        try:
            value: T | AdminError = self._get()
        except AdminError as error:
            value = error
        self._kept = value, time.monotonic(), change

    def _renew_and_release(self) -> None:
        try:
            self._renew()
        finally:
            self._lock.release()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings of doctor, the worst first; `clock` in unix seconds."""

    findings: Sequence[Finding]
    clock: float
    seconds: float  # between its two snapshots

    @property
    def kinds(self) -> dict[tuple[Severity, str], list[Finding]]:
        return units.grouped(((finding.severity, finding.code), finding) for finding in self.findings)

    @property
    def age(self) -> float:
        return max(0.0, time.time() - self.clock)


class Monitor:
    """Owns the snapshots of one cluster. `commands` are for the remedies of findings."""

    def __init__(self, cluster: Cluster, commands: CommandLines) -> None:
        _return_large_blocks()
        self.cluster = cluster
        cluster.http.quick = _QUICK  # for all that the page asks
        self._commands = commands
        self._latest: Mapping[Address, NodeStats] = {}  # the last answers, also of nodes that failed since
        self._earlier: deque[ClusterSnapshot] = deque(maxlen=4)  # of counts alone, the youngest last
        self._looked = -_REMEMBERED
        self._closed = threading.Event()
        self.history = ClusterHistory()
        self._snapshots = Kept(self._take, math.inf)
        self._nodes = Kept(lambda: (cluster.nsqds(), list(cluster.lookupd_errors)), _NODES)
        self.diagnosis = Kept(self._examine, _EXAMINED)
        self.node_rows = Kept(lambda: rows_with_daemons(cluster, self.snapshot(SHARED)), _NODES)
        self.listed = Kept(lambda: listed_topics(cluster)[0], _NODES)
        self.registered = Kept(lambda: cluster.ask_lookupds(Lookupd.nodes), _NODES)  # at each nsqlookupd

    def snapshot(self, oldest: float) -> ClusterSnapshot:
        """Returns all nodes with their clients, at most `oldest` seconds ago, with flows if there was a snapshot
        before. Raises AdminError if no nsqlookupd answers and no node was given."""
        self._looked = time.monotonic()
        return self._snapshots.value(oldest)

    def keep_history(self) -> None:
        """Starts a thread that takes snapshots for the charts, until nobody has looked for an hour."""
        threading.Thread(target=self._sample, name="history", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _sample(self) -> None:
        while not self._closed.wait(_SAMPLED):
            if time.monotonic() - self._looked < _REMEMBERED:
                with suppress(AdminError):  # which the next look shows
                    self._snapshots.value(_SAMPLED / 2)

    def _take(self) -> ClusterSnapshot:
        nodes, errors = self._nodes.value()
        answers = self.cluster.ask(partial(Nsqd.stats, clients=True), nodes)
        now = time.monotonic()
        before = [earlier for earlier in self._earlier if _LEAST <= now - earlier.moment <= _MOST]
        snapshot = ClusterSnapshot(answers, errors, before[-1] if before else None, self._latest)
        self._latest = snapshot.latest
        counts = {at: _counts_of(node) for at, node in snapshot.latest.items()}
        self._earlier.append(ClusterSnapshot({**counts}, [], moment=snapshot.moment))
        self.history.add(snapshot)
        return snapshot

    def changed(self) -> None:
        """Makes the next snapshot a new one, after an operation was done."""
        for kept in (self._snapshots, self.diagnosis, self.node_rows, self.listed, self.registered):
            kept.expire()

    def _examine(self) -> Diagnosis:
        examination = Examination(self.cluster, self._commands, interval=_EXAMINING)
        return Diagnosis(findings_of(examination), examination.after.clock, examination.seconds)
