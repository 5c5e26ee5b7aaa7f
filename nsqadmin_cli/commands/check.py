"""`gnsqadmin check`: checks limits, as a plugin for monitoring systems."""

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from nsqadmin_cli import units
from nsqadmin_cli.cluster import Cluster, errors_of
from nsqadmin_cli.command import AdminCommand, command
from nsqadmin_cli.errors import AdminError, ExitCode
from nsqadmin_cli.look import Look, look
from nsqadmin_cli.options import Duration, channel_option, cluster_options, output_options, topic_option
from nsqadmin_cli.output import Output
from nsqadmin_cli.table import Block, Cell, Column, Line, Table, Tone
from nsqadmin_cli.text import plural
from nsqadmin_cli.thresholds import METRICS, Limits, Measure, Metric, Scope, limit_options


class Status(enum.StrEnum):
    """The states of monitoring plugins, the worst first."""

    CRITICAL = "CRITICAL"
    UNKNOWN = "UNKNOWN"
    WARNING = "WARNING"
    OK = "OK"


_TONES = {Status.CRITICAL: Tone.BAD, Status.UNKNOWN: Tone.NOTE, Status.WARNING: Tone.NOTE, Status.OK: Tone.GOOD}
_CODES = {
    Status.CRITICAL: ExitCode.CRITICAL,
    Status.UNKNOWN: ExitCode.UNKNOWN,
    Status.WARNING: ExitCode.WARNING,
    Status.OK: ExitCode.OK,
}


_SHOWN = 20  # problems in the text: monitoring systems take some kilobytes


@dataclass(frozen=True, slots=True)
class Problem:
    """A value beyond a limit, or unknown. `metric` is empty if it is not about a limit."""

    status: Status
    text: str
    metric: str = ""
    measure: Measure = Measure(math.nan)
    limits: Limits = Limits()
    node: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "status": self.status.value,
            "metric": self.metric or None,
            "topic": self.measure.topic or None,
            "channel": self.measure.channel or None,
            "node": self.node or None,
            "value": _number(self.measure.value),
            "warning": self.limits.warning,
            "critical": self.limits.critical,
            "text": self.text,
        }


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
    """,
    document="""
        time      unix seconds
        status    OK, WARNING, CRITICAL or UNKNOWN
        summary   the text of the first line
        problems  list, the worst first: status, metric (null if a node is the
                  problem), topic, channel, node (null if not about one), value
                  (null if there is none, or the channel never becomes empty),
                  warning, critical (the limits, or null), text
        metrics   the worst value of each: depth, topic_depth, channel_depth,
                  backend_depth, in_flight, deferred, requeue_rate, timeout_rate,
                  drain_time (seconds), clients, nodes; null if there is nothing to
                  measure, and for rates and times without --interval or a limit
    """,
)
@limit_options
@topic_option
@channel_option
@click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Ignore topics, or channels as topic/channel, with names that match; * matches any text, ? any character.",
)
@click.option(
    "--interval",
    type=Duration(3600),
    metavar="DURATION",
    help="Time over which rates and the drain time are measured. [default: 5 if one of them has a limit]",
)
@cluster_options
@output_options
@click.pass_context
def check(
    ctx: click.Context,
    /,
    cluster: Cluster,
    output: Output,
    topic: str,
    channel: str,
    exclude: tuple[str, ...],
    interval: float | None,
    **limits: Limits | None,
) -> None:
    """Check that all is within limits: exit code 0 OK, 1 warning, 2 critical, 3 unknown.

    LIMITS are CRITICAL, or WARNING,CRITICAL, or WARNING, with a trailing comma: numbers, or durations such as 10m for
    --drain-time. A value equal to a limit is within it. Counts are summed over nodes.

    A node that does not answer or is unhealthy is critical, also if it is only listed by nsqlookupd. An nsqlookupd that
    does not answer is a warning as long as another one answers. A --topic or --channel that no node has is unknown; so
    is wrong usage.

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
        seen = Look({}, [])
        found = [Problem(Status.UNKNOWN, str(error))]
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
            "problems": [problem.as_json() for problem in problems],
            "metrics": {metric.key: _number(measure.value) if measure else None for metric, measure in worst.items()},
        },
        lambda: list(_lines(status, summary, problems, _performance(worst, given))),
        lambda: _table(problems),
    )
    ctx.exit(_CODES[status])


def _look(cluster: Cluster, topic: str, channel: str, interval: float | None) -> Look:
    """One snapshot, or two for rates. AdminError if no nsqlookupd answers."""
    seen = look(cluster, topic=topic, channel=channel)
    if interval is None or not seen.nodes:
        return seen
    from nsqadmin_cli.render.progress import wait  # what it needs loads slowly

    wait(f"measuring rates, {interval:g} s", interval)
    return look(cluster, topic=topic, channel=channel, before=seen)


def _of_nodes(seen: Look) -> Iterator[Problem]:
    for error in errors_of(seen.answers):
        yield Problem(Status.CRITICAL, str(error), node=str(error.address))
    for address, node in seen.nodes.items():
        if node.health != "OK":
            yield Problem(Status.CRITICAL, f"nsqd at {address}: {node.health}", node=str(address))
    for error in seen.lookupd_errors:
        yield Problem(Status.WARNING, str(error), node=str(error.address))
    if not seen.answers:
        yield Problem(Status.UNKNOWN, "nsqlookupd lists no nodes")


def _of_names(seen: Look, topic: str, channel: str) -> Iterator[Problem]:
    """The topic or channel that was named and does not exist: without this, it would pass the limits."""
    if not seen.nodes or (not topic and not channel):
        return
    if topic and not any(found.topic_name == topic for found in seen.totals.topics):
        what = f"channel {topic}/{channel}" if channel else f"topic {topic}"
    elif channel and not any(found.channels for found in seen.totals.topics):
        what = f"channel {topic}/{channel}" if topic else f"channel {channel}"
    else:
        return
    yield Problem(Status.UNKNOWN, f"no node has the {what}", measure=Measure(math.nan, topic, channel))


def _of_limits(given: dict[Metric, Limits], measures: dict[Metric, list[Measure]]) -> Iterator[Problem]:
    for metric, limits in given.items():
        for measure in sorted(measures[metric], key=lambda found: found.value, reverse=not metric.least):
            for status, limit in ((Status.CRITICAL, limits.critical), (Status.WARNING, limits.warning)):
                if limit is not None and metric.beyond(measure.value, limit):
                    text = _place(measure) + metric.complaint(measure.value, limit)
                    yield Problem(status, text, metric.key, measure, limits)
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


def _performance(worst: dict[Metric, Measure | None], given: dict[Metric, Limits]) -> str:
    """label=value[s];warning;critical;least for each value, as in the monitoring plugins' guidelines."""
    parts = []
    for metric, measure in worst.items():
        if measure is not None:
            limits = given.get(metric, Limits())
            value = "U" if measure.value == math.inf else f"{units.exact(measure.value)}{'s' * metric.duration}"
            ends = [_limit(metric, limit) for limit in (limits.warning, limits.critical)]
            parts.append(f"{metric.key}={value};{';'.join(ends)};0")
    return " ".join(parts)


def _limit(metric: Metric, limit: float | None) -> str:
    """A range whose outside is bad: `10` is 0 to 10, `10:` 10 and more."""
    return "" if limit is None else f"{units.exact(limit)}{':' * metric.least}"


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _table(problems: list[Problem]) -> Table:
    columns = ("status", "metric", "topic", "channel", "node", "value", "warning", "critical", "text")
    table = Table([Column(key, key) for key in columns])
    for problem in problems:
        row = problem.as_json()
        table.rows.append([Cell(row[key]) for key in columns])
    return table
