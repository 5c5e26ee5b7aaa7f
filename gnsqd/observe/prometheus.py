"""The /metrics page: everything of STAT_FIELDS, who we are, and prometheus-client's own figures of the process.

Nothing is counted for Prometheus. A scrape notes which topics and channels there are, reads the broker's plain
counters while the page is written, and takes turns with everybody else as it goes.
"""

from collections.abc import Iterator, Sequence
from platform import python_version
from typing import cast

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gnsqd.broker.channel import Channel
from gnsqd.broker.doorbell import give_way
from gnsqd.broker.registry import Registry
from gnsqd.broker.topic import Topic
from gnsqd.observe.stats import STAT_FIELDS, Kind, StatField
from gnsqd.version import NSQD_VERSION, VERSION, lane

SAMPLES_PER_TURN = 256

Labelled = tuple[dict[str, str], Topic | Channel]


class Metrics:
    """Owns the collectors of one daemon."""

    def __init__(self, registry: Registry) -> None:
        self._collectors = CollectorRegistry()
        self._collectors.register(_BrokerCollector(registry))
        ProcessCollector(registry=self._collectors)
        PlatformCollector(registry=self._collectors)
        GCCollector(registry=self._collectors)

    def render(self, accept: str) -> tuple[bytes, str]:
        """The page, in the format that an Accept header asks for, and its content type. Yields."""
        try:
            encode, content_type = choose_encoder(accept)
        except TypeError:  # a version that is no number
            encode, content_type = choose_encoder("")
        return encode(self._collectors), content_type


class _BrokerCollector(Collector):
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._build = {
            "version": VERSION,
            "nsqd_version": NSQD_VERSION,
            "lane": lane(),
            "python": python_version(),
        }

    def collect(self) -> Iterator[Metric]:
        build = Metric("gnsqd_build", "The gnsqd that runs, and the nsqd release it stands in for.", "info")
        build.add_sample("gnsqd_build_info", self._build, 1)
        yield build
        healthy = Metric("gnsqd_healthy", "Whether the last write to disk succeeded (1) or not (0).", "gauge")
        healthy.add_sample("gnsqd_healthy", {}, self._registry.healthy)
        yield healthy
        topics = list(self._registry.topics.values())
        channels = [channel for topic in topics for channel in topic.channels.values()]
        labelled: dict[str, list[Labelled]] = {
            "topic": [({"topic": topic.name}, topic) for topic in topics],
            "channel": [({"topic": channel.topic_name, "channel": channel.name}, channel) for channel in channels],
        }
        for level, stat_fields in STAT_FIELDS.items():
            for field in stat_fields:
                yield _family(f"gnsqd_{level}_{field.metric}", field, labelled[level])


def _family(name: str, field: StatField, labelled: Sequence[Labelled]) -> Metric:
    family = Metric(name, field.help, field.kind.value)
    sample_name = f"{name}_total" if field.kind is Kind.COUNTER else name
    # Both encoders only ever iterate over the samples, so the list that the class declares may be made on the way.
    family.samples = cast(list[Sample], _samples(sample_name, field, labelled))
    return family


def _samples(name: str, field: StatField, labelled: Sequence[Labelled]) -> Iterator[Sample]:
    for number, (labels, thing) in enumerate(labelled, 1):
        yield Sample(name, labels, field.getter(thing))
        if number % SAMPLES_PER_TURN == 0:
            give_way()
