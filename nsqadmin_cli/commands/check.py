"""`gnsqadmin check`: checks limits, as a plugin for monitoring systems.

Each row of METRICS defines an option of `check`, a key of its JSON and a label of its performance data.
"""

import enum
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import click

from nsqadmin_cli import units
from nsqadmin_cli.cluster import Cluster, errors_of
from nsqadmin_cli.command import AdminCommand, Duration, channel_option, command, option, topic_option
from nsqadmin_cli.errors import AdminError, ExitCode
from nsqadmin_cli.output import Output
from nsqadmin_cli.snapshot import Flow, Snapshot, take_snapshot
from nsqadmin_cli.table import Block, Line, Tone, column, described, table_of
from nsqadmin_cli.units import plural


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
    """A metric. `source` is a field of channels or of their flows, or a function. `least`: its limits are lower limits.
    `moving`: it needs two snapshots."""

    key: str
    what: str
    help: str
    source: "str | Callable[[Scope], Iterator[Measure]]"
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

    def measure(self, scope: "Scope") -> Iterator[Measure]:
        if not isinstance(self.source, str):
            yield from self.source(scope)
            return
        for topic, channel, flow in scope.channels():
            yield Measure(getattr(flow if self.rate else channel, self.source), topic, channel.channel_name)

    def beyond(self, value: float, limit: float | None) -> bool:
        return limit is not None and (value < limit if self.least else value > limit)

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


def _drain_time(scope: Scope) -> Iterator[Measure]:
    for topic, channel, flow in scope.channels():
        seconds = flow.drain_seconds(channel.depth)
        yield Measure(math.inf if seconds is None else seconds, topic, channel.channel_name)


def _nodes(scope: Scope) -> Iterator[Measure]:
    yield Measure(sum(node.health == "OK" for node in scope.seen.nodes.values()))


METRICS = (
    Metric("depth", "depth", "Maximum depth of all topics and channels together.", _depth),
    Metric("topic_depth", "depth", "Maximum depth of a topic.", _topic_depth),
    Metric("channel_depth", "depth", "Maximum depth of a channel.", "depth"),
    Metric("backend_depth", "on disk", "Maximum number of messages of a channel on disk.", "backend_depth"),
    Metric("in_flight", "in flight", "Maximum number of messages of a channel in flight.", "in_flight_count"),
    Metric("deferred", "deferred", "Maximum number of deferred messages of a channel.", "deferred_count"),
    Metric("requeue_rate", "requeued", "Maximum number of requeued messages of a channel per second.", "requeues"),
    Metric("timeout_rate", "timed out", "Maximum number of timed out messages of a channel per second.", "timeouts"),
    Metric(
        "drain_time",
        "time to drain",
        "Maximum time until a channel is empty at the current rates.",
        _drain_time,
        duration=True,
    ),
    Metric("clients", "clients", "Minimum number of consumers of a channel.", "client_count", least=True),
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
        limits = option(
            metric.option, f"limits_{metric.key}", type=LimitsType(metric), metavar="LIMITS", help=metric.help
        )
        function = limits(function)
    return function


class Status(enum.StrEnum):
    """The states of monitoring plugins, the worst first."""

    CRITICAL = "CRITICAL"
    UNKNOWN = "UNKNOWN"
    WARNING = "WARNING"
    OK = "OK"


_TONES = {Status.CRITICAL: Tone.BAD, Status.UNKNOWN: Tone.NOTE, Status.WARNING: Tone.NOTE, Status.OK: Tone.GOOD}
_SHOWN = 20  # problems in the text: monitoring systems take some kilobytes


@dataclass(frozen=True, slots=True)
class Problem:
    """A value beyond a limit, or unknown. `metric` is empty if it is not about a limit."""

    status: Status = column("status")
    metric: str = column("metric", null=True, help="null if a node is the problem")
    topic: str = column("topic", null=True)
    channel: str = column("channel", null=True)
    node: str = column("node", null=True, help="null if not about one")
    value: float | None = column("value", help="null if there is none, or the channel never becomes empty")
    warning: float | None = column("warning")
    critical: float | None = column("critical", help="the limits, or null")
    text: str = column("text")

    @classmethod
    def of(
        cls,
        status: Status,
        text: str,
        metric: str = "",
        measure: Measure = Measure(math.nan),  # noqa: B008
        limits: Limits = Limits(),
        node: str = "",
    ) -> "Problem":
        value = _number(measure.value)
        return cls(status, metric, measure.topic, measure.channel, node, value, limits.warning, limits.critical, text)


class CheckCommand(AdminCommand):
    """Exits with UNKNOWN where other commands report wrong usage or an error."""

    def make_context(self, *args: Any, **attributes: Any) -> click.Context:
        try:
            return super().make_context(*args, **attributes)
        except click.ClickException as error:
            raise _unknown(error) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            raise _unknown(error) from None
        except AdminError as error:
            raise AdminError(str(error), ExitCode.UNKNOWN) from None


def _unknown(error: click.ClickException) -> click.ClickException:
    setattr(error, "exit_code", ExitCode.UNKNOWN)  # noqa: B010  click has it in the class; main asks the instance
    return error


@command(
    "check",
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
        described("problems", "list, the worst first", Problem),
        """
        metrics  the worst value of each: depth, topic_depth, channel_depth,
                 backend_depth, in_flight, deferred, requeue_rate, timeout_rate,
                 drain_time (seconds), clients, nodes; null if there is nothing to
                 measure, and for rates and times without --interval or a limit
        """,
    ),
)
@limit_options
@topic_option
@channel_option
@option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Ignore topics, or channels as topic/channel, with names that match; * matches any text, ? any character.",
)
@option(
    "--interval",
    type=Duration(3600),
    help="Time over which rates and the drain time are measured. [default: 5 if one of them has a limit]",
)
@option(
    "--format",
    "text_format",
    type=click.Choice(["plugin", "prometheus"]),
    default="plugin",
    help="Text: for monitoring plugins, or metrics for the textfile collector of Prometheus.",
)
def check(
    cluster: Cluster,
    output: Output,
    topic: str,
    channel: str,
    exclude: tuple[str, ...],
    interval: float | None,
    text_format: str,
    **limits: Limits | None,
) -> int:
    """Check that all is within limits: exit code 0 OK, 1 warning, 2 critical, 3 unknown.

    LIMITS are CRITICAL, or WARNING,CRITICAL, or WARNING, with a trailing comma: numbers, or durations such as 10m for
    --drain-time. A value equal to a limit is within it. Counts are summed over nodes.

    A node that does not answer or is unhealthy is critical. This also applies to a node that only nsqlookupd lists. An
    nsqlookupd that does not answer is a warning as long as another one answers. The status is unknown if no node has
    the --topic or --channel, and after wrong usage.

    The first line is the one that monitoring systems show: the status, the worst problem, and after a | the worst
    values as performance data. With several problems, the first 20 follow, one per line.
    """
    given = {metric: told for metric in METRICS if (told := limits[f"limits_{metric.key}"]) is not None}
    if interval is None and any(metric.moving for metric in given):
        interval = 5.0
    try:
        seen = _look(cluster, topic, channel, interval)
        found = [*_of_nodes(seen), *_of_names(seen, topic, channel)]
    except AdminError as error:  # no nsqlookupd answers
        seen = Snapshot({}, [])
        found = [Problem.of(Status.UNKNOWN, str(error))]
    scope = Scope(seen, exclude)
    measures = {
        metric: list(metric.measure(scope)) if interval is not None or not metric.moving else [] for metric in METRICS
    }
    problems = [*found, *(_of_limits(given, measures) if seen.answers else ())]
    order = list(Status)
    problems.sort(key=lambda problem: order.index(problem.status))
    status = problems[0].status if problems else Status.OK
    worst = {metric: metric.worst(values) for metric, values in measures.items()}
    summary = _summary(scope, problems)
    output.show(
        lambda: {
            "time": seen.clock,
            "status": status.value,
            "summary": summary,
            "problems": problems,
            "metrics": {metric.key: _number(measure.value) if measure else None for metric, measure in worst.items()},
        },
        lambda: list(
            _prometheus(status, worst)
            if text_format == "prometheus"
            else _lines(status, summary, problems, _performance(worst, given))
        ),
        lambda: table_of(Problem, problems),
    )
    return ExitCode[status]


def _look(cluster: Cluster, topic: str, channel: str, interval: float | None) -> Snapshot:
    """One snapshot, or two for rates. AdminError if no nsqlookupd answers."""
    seen = take_snapshot(cluster, topic=topic, channel=channel)
    if interval is None or not seen.nodes:
        return seen
    from nsqadmin_cli.render.progress import wait  # what it needs loads slowly

    wait(f"measuring rates, {interval:g} s", interval)
    return take_snapshot(cluster, topic=topic, channel=channel, before=seen)


def _of_nodes(seen: Snapshot) -> Iterator[Problem]:
    for error in errors_of(seen.answers):
        yield Problem.of(Status.CRITICAL, str(error), node=str(error.address))
    for address, node in seen.nodes.items():
        if node.health != "OK":
            yield Problem.of(Status.CRITICAL, f"nsqd at {address}: {node.health}", node=str(address))
    for error in seen.lookupd_errors:
        yield Problem.of(Status.WARNING, str(error), node=str(error.address))
    if not seen.answers:
        yield Problem.of(Status.UNKNOWN, "nsqlookupd lists no nodes")


def _of_names(seen: Snapshot, topic: str, channel: str) -> Iterator[Problem]:
    """The topic or channel that was named and does not exist: without this, it would pass the limits."""
    if not seen.nodes or (not topic and not channel):
        return
    if topic and not any(found.topic_name == topic for found in seen.totals.topics):
        what = f"channel {topic}/{channel}" if channel else f"topic {topic}"
    elif channel and not any(found.channels for found in seen.totals.topics):
        what = f"channel {topic}/{channel}" if topic else f"channel {channel}"
    else:
        return
    yield Problem.of(Status.UNKNOWN, f"no node has the {what}", measure=Measure(math.nan, topic, channel))


def _of_limits(given: dict[Metric, Limits], measures: dict[Metric, list[Measure]]) -> Iterator[Problem]:
    for metric, limits in given.items():
        for measure in sorted(measures[metric], key=lambda found: found.value, reverse=not metric.least):
            for status, limit in ((Status.CRITICAL, limits.critical), (Status.WARNING, limits.warning)):
                if limit is not None and metric.beyond(measure.value, limit):
                    text = _place(measure) + metric.complaint(measure.value, limit)
                    yield Problem.of(status, text, metric.key, measure, limits)
                    break


def _place(measure: Measure) -> str:
    if measure.channel:
        return f"channel {measure.topic}/{measure.channel}: "
    return f"topic {measure.topic}: " if measure.topic else ""


def _summary(scope: Scope, problems: list[Problem]) -> str:
    if not problems:
        channels = sum(1 for _ in scope.channels())
        topics = sum(1 for _ in scope.topics())
        [depth] = METRICS[0].measure(scope)
        counts = plural(len(scope.seen.nodes), "node"), plural(topics, "topic"), plural(channels, "channel")
        return f"{', '.join(counts)}, depth {depth.value:,}"
    more = f", and {plural(len(problems) - 1, 'more problem')}" if len(problems) > 1 else ""
    return problems[0].text + more


def _lines(status: Status, summary: str, problems: list[Problem], performance: str) -> Iterator[Block]:
    # A bar is where performance data begins, and nothing from elsewhere may put one there.
    first = summary.replace("|", "¦")
    yield Line(
        (
            ("NSQ ", Tone.PLAIN),
            (status.value, _TONES[status]),
            (f" - {first}", Tone.PLAIN),
            (f" | {performance}", Tone.FAINT),
        )
    )
    if len(problems) > 1:
        for problem in problems[:_SHOWN]:
            yield Line(
                ((problem.status.value, _TONES[problem.status]), (f" {problem.text.replace('|', '¦')}", Tone.PLAIN))
            )
    if (more := len(problems) - _SHOWN) > 0:
        yield Line.of(f"and {more:,} more: --json has them all")


def _prometheus(status: Status, worst: dict[Metric, Measure | None]) -> Iterator[Line]:
    """The exit code and the worst value of each metric, in the text format of Prometheus."""
    yield Line.of("# HELP gnsqadmin_check_status Exit code of gnsqadmin check: 0 OK, 1 warning, 2 critical, 3 unknown.")
    yield Line.of("# TYPE gnsqadmin_check_status gauge")
    yield Line.of(f"gnsqadmin_check_status {ExitCode[status].value}")
    for metric, measure in worst.items():
        if measure is not None:
            name = f"gnsqadmin_check_{metric.key}{'_seconds' * metric.duration}"
            extreme = "Smallest" if metric.least else "Largest"
            yield Line.of(f"# HELP {name} {extreme} value: {metric.what}.")
            yield Line.of(f"# TYPE {name} gauge")
            yield Line.of(f"{name} {'+Inf' if measure.value == math.inf else units.exact(measure.value)}")


def _performance(worst: dict[Metric, Measure | None], given: dict[Metric, Limits]) -> str:
    """label=value[s];warning;critical;least for each value, as in the monitoring plugins' guidelines."""
    parts = []
    for metric, measure in worst.items():
        if measure is not None:
            limits = given.get(metric, Limits())
            value = "U" if measure.value == math.inf else f"{units.exact(measure.value)}{'s' * metric.duration}"
            # A range whose outside is bad: `10` is 0 to 10, `10:` 10 and more.
            ends = [
                "" if limit is None else f"{units.exact(limit)}{':' * metric.least}"
                for limit in (limits.warning, limits.critical)
            ]
            parts.append(f"{metric.key}={value};{';'.join(ends)};0")
    return " ".join(parts)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
