"""`gnsqadmin status`: the state of the cluster in about ten lines, which `gnsqadmin` alone shows on a terminal."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from nsqadmin_cli import stat_tables, units
from nsqadmin_cli.change import Shown
from nsqadmin_cli.command_base import command
from nsqadmin_cli.commands.doctor import findings_of, label_of
from nsqadmin_cli.context import ClusterSettings, Commands
from nsqadmin_cli.diagnosis.examination import Examination, Finding
from nsqadmin_cli.errors import ExitCode
from nsqadmin_cli.output import measure_rates
from nsqadmin_cli.snapshot import Totals, through
from nsqadmin_cli.table import Block, Cell, Grid, Paragraph, Tone, described
from nsqadmin_cli.units import plural

_SECONDS = 1.0  # between the two snapshots
_CHANNELS = 3  # those with the most messages
_FINDINGS = 3  # the worst


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
        described("findings", "list, the worst first, as of doctor", Finding),
    ),
)
def status(settings: ClusterSettings) -> Shown:
    """The three channels with the most queued messages, and the three worst findings of doctor, which are more reliable
    when it watches for longer. The exit code is 1 if no node answers.

    gnsqadmin without a command shows the same on a terminal.
    """
    examination = Examination(settings.cluster(), Commands(settings), interval=_SECONDS, wait=measure_rates)
    findings = findings_of(examination)
    after = examination.after
    document: dict[str, Any] = {"nodes": len(after.answers), "nodes_up": len(after.nodes), "totals": after.totals}
    channels = partial(stat_tables.channel_table, after, watched=True)
    code = ExitCode.OK if after.nodes else ExitCode.FAILED
    return Shown(document | {"findings": findings}, [*_blocks(examination, findings)], channels, code=code)


def _blocks(examination: Examination, findings: list[Finding]) -> Iterator[Block]:
    after, totals, flow = examination.after, examination.after.totals, through(examination.after.flows or {})
    there, known = len(after.nodes), len(after.answers)
    topics, channels = plural(totals.topic_count, "topic"), plural(totals.channel_count, "channel")
    rates = f"{units.rate(flow.ingress)}/s published, {units.rate(flow.egress)}/s finished"
    yield Grid.of(
        {
            "nodes": Cell(f"{there:,} of {known:,} answer", Tone.GOOD if there == known else Tone.BAD),
            "queues": f"{topics}, {channels}, {plural(totals.client_count, 'consumer')}",
            "messages": f"{totals.depth:,} queued, {totals.in_flight_count:,} in flight, {rates}",
        }
    )
    table = stat_tables.channel_table(after, watched=True)
    stat_tables.make_compact(table)
    table.sort([column.key for column in table.columns].index("depth"))
    del table.rows[_CHANNELS:]
    if table.rows:
        yield table
    for finding in findings[:_FINDINGS]:
        yield Paragraph(label_of(finding.severity), finding.summary)
    more = f"{plural(len(findings) - _FINDINGS, 'more finding')} and " if len(findings) > _FINDINGS else ""
    text = f"gnsqadmin doctor shows {more}remedies, gnsqadmin top all queues, gnsqadmin --help all commands."
    yield Paragraph(("→ ", Tone.GOOD), text)
