"""The /metrics page: STAT_FIELDS, build information, and prometheus-client's process metrics; contrib/docs/metrics.md
lists all names.

Nothing is counted for Prometheus. A scrape lists the topics, channels and clients, reads the plain counters of the
broker while the page is written, and yields to other greenlets meanwhile.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from platform import python_version
from time import perf_counter
from typing import Any, NamedTuple, Protocol, cast

from gevent import get_hub
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gnsqd.broker.channel import Channel
from gnsqd.broker.environment import ClientStats, Consumer
from gnsqd.broker.registry import Registry
from gnsqd.hub.cooperative import Turns, yield_turn
from gnsqd.log import Logger
from gnsqd.observe.memory import MemoryStats
from gnsqd.observe.stats import CLIENT_FIELDS, StatField, e2e_latency, metric_fields
from gnsqd.options import SECOND, Options
from gnsqd.quantile import LatencyFigures
from gnsqd.shared.statistics import StatKind
from gnsqd.shared.version import NSQD_VERSION, VERSION, lane

_LATENCY = "e2e_processing_latency"

Labels = dict[str, str]
Family = tuple[str, str, str, Iterable[tuple[Labels, float]]]  # name, type, help, points
_SUFFIXES = {"counter": "_total", "info": "_info"}  # of the points' names, by type

_FIGURES = {  # of the disk and, with --log-store, of the log store: type and help
    "sync_lag_seconds": ("gauge", "Age of the oldest fsync that is not finished, with its wait for a thread, else 0."),
    "disk_bytes": ("gauge", "Size of the disk of --data-path; absent if it cannot be queried."),
    "free_disk_bytes": ("gauge", "Bytes of it that are free for users without privileges; absent likewise."),
    "log_store_lag_seconds": ("gauge", "Time since something was written that the log store does not have, else 0."),
    "log_store_lag_bytes": ("gauge", "Bytes of journals that the log store does not have."),
    "log_store_puts": ("counter", "Objects of the log that were put."),
    "log_store_errors": ("counter", "Calls of the log store that failed."),
}


class ScrapedClient(Consumer, Protocol):
    """A TCP client, which may also publish."""

    @property
    def pub_counts(self) -> Mapping[str, int]: ...


class _Thing(NamedTuple):
    """A topic, a channel or the figures of a client, with the labels of its series."""

    labels: Labels
    it: Any
    latency: LatencyFigures | None = None


@dataclass(eq=False)
class MetricsPage(Collector):
    """Collects the figures of one daemon, beside prometheus-client's own collectors.

    clients()     all TCP clients
    greenlets()   how many greenlets there are
    crashes       how many died of a defect, by kind
    lookupds()    whether each nsqlookupd, by address, is connected
    log           of the daemon
    expiries()    when each file of certificates expires, in Unix seconds
    """

    registry: Registry
    options: Options
    memory: MemoryStats
    clients: Callable[[], Collection[ScrapedClient]]
    greenlets: Callable[[], int]
    crashes: Mapping[str, int]
    lookupds: Callable[[], Mapping[str, bool]]
    log: Logger
    expiries: Callable[[], Mapping[str, float]] = dict

    def __post_init__(self) -> None:
        self._collectors = CollectorRegistry()
        self._collectors.register(self)
        ProcessCollector(registry=self._collectors)
        PlatformCollector(registry=self._collectors)
        GCCollector(registry=self._collectors)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Returns the page, in the format that an Accept header requests, and its content type. Yields."""
        try:
            encode, content_type = choose_encoder(accept)
        except TypeError:  # a version that is not a number
            encode, content_type = choose_encoder("")
        return encode(self._collectors), content_type

    def collect(self) -> Iterator[Metric]:
        yield self._gc_pauses()
        turns = Turns()
        for name, kind, help, points in chain(self._daemon_families(), self._broker_families(turns)):
            unit = next((unit for unit in ("bytes", "seconds") if name.endswith(f"_{unit}")), "")
            family = Metric(name, help, kind, unit)
            sample_name = name + _SUFFIXES.get(kind, "")
            samples = (Sample(sample_name, labels, value) for labels, value in points)
            # Both encoders only iterate over the samples, so the list that the class declares may be made on the way.
            family.samples = cast(list[Sample], turns.over(samples))
            yield family

    def _gc_pauses(self) -> Metric:
        name = "gnsqd_gc_pause_seconds"
        help = "Pauses of the garbage collector; the quantiles are of the last 256."
        family = Metric(name, help, "summary", "seconds")
        for percent in (95, 99, 100):
            family.add_sample(name, {"quantile": str(percent / 100)}, self.memory.gc_pause(percent) / SECOND)
        family.add_sample(f"{name}_count", {}, self.memory.pause_count)
        family.add_sample(f"{name}_sum", {}, self.memory.pause_total / SECOND)
        return family

    def _daemon_families(self) -> Iterator[Family]:
        """Yields the figures of the daemon as a program: its build, its greenlets and its hub."""
        labels = {"version": VERSION, "nsqd_version": NSQD_VERSION, "lane": lane(), "python": python_version()}
        yield "gnsqd_build", "info", "The gnsqd that runs, and the nsqd release it stands in for.", [(labels, 1)]
        yield _gauge("gnsqd_clients", "TCP clients connected.", len(self.clients()))
        yield _gauge("gnsqd_greenlets", "Greenlets that exist.", self.greenlets())
        # IOLoop from the start, so that there is a series to look at before something happens.
        crashes = [({"greenlet": kind}, count) for kind, count in {"IOLoop": 0, **self.crashes}.items()]
        yield "gnsqd_greenlet_crashes", "counter", "Greenlets that failed because of a defect, by kind.", crashes
        help = "Lines of the log that stderr did not take."
        yield "gnsqd_log_lines_dropped", "counter", help, [({}, self.log.dropped)]
        help = "Whether the nsqlookupd is connected and has all registrations (1) or not (0)."
        points = [({"address": address}, connected) for address, connected in self.lookupds().items()]
        yield "gnsqd_nsqlookupd_connected", "gauge", help, points
        if expiries := self.expiries():
            help = "When the file's certificates expire, in seconds since 1970."
            ends = [({"file": _printable(path)}, end) for path, end in expiries.items()]
            yield "gnsqd_certificate_not_after_timestamp_seconds", "gauge", help, ends
        yield _gauge("gnsqd_hub_watchers", "Sockets and timers that the hub watches.", get_hub().loop.activecnt)
        started = perf_counter()
        yield_turn()
        waited = perf_counter() - started
        yield _gauge("gnsqd_hub_lag_seconds", "How long a client waits for its turn, measured at this scrape.", waited)

    def _broker_families(self, turns: Turns) -> Iterator[Family]:
        """Yields the figures of topics, channels and, with metrics-clients, clients at the scrape's beginning."""
        help = "Whether the last write to disk succeeded (1) or not (0)."
        yield _gauge("gnsqd_healthy", help, self.registry.healthy)
        help = "Whether publishers are refused until all queues are empty (1) or not (0)."
        yield _gauge("gnsqd_draining", help, self.registry.draining)
        if self.options.min_free_disk:
            help = "Whether publishers are refused because less is free than --min-free-disk (1) or not (0)."
            yield _gauge("gnsqd_low_on_disk", help, self.registry.low_on_disk)
        help = "Damaged places in files of messages, found at the start or since."
        yield "gnsqd_damages", "counter", help, [({}, self.log.damages)]
        for figure, value in (self.registry.disk_figures() | self.registry.store_figures()).items():
            yield f"gnsqd_{figure}", *_FIGURES[figure], [({}, value)]
        if self.registry.idle_actions:
            help = "Channels paused, emptied or deleted because they had no consumers."
            points = [({"policy": policy}, count) for policy, count in self.registry.idle_actions.items()]
            yield "gnsqd_idle_channels", "counter", help, points
        percentiles = self.options.e2e_processing_latency_percentiles
        topics = list(self.registry.topics.values())
        channels = [it for topic in topics for it in topic.channels.values()]
        if self.options.metrics_clients:
            clients = list(self._consumers(channels, turns))
            producers = list(self._producers(turns))
        things = {
            "topic": [_Thing({"topic": it.name}, it, e2e_latency(it)) for it in turns.over(topics)],
            "channel": [_Thing(_channel_labels(it), it, e2e_latency(it)) for it in turns.over(channels)],
        }
        for level in things:
            for field in metric_fields(level, self.options):
                yield _family(f"gnsqd_{level}_{field.metric}", field, things[level])
            if percentiles:
                yield _latencies(f"gnsqd_{level}_{_LATENCY}_seconds", things[level])
        if self.options.metrics_clients:
            for field in CLIENT_FIELDS:
                yield _family(f"gnsqd_client_{field.metric}", field, clients)
            yield "gnsqd_producer_messages", "counter", "Messages published by the client.", producers

    def _consumers(self, channels: list[Channel], turns: Turns) -> Iterator[_Thing]:
        subscribed = [(channel, client) for channel in channels for client in channel.clients.values()]
        for channel, client in turns.over(subscribed):
            stats = client.stats()
            yield _Thing(_channel_labels(channel) | _client_labels(client.id, stats), stats)

    def _producers(self, turns: Turns) -> Iterator[tuple[Labels, float]]:
        for client in turns.over(list(self.clients())):
            if client.pub_counts:
                labels = _client_labels(client.id, client.stats())
                for topic_name, count in client.pub_counts.items():
                    yield {"topic": topic_name} | labels, count


def _channel_labels(channel: Channel) -> Labels:
    return {"topic": channel.topic_name, "channel": channel.name}


def _client_labels(id: int, stats: ClientStats) -> Labels:
    """Returns a client's labels; `id` is the connection's number, as all unix sockets have the same address."""
    return {
        "id": str(id),
        "client_id": _printable(stats.client_id),
        "hostname": _printable(stats.hostname),
        "remote_address": _printable(stats.remote_address),
    }


def _printable(text: str) -> str:
    """Makes `text`, which a client may have chosen, encodable."""
    return text.encode("utf-8", "replace").decode()


# Families


def _gauge(name: str, help: str, value: float) -> Family:
    return name, "gauge", help, [({}, value)]


def _family(name: str, field: StatField, things: list[_Thing]) -> Family:
    """Returns a statistic of `things`."""
    points = ((thing.labels, field.getter(thing.it)) for thing in things)
    return name, "gauge" if field.kind is StatKind.GAUGE else "counter", field.help, points


def _latencies(name: str, things: list[_Thing]) -> Family:
    """Returns the quantiles of `things`; NaN without samples, since Prometheus has no other value for that."""
    help = "How long messages took from being published to FIN, over e2e-processing-latency-window-time."
    points = (
        (thing.labels | {"quantile": quantile}, value / SECOND if latency.count else float("nan"))
        for thing in things
        if (latency := thing.latency) is not None
        for quantile, value in {str(quantile): value for quantile, value in latency.percentiles}.items()
    )
    return name, "summary", help, points
