"""`gnsqadmin doctor`, which finds problems, with evidence and remedies, and `status`, which shows the worst ones."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import click

from nsqadmin_cli import stat_tables, units
from nsqadmin_cli.change import Shown
from nsqadmin_cli.cluster import by_node
from nsqadmin_cli.command_base import command, duration, flag, option
from nsqadmin_cli.context import ClusterSettings, CommandLines
from nsqadmin_cli.diagnosis.examination import DEEP, Examination, Finding, Severity, some_of, troubled
from nsqadmin_cli.diagnosis.nodes import examine_directory, examine_nodes
from nsqadmin_cli.diagnosis.queues import examine_queues
from nsqadmin_cli.errors import ExitCode
from nsqadmin_cli.output import measure_rates
from nsqadmin_cli.snapshot import Totals, require, through
from nsqadmin_cli.table import Block, Cell, Column, Grid, Line, Paragraph, Table, Tone, described
from nsqadmin_cli.units import grouped, plural

_TONES = {Severity.CRITICAL: Tone.BAD, Severity.WARNING: Tone.STRONG_NOTE, Severity.NOTE: Tone.FAINT}
_MARGIN = 10  # columns; the longest severity and two blanks
_OF_A_KIND = 5  # findings that are shown without --all
BRIEFLY = 1.0  # seconds between the two snapshots of status, and of stats --trouble
_WORST = 3  # findings, and deepest channels, that status shows


@command(
    examples="""
        gnsqadmin doctor
        gnsqadmin doctor --lookupd-http-address lookup.example:4161 --interval 10
        gnsqadmin doctor --topic orders --deep 100000
        gnsqadmin doctor --data-path /var/lib/nsqd
        gnsqadmin doctor --json | jq -r '.findings[] | .remedies[].command | values'
    """,
    document=(
        """
        time     unix seconds
        seconds  between the two snapshots
        nodes    list: address, error (null, or why it was not examined)
        counts   how many findings are critical, warning and note
        """,
        described("findings", "list, the worst first", Finding),
        """
        code     of queues: no-consumers, orphan-channel, idle-channel, no-channel,
                 missing-channel, paused-topic, paused-channel, rdy-zero, stuck,
                 stuck-consumer, stuck-topic, slow, growing, requeue-storm, timeouts,
                 dead-letters, dropped;
                 of nodes: unreachable, tcp-unreachable, unhealthy, draining,
                 unserved-node, version-mix, config-drift, clock-skew, no-nodes,
                 disk-full, log-store-behind, certificate-expiry; of nsqlookupd:
                 lookupd-unreachable, not-registered, tombstoned, ghost-topic,
                 bad-listing; of the data directory: disk-full, bad-files, journals,
                 orphan-files, no-metadata, bad-metadata
        """,
    ),
)
def doctor(
    settings: ClusterSettings,
    topic: str = "",
    channel: str = "",
    interval: float = option(
        "Time between the two snapshots. Findings such as stuck are more reliable with a longer time.",
        duration(3600),
        default="3",
    ),
    deep: int = option("Depth from which a queue counts as deep.", click.IntRange(1), default=DEEP),
    data_path: str | None = option(
        "Also examine this data directory: its disk, files set aside as .bad, and orphaned files.",
        click.Path(exists=True, file_okay=False),
    ),
    everything: bool = flag("Show every finding, not only the first 5 of a kind.", "--all"),
) -> Shown:
    """doctor takes two snapshots to find changes. It modifies nothing. Each finding has evidence and remedies, with
    commands for the nodes that were examined.

    Critical: messages are lost or not consumed. Warning: messages will probably be lost or not consumed. Note: the
    state may be intended. The exit code is 1 if there are findings other than notes.
    """
    here = list(examine_directory(data_path)) if data_path else []  # reports a wrong path at once
    cluster = settings.cluster()
    where = {"topic": topic, "channel": channel}
    examination = Examination(
        cluster, CommandLines(settings), **where, interval=interval, deep=deep, tcp=True, wait=measure_rates
    )
    after = examination.after
    require(cluster, after, topic, channel)
    findings = findings_of(examination, here)
    document: dict[str, Any] = {"time": after.clock, "seconds": examination.seconds, "nodes": by_node(after.answers)}
    document |= {"counts": _counts(findings), "findings": findings}
    blocks = [*_blocks(findings, None if everything else _OF_A_KIND), *_summary(examination, findings)]
    columns = ("severity", "code", "topic", "channel", "node", "summary", "evidence", "command")
    table = Table([Column(key, key) for key in columns])
    for finding in findings:
        command = next((remedy.command for remedy in finding.remedies if remedy.command), "")
        about = [finding.severity.value, finding.code, finding.topic, finding.channel, finding.node, finding.summary]
        table.rows.append([*about, "; ".join(finding.evidence), command])
    is_well = all(finding.severity is Severity.NOTE for finding in findings)
    return Shown(document, blocks, table, code=ExitCode.OK if is_well else ExitCode.FAILED)


def findings_of(examination: Examination, here: Sequence[Finding] = ()) -> list[Finding]:
    """Returns all findings, also those `here`, the worst first."""
    order = list(Severity)
    findings = [*examine_nodes(examination), *here, *examine_queues(examination)]
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def _label_of(severity: Severity) -> tuple[str, Tone]:
    return severity.value.upper().ljust(_MARGIN), _TONES[severity]


def _counts(findings: list[Finding]) -> dict[str, int]:
    return {severity.value: sum(finding.severity is severity for finding in findings) for severity in Severity}


def _blocks(findings: list[Finding], of_a_kind: int | None) -> Iterator[Block]:
    """Yields the findings, limited for each kind and severity, and the number left out."""
    blank = (" " * _MARGIN, Tone.PLAIN)
    for (severity, code), alike in grouped(((finding.severity, finding.code), finding) for finding in findings).items():
        shown = alike[:of_a_kind]
        for finding in shown:
            yield Paragraph(_label_of(severity), finding.summary, Tone.STRONG)
            for text in finding.evidence:
                yield Paragraph(blank, text)
            for remedy in finding.remedies:
                yield Paragraph((" " * (_MARGIN - 2) + "→ ", Tone.GOOD), remedy.text)
                if remedy.command:
                    yield Line(((" " * (_MARGIN + 2), Tone.PLAIN), (remedy.command, Tone.NODE)))
            yield Line()
        if more := len(alike) - len(shown):
            yield Paragraph(blank, f"and {more:,} more of kind {code}: --all shows them", Tone.FAINT)
            yield Line()


def _queues(totals: Totals) -> str:
    topics, channels = plural(totals.topic_count, "topic"), plural(totals.channel_count, "channel")
    return f"{topics}, {channels}, {plural(totals.client_count, 'consumer')}"


def _summary(examination: Examination, findings: list[Finding]) -> Iterator[Block]:
    after, totals = examination.after, examination.after.totals
    looked = f"{plural(len(after.nodes), 'node')}, {_queues(totals)}"
    counts = _counts(findings)
    text = f"{counts['critical']:,} critical, {plural(counts['warning'], 'warning')}, {plural(counts['note'], 'note')}"
    label = (f"{text}: ", _TONES[findings[0].severity]) if findings else ("No problems: ", Tone.GOOD)
    yield Paragraph(label, f"{looked}, watched for {examination.seconds:.1f} s.")


@command(
    examples="""
        gnsqadmin status
        gnsqadmin status --lookupd-http-address lookup.example:4161
        gnsqadmin status --json | jq .totals.depth
    """,
    document=(
        """
        nodes    how many there are
        nodes_up how many answer
        """,
        described("totals", "the sums over all nodes", Totals),
        """
        trouble  list of topics and channels that findings other than notes are
                 about: topic, channel (empty: the topic itself), code
        """,
        described("findings", "list, the worst first, as of doctor", Finding),
    ),
)
def status(settings: ClusterSettings) -> Shown:
    """The three channels with the most queued messages, and the three worst findings of doctor, which are more reliable
    when it watches for longer. In trouble are the topics and channels that findings other than notes are about: the
    rows of stats --trouble. The exit code is 1 if no node answers.

    gnsqadmin without a command shows the same on a terminal.
    """
    examination = Examination(settings.cluster(), CommandLines(settings), interval=BRIEFLY, wait=measure_rates)
    findings = findings_of(examination)
    trouble = troubled(findings)
    after, totals, flow = examination.after, examination.after.totals, through(examination.after.flows or {})
    there, known = len(after.nodes), len(after.answers)
    document = {"nodes": known, "nodes_up": there, "totals": totals, "findings": findings}
    document["trouble"] = [{"topic": key[0], "channel": key[1], "code": code} for key, code in trouble.items()]
    rates = f"{units.rate(flow.ingress)}/s published, {units.rate(flow.egress)}/s finished"
    tone = Tone.BAD if trouble else Tone.GOOD
    facts: dict[str, Cell | str] = {
        "nodes": Cell(f"{there:,} of {known:,} answer", Tone.GOOD if there == known else Tone.BAD),
        "queues": _queues(totals),
        "messages": f"{totals.depth:,} queued, {totals.in_flight_count:,} in flight, {rates}",
        "trouble": Cell(some_of(["/".join(key).rstrip("/") for key in trouble]) or "none", tone),
    }
    table = stat_tables.channel_table(after, watched=True)
    stat_tables.make_compact(table)
    table.sort([column.key for column in table.columns].index("depth"))
    del table.rows[_WORST:]
    blocks: list[Block] = [Grid.of(facts), *([table] if table.rows else [])]
    blocks += [Paragraph(_label_of(finding.severity), finding.summary) for finding in findings[:_WORST]]
    more = f"{plural(len(findings) - _WORST, 'more finding')} and " if len(findings) > _WORST else ""
    text = f"gnsqadmin doctor shows {more}remedies, gnsqadmin top all queues, gnsqadmin --help all commands."
    blocks.append(Paragraph(("→ ", Tone.GOOD), text))
    code = ExitCode.OK if after.nodes else ExitCode.FAILED
    return Shown(document, blocks, partial(stat_tables.channel_table, after, watched=True), code=code)
