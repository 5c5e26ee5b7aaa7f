"""The metrics of `gnsqadmin check`, and their limits.

Each row of METRICS defines an option of `check`, a key of its JSON and a label of its performance data.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import click

from nsqadmin_cli import units
from nsqadmin_cli.snapshot import Snapshot
from nsqadmin_cli.totals import Flow


class Measure(NamedTuple):
    """One value of a topic, a channel, or (both empty) in total."""

    value: float
    topic: str = ""
    channel: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits beyond which a value is a warning or critical; None: never."""

    warning: float | None = None
    critical: float | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. `least`: its limits are lower limits. `moving`: it needs two snapshots."""

    key: str
    what: str
    help: str
    measure: Callable[["Scope"], Iterator[Measure]]
    least: bool = False
    moving: bool = False
    duration: bool = False  # seconds; else a number
    rate: bool = False

    @property
    def option(self) -> str:
        return f"--{self.key.replace('_', '-')}{'-min' * self.least}"

    def beyond(self, value: float, limit: float | None) -> bool:
        if limit is None:
            return False
        return value < limit if self.least else value > limit

    def complaint(self, value: float, limit: float) -> str:
        """The text for a value beyond its limit."""
        if value == math.inf:
            return f"it does not become empty, but should within {self.text(limit)}"
        return f"{self.what} {self.text(value)} is {'less' if self.least else 'more'} than {self.text(limit)}"

    def worst(self, measures: list[Measure]) -> Measure | None:
        choose = min if self.least else max
        return choose(measures, key=lambda measure: measure.value) if measures else None

    def text(self, value: float) -> str:
        """A value as readable text."""
        if self.duration:
            return units.latency(value)
        return units.rate(value) + "/s" if self.rate else units.count(int(value))


@dataclass(frozen=True, slots=True)
class Scope:
    """The snapshot without `excluded`, patterns of `topic` or `topic/channel`."""

    seen: Snapshot
    excluded: tuple[str, ...] = ()

    def has(self, topic: str, channel: str = "") -> bool:
        names = [topic, f"{topic}/{channel}"] if channel else [topic]
        return not any(fnmatchcase(name, pattern) for name in names for pattern in self.excluded)

    def topics(self) -> Iterator[Any]:
        return (topic for topic in self.seen.totals.topics if self.has(topic.topic_name))

    def channels(self) -> Iterator[tuple[str, Any, Flow]]:
        """Topic, channel and its flows."""
        flows = self.seen.flows or {}
        for topic in self.topics():
            for channel in topic.channels:
                if self.has(topic.topic_name, channel.channel_name):
                    yield topic.topic_name, channel, flows.get((topic.topic_name, channel.channel_name), Flow())


def _depth(scope: Scope) -> Iterator[Measure]:
    topics = sum(topic.depth for topic in scope.topics())
    yield Measure(topics + sum(channel.depth for _, channel, _ in scope.channels()))


def _topic_depth(scope: Scope) -> Iterator[Measure]:
    return (Measure(topic.depth, topic.topic_name) for topic in scope.topics())


def _of_channels(field: str) -> Callable[[Scope], Iterator[Measure]]:
    def measure(scope: Scope) -> Iterator[Measure]:
        for topic, channel, _ in scope.channels():
            yield Measure(getattr(channel, field), topic, channel.channel_name)

    return measure


def _of_flows(field: str) -> Callable[[Scope], Iterator[Measure]]:
    def measure(scope: Scope) -> Iterator[Measure]:
        return (Measure(getattr(flow, field), topic, row.channel_name) for topic, row, flow in scope.channels())

    return measure


def _drain_time(scope: Scope) -> Iterator[Measure]:
    for topic, channel, flow in scope.channels():
        seconds = flow.drain_seconds(channel.depth)
        yield Measure(math.inf if seconds is None else seconds, topic, channel.channel_name)


def _nodes(scope: Scope) -> Iterator[Measure]:
    yield Measure(sum(node.health == "OK" for node in scope.seen.nodes.values()))


METRICS = (
    Metric("depth", "depth", "Maximum depth of all topics and channels together.", _depth),
    Metric("topic_depth", "depth", "Maximum depth of a topic.", _topic_depth),
    Metric("channel_depth", "depth", "Maximum depth of a channel.", _of_channels("depth")),
    Metric(
        "backend_depth", "on disk", "Maximum number of messages of a channel on disk.", _of_channels("backend_depth")
    ),
    Metric(
        "in_flight", "in flight", "Maximum number of messages of a channel in flight.", _of_channels("in_flight_count")
    ),
    Metric("deferred", "deferred", "Maximum number of deferred messages of a channel.", _of_channels("deferred_count")),
    Metric(
        "requeue_rate",
        "requeued",
        "Maximum number of requeued messages of a channel per second.",
        _of_flows("requeues"),
        moving=True,
        rate=True,
    ),
    Metric(
        "timeout_rate",
        "timed out",
        "Maximum number of timed out messages of a channel per second.",
        _of_flows("timeouts"),
        moving=True,
        rate=True,
    ),
    Metric(
        "drain_time",
        "time to drain",
        "Maximum time until a channel is empty at the current rates.",
        _drain_time,
        moving=True,
        duration=True,
    ),
    Metric("clients", "clients", "Minimum number of consumers of a channel.", _of_channels("client_count"), least=True),
    Metric("nodes", "healthy nodes", "Minimum number of nodes that answer and are healthy.", _nodes, least=True),
)


class LimitsType(click.ParamType[Limits]):
    """`CRITICAL`, `WARNING,CRITICAL` or `WARNING,` as a Limits."""

    name = "limits"

    def __init__(self, metric: Metric) -> None:
        self.metric = metric

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Limits:
        if isinstance(value, Limits):
            return value
        warning, comma, critical = str(value).partition(",")
        if not comma:
            warning, critical = "", warning
        try:
            limits = Limits(*(self._number(text) if text else None for text in (warning, critical)))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if limits == Limits():
            self.fail(
                f"{value!r} does not contain a limit, expected CRITICAL, WARNING,CRITICAL or WARNING, as in 1000,5000",
                param,
                ctx,
            )
        if limits.warning is not None and self.metric.beyond(limits.warning, limits.critical):
            order = "less" if self.metric.least else "more"
            self.fail(f"the warning limit of {value!r} is {order} than the critical one.", param, ctx)
        return limits

    def _number(self, text: str) -> float:
        if self.metric.duration:
            return units.parse_duration(text)
        if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,6})?" if self.metric.rate else r"[0-9]{1,18}", text):
            kind = "number" if self.metric.rate else "whole number"
            raise ValueError(
                f"{text!r} is not a {kind}, expected CRITICAL, WARNING,CRITICAL or WARNING, as in 1000,5000"
            )
        return float(text) if self.metric.rate else int(text)


def limit_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """An option for each of METRICS, with the parameter `limits_{key}`: Limits or None."""
    for metric in reversed(METRICS):
        limits = click.option(
            metric.option, f"limits_{metric.key}", type=LimitsType(metric), metavar="LIMITS", help=metric.help
        )
        function = limits(function)
    return function
