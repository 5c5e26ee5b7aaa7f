"""`gnsqadmin check`: checks limits, as a plugin for monitoring systems.

Each row of METRICS defines an option of `check`, a key of its JSON and a label of its performance data.
"""

import enum
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any, NamedTuple

import click

from nsqadmin_cli import units
from nsqadmin_cli.change import Shown
from nsqadmin_cli.cluster import Cluster, errors_of
from nsqadmin_cli.command_base import AdminCommand, Combined, Parsed, command, duration, option
from nsqadmin_cli.errors import AdminError, ExitCode
from nsqadmin_cli.output import measure_rates
from nsqadmin_cli.snapshot import ClusterSnapshot, Flow, Key, drain_seconds, take_snapshot
from nsqadmin_cli.table import Block, Line, Tone, column, described, table_of
from nsqadmin_cli.units import plural


class Measure(NamedTuple):
    """One value of a topic, a channel, or (both empty) in total."""

    value: float
    topic: str = ""
    channel: str = ""


class Thresholds(NamedTuple):
    """The limits beyond which a value is a warning or critical; None: never."""

    warning: float | None = None
    critical: float | None = None


_EXPECTED = "expected CRITICAL, WARNING,CRITICAL or WARNING, as in 1000,5000"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. `source` is a field of channels or of their flows; empty: `_measure` knows it by its key. `least`: its
    limits are lower limits. `moving`: it needs two snapshots."""

    key: str
    what: str
    help: str
    source: str = ""
    least: bool = False
    duration: bool = False  # seconds; else a number

    @property
    def rate(self) -> bool:
        return self.source in Flow._fields

    @property
    def moving(self) -> bool:
        return self.rate or self.duration

    @property
    def option(self) -> str:
        return f"--{self.key.replace('_', '-')}{'-min' * self.least}"

    def parse(self, text: str) -> Thresholds:
        """Returns the limits of `CRITICAL`, `WARNING,CRITICAL` or `WARNING,`; raises a readable ValueError."""
        warning, comma, critical = text.partition(",")
        if not comma:
            warning, critical = "", warning
        limits = Thresholds(*(self._number(part) if part else None for part in (warning, critical)))
        if limits == Thresholds():
            raise ValueError(f"{text!r} does not contain a limit, {_EXPECTED}")
        if limits.warning is not None and self.beyond(limits.warning, limits.critical):
            raise ValueError(f"the warning limit of {text!r} is {self.order} than the critical one.")
        return limits

    def _number(self, text: str) -> float:
        if self.duration:
            return units.parse_duration(text)
        if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,6})?" if self.rate else r"[0-9]{1,18}", text):
            raise ValueError(f"{text!r} is not a {'number' if self.rate else 'whole number'}, {_EXPECTED}")
        return float(text) if self.rate else int(text)

    @property
    def order(self) -> str:
        return "less" if self.least else "more"

    def beyond(self, value: float, limit: float | None) -> bool:
        return limit is not None and (value < limit if self.least else value > limit)

    def complaint(self, measure: Measure, limit: float) -> str:
        def text(value: float) -> str:
            if self.duration:
                return units.latency(value)
            return units.rate(value) + "/s" if self.rate else f"{int(value):,}"

        place = f"topic {measure.topic}: " if measure.topic else ""
        if measure.channel:
            place = f"channel {measure.topic}/{measure.channel}: "
        if measure.value == math.inf:
            return f"{place}it does not become empty, but should within {text(limit)}"
        return f"{place}{self.what} {text(measure.value)} is {self.order} than {text(limit)}"


_DRAIN_HELP = (
    "Maximum time until a channel is empty at the current rates. Slow consumers that finish nothing in the --interval "
    "count as if they finished their messages in flight in this time, unless more messages arrive."
)
METRICS = (
    Metric("depth", "depth", "Maximum depth of all topics and channels together."),
    Metric("topic_depth", "depth", "Maximum depth of a topic."),
    Metric("channel_depth", "depth", "Maximum depth of a channel.", "depth"),
    Metric("backend_depth", "on disk", "Maximum number of messages of a channel on disk.", "backend_depth"),
    Metric("in_flight", "in flight", "Maximum number of messages of a channel in flight.", "in_flight_count"),
    Metric("deferred", "deferred", "Maximum number of deferred messages of a channel.", "deferred_count"),
    Metric("requeue_rate", "requeued", "Maximum number of requeued messages of a channel per second.", "requeues"),
    Metric("timeout_rate", "timed out", "Maximum number of timed out messages of a channel per second.", "timeouts"),
    Metric("drain_time", "time to drain", _DRAIN_HELP, duration=True),
    Metric("clients", "clients", "Minimum number of consumers of a channel.", "client_count", least=True),
    Metric("nodes", "healthy nodes", "Minimum number of nodes that answer and are healthy.", least=True),
)
limit_options: Any = Combined(
    lambda **values: {metric: limit for metric in METRICS if (limit := values[f"limits_{metric.key}"]) is not None},
    {f"limits_{metric.key}": option(metric.help, Parsed("limits", metric.parse), metric.option) for metric in METRICS},
)


class Verdict(enum.StrEnum):
    """The states of monitoring plugins, the worst first."""

    CRITICAL = "CRITICAL"
    UNKNOWN = "UNKNOWN"
    WARNING = "WARNING"
    OK = "OK"


_TONES = {Verdict.CRITICAL: Tone.BAD, Verdict.UNKNOWN: Tone.NOTE, Verdict.WARNING: Tone.NOTE, Verdict.OK: Tone.GOOD}
_SHOWN = 20  # problems in the text: monitoring systems take some kilobytes


@dataclass(frozen=True, slots=True)
class Breach:
    """A value beyond a limit, or unknown. `metric` is empty if it is not about a limit."""

    status: Verdict = column("status")
    metric: str = column("metric", null=True, help="null if a node is the problem")
    topic: str = column("topic", null=True)
    channel: str = column("channel", null=True)
    node: str = column("node", null=True, help="null if not about one")
    value: float | None = column("value", help="null if there is none, or the channel never becomes empty")
    warning: float | None = column("warning")
    critical: float | None = column("critical", help="the limits, or null")
    text: str = column("text")


@contextmanager
def _unknown() -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        setattr(error, "exit_code", ExitCode.UNKNOWN)  # noqa: B010  click has it in the class; main asks the instance
        raise
    except AdminError as error:
        raise AdminError(str(error), ExitCode.UNKNOWN, error.causes) from None


class CheckCommand(AdminCommand):
    """Exits with UNKNOWN where other commands report wrong usage or an error."""

    @_unknown()
    def make_context(self, *args: Any, **attributes: Any) -> click.Context:
        return super().make_context(*args, **attributes)

    @_unknown()
    def invoke(self, ctx: click.Context) -> None:
        super().invoke(ctx)


@command(
    cls=CheckCommand,
    examples="""
        gnsqadmin check --lookupd-http-address lookup.example:4161 --nodes-min 3
        gnsqadmin check --channel-depth 10000,100000 --clients-min 1
        gnsqadmin check --topic orders --channel billing --depth 5000 --clients-min 4,2
        gnsqadmin check --requeue-rate 1,10 --drain-time 10m,1h --interval 30
        gnsqadmin check --channel-depth 50000 --exclude 'audit/*' --exclude '*#ephemeral'
        gnsqadmin check --format prometheus > /var/lib/node_exporter/gnsqadmin.prom
    """,
    document=(
        """
        time     unix seconds
        status   OK, WARNING, CRITICAL or UNKNOWN
        summary  the text of the first line
        """,
        described("problems", "list, the worst first", Breach),
        """
        metrics  the worst value of each: depth, topic_depth, channel_depth,
                 backend_depth, in_flight, deferred, requeue_rate, timeout_rate,
                 drain_time (seconds), clients, nodes; null if there is nothing to
                 measure, and for rates and times without --interval or a limit
        """,
    ),
)
def check(
    cluster: Cluster,
    limits: dict[Metric, Thresholds] = limit_options,
    topic: str = "",
    channel: str = "",
    exclude: tuple[str, ...] = option(
        "Ignore topics, or channels as topic/channel, with names that match; * matches any text, ? any character.",
        multiple=True,
        metavar="PATTERN",
    ),
    interval: float | None = option(
        "Time over which rates and the drain time are measured. [default: 5 if one of them has a limit]", duration(3600)
    ),
    text_format: str = option(
        "Text: for monitoring plugins, or metrics for the textfile collector of Prometheus.",
        click.Choice(["plugin", "prometheus"]),
        "--format",
        default="plugin",
    ),
) -> Shown:
    """LIMITS are CRITICAL, or WARNING,CRITICAL, or WARNING, with a trailing comma: numbers, or durations such as 10m
    for --drain-time. A value equal to a limit is within it. Counts are summed over nodes.

    A node that does not answer or is unhealthy is critical. This also applies to a node that only nsqlookupd lists. An
    nsqlookupd that does not answer is a warning as long as another one answers. The status is unknown if no node has
    the --topic or --channel, and after wrong usage.

    The first line is the one that monitoring systems show: the status, the worst problem, and after a | the worst
    values as performance data. With several problems, the first 20 follow, one per line.
    """
    if interval is None and any(metric.moving for metric in limits):
        interval = 5.0
    try:
        snapshot = take_snapshot(cluster, topic=topic, channel=channel)
        if interval is not None and snapshot.nodes:
            measure_rates(interval)
            snapshot = take_snapshot(cluster, topic=topic, channel=channel, before=snapshot)
        problems = list(_of_snapshot(snapshot, topic, channel))
    except AdminError as error:  # no nsqlookupd answers
        snapshot = ClusterSnapshot({}, [])
        problems = [Breach(Verdict.UNKNOWN, text=str(error))]
    measures = _measure(snapshot, exclude, interval)
    problems += _of_limits(limits, measures) if snapshot.answers else ()
    order = list(Verdict)
    problems.sort(key=lambda problem: order.index(problem.status))
    status = problems[0].status if problems else Verdict.OK
    value = attrgetter("value")
    worst = {
        metric: (min if metric.least else max)(measures[metric.key], key=value, default=None) for metric in METRICS
    }
    if problems:
        more = f", and {plural(len(problems) - 1, 'more problem')}" if len(problems) > 1 else ""
        summary = problems[0].text + more
    else:
        topics, channels = len(measures["topic_depth"]), len(measures["channel_depth"])
        counts = plural(len(snapshot.nodes), "node"), plural(topics, "topic"), plural(channels, "channel")
        summary = f"{', '.join(counts)}, depth {measures['depth'][0].value:,}"
    metrics = {metric.key: _number(measure.value) if measure else None for metric, measure in worst.items()}
    document: dict[str, Any] = {"time": snapshot.clock, "status": status.value, "summary": summary}
    document |= {"problems": problems, "metrics": metrics}
    lines = _prometheus(status, worst)
    if text_format == "plugin":
        lines = _lines(status, summary, problems, _performance(worst, limits))
    return Shown(document, [*lines], table_of(Breach, problems), code=ExitCode[status])


def _measure(snapshot: ClusterSnapshot, excluded: tuple[str, ...], interval: float | None) -> dict[str, list[Measure]]:
    """Returns the values by metric, except for topics, and channels as topic/channel, that match an excluded pattern.
    The flows of the snapshot are those of `interval`, in seconds; without it, no metric that needs them has values."""

    def is_shown(name: str) -> bool:
        return not any(fnmatchcase(name, pattern) for pattern in excluded)

    topics = [topic for topic in snapshot.totals.topics if is_shown(topic.topic_name)]
    keys = [((topic.topic_name, channel.channel_name), channel) for topic in topics for channel in topic.channels]
    channels = {key: channel for key, channel in keys if is_shown("/".join(key))}
    flows = {key: (snapshot.flows or {}).get(key, Flow()) for key in channels}
    drains = {key: drain_seconds(channel, flows[key], interval or 0.0) for key, channel in channels.items()}
    measures = {
        "depth": [Measure(sum(topic.depth for topic in topics) + sum(row.depth for row in channels.values()))],
        "topic_depth": [Measure(topic.depth, topic.topic_name) for topic in topics],
        "drain_time": [Measure(math.inf if seconds is None else seconds, *key) for key, seconds in drains.items()],
        "nodes": [Measure(sum(node.health == "OK" for node in snapshot.nodes.values()))],
    }
    for metric in METRICS:
        if metric.source:
            rows: Mapping[Key, object] = flows if metric.rate else channels
            measures[metric.key] = [Measure(getattr(row, metric.source), *key) for key, row in rows.items()]
        if metric.moving and interval is None:
            measures[metric.key] = []
    return measures


def _of_snapshot(snapshot: ClusterSnapshot, topic: str, channel: str) -> Iterator[Breach]:
    """Yields the problems of nodes, and with the topic or channel of the options."""
    for error in errors_of(snapshot.answers):
        yield Breach(Verdict.CRITICAL, text=str(error), node=str(error.address))
    for address, node in snapshot.nodes.items():
        if node.health != "OK":
            yield Breach(Verdict.CRITICAL, text=f"nsqd at {address}: {node.health}", node=str(address))
    for error in snapshot.lookupd_errors:
        yield Breach(Verdict.WARNING, text=str(error), node=str(error.address))
    if not snapshot.answers:
        yield Breach(Verdict.UNKNOWN, text="nsqlookupd lists no nodes")
    # What was named and does not exist would pass the limits.
    if snapshot.nodes and ((topic and topic not in snapshot.topic_shares) or (channel and not snapshot.channel_shares)):
        what = f"channel {'/'.join(filter(None, (topic, channel)))}" if channel else f"topic {topic}"
        yield Breach(Verdict.UNKNOWN, topic=topic, channel=channel, text=f"no node has the {what}")


def _of_limits(given: dict[Metric, Thresholds], measures: dict[str, list[Measure]]) -> Iterator[Breach]:
    for metric, limits in given.items():
        for measure in sorted(measures[metric.key], key=attrgetter("value"), reverse=not metric.least):
            for status, limit in ((Verdict.CRITICAL, limits.critical), (Verdict.WARNING, limits.warning)):
                if limit is not None and metric.beyond(measure.value, limit):
                    place, text = (measure.topic, measure.channel, ""), metric.complaint(measure, limit)
                    yield Breach(status, metric.key, *place, _number(measure.value), *limits, text)
                    break


def _lines(status: Verdict, summary: str, problems: list[Breach], performance: str) -> Iterator[Block]:
    # A bar is where performance data begins, and nothing from elsewhere may put one there.
    verdict = ("NSQ ", Tone.PLAIN), (status.value, _TONES[status]), (f" - {summary.replace('|', '¦')}", Tone.PLAIN)
    yield Line((*verdict, (f" | {performance}", Tone.FAINT)))
    for problem in problems[:_SHOWN] if len(problems) > 1 else ():
        text = f" {problem.text.replace('|', '¦')}"
        yield Line(((problem.status.value, _TONES[problem.status]), (text, Tone.PLAIN)))
    if (more := len(problems) - _SHOWN) > 0:
        yield Line.of(f"and {more:,} more: --json has them all")


def _prometheus(status: Verdict, worst: dict[Metric, Measure | None]) -> Iterator[Block]:
    """Yields the exit code and the worst value of each metric, in the text format of Prometheus."""
    yield Line.of("# HELP gnsqadmin_check_status Exit code of gnsqadmin check: 0 OK, 1 warning, 2 critical, 3 unknown.")
    yield Line.of("# TYPE gnsqadmin_check_status gauge")
    yield Line.of(f"gnsqadmin_check_status {ExitCode[status].value}")
    for metric, measure in worst.items():
        if measure is not None:
            name = f"gnsqadmin_check_{metric.key}{'_seconds' * metric.duration}"
            subject = metric.help.partition(".")[0].partition(" ")[2]  # without Maximum or Minimum
            extreme = (
                f"{'Smallest' if metric.least else 'Largest'} {subject}" if measure.topic else subject.capitalize()
            )
            yield Line.of(f"# HELP {name} {extreme}.")
            yield Line.of(f"# TYPE {name} gauge")
            yield Line.of(f"{name} {'+Inf' if measure.value == math.inf else units.exact(measure.value)}")


def _performance(worst: dict[Metric, Measure | None], given: dict[Metric, Thresholds]) -> str:
    """Returns label=value[s];warning;critical;least for each value, as in the monitoring plugins' guidelines."""
    parts = []
    for metric, measure in worst.items():
        if measure is not None:
            limits = given.get(metric, Thresholds())
            value = "U" if measure.value == math.inf else f"{units.exact(measure.value)}{'s' * metric.duration}"
            # A range whose outside is bad: `10` is 0 to 10, `10:` 10 and more.
            ends = ["" if limit is None else f"{units.exact(limit)}{':' * metric.least}" for limit in limits]
            parts.append(f"{metric.key}={value};{';'.join(ends)};0")
    return " ".join(parts)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
