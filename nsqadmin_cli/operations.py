"""Operations on one topic or channel on all nodes: what would be lost, confirmation, execution, results.

Nodes are queried first, so that a missing topic is reported before confirmation, nodes without it are skipped, and
losses can be shown. Deletion starts at nsqlookupds: otherwise a consumer could be sent to a node that has just deleted
the topic, and create it again.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Generic, TypeVar

import click

from nsqadmin_cli.api import Action, ChannelStats, Lookupd, NodeStats, Nsqd, Peer, TopicStats
from nsqadmin_cli.cluster import Answers, Cluster, ask_all, values_of
from nsqadmin_cli.command import command, option
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import NodeError, Refused, timed_out
from nsqadmin_cli.output import Confirm, Output, not_found, progress, report
from nsqadmin_cli.snapshot import Snapshot, no_such
from nsqadmin_cli.table import ALWAYS, Block, Cell, Form, Grid, Line, Table, Tone, column, table_of
from nsqadmin_cli.units import plural

Share = TopicStats | ChannelStats
P = TypeVar("P", bound=Peer)

_ABSENT = ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND")


class Result(enum.StrEnum):
    """State of an operation at one nsqd or nsqlookupd."""

    PLANNED = "planned"
    DONE = "done"
    ALREADY = "already"  # it was so before
    ABSENT = "absent"  # the topic or channel does not exist
    FAILED = "failed"


@dataclass(slots=True)
class Outcome(Generic[P]):
    """One target of an operation; `share` is the topic or channel on the node shortly before."""

    peer: P
    result: Result
    error: NodeError | None = None
    share: Share | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation, on the topic itself if `channel` is empty. `with_channels` is for emptying a topic."""

    action: Action
    topic: str
    channel: str = ""
    with_channels: bool = False

    def __str__(self) -> str:
        """Its object, as in "no node has ..."."""
        return f"the channel {self.channel} in the topic {self.topic}" if self.channel else f"the topic {self.topic}"

    @property
    def is_pattern(self) -> bool:
        """Whether it is for all topics, or channels, with names that match."""
        return any(letter in self.topic + self.channel for letter in "*?[")

    def matches(self, seen: Snapshot) -> "list[Operation]":
        """The operations that a pattern stands for, by name."""
        return [
            replace(self, topic=topic.topic_name, channel=channel)
            for topic in seen.totals.topics
            if fnmatchcase(topic.topic_name, self.topic)
            for channel in ([one.channel_name for one in topic.channels] if self.channel else [""])
            if fnmatchcase(channel, self.channel)
        ]

    @property
    def is_destructive(self) -> bool:
        return self.action in ("delete", "empty")

    def share_of(self, node: NodeStats) -> Share | None:
        """What a node has of the topic or channel."""
        topic = next((topic for topic in node.topics if topic.topic_name == self.topic), None)
        if topic is None or not self.channel:
            return topic
        return next((one for one in topic.channels if one.channel_name == self.channel), None)

    def losses(self, share: Share) -> dict[str, int]:
        """What is lost with `share`, named as in Totals; empty if the operation is harmless.

        A topic that is emptied keeps what its channels have, a channel that is emptied its clients.
        """
        if not self.is_destructive:
            return {}
        if isinstance(share, TopicStats) and self.action == "empty" and not self.with_channels:
            return {"depth": share.depth}
        channels = share.channels if isinstance(share, TopicStats) else (share,)
        lost = {"channel_count": len(channels)} if self.action == "delete" and not self.channel else {}
        lost |= {
            "depth": sum(one.depth for one in channels) + (share.depth if isinstance(share, TopicStats) else 0),
            "in_flight_count": sum(one.in_flight_count for one in channels),
            "deferred_count": sum(one.deferred_count for one in channels),
        }
        return lost | ({"client_count": sum(one.client_count for one in channels)} if self.action == "delete" else {})


def plan_for_nodes(cluster: Cluster, operation: Operation, nodes: Sequence[Nsqd]) -> list[Outcome[Nsqd]]:
    """Plan the operation for each of `nodes`, after querying them."""
    # A channel is created only on nodes that have its topic, so the query includes the topic.
    channel = "" if operation.action == "create" else operation.channel
    answers = cluster.ask(partial(Nsqd.stats, topic=operation.topic, channel=channel), nodes)
    return _plan(operation, nodes, answers)


def _plan(operation: Operation, nodes: Sequence[Nsqd], answers: Answers[NodeStats]) -> list[Outcome[Nsqd]]:
    outcomes: list[Outcome[Nsqd]] = []
    for node in nodes:
        answer = answers[node.address]
        if isinstance(answer, NodeError):
            outcomes.append(Outcome(node, Result.FAILED, answer))
        else:
            share = operation.share_of(answer)
            has_topic = any(topic.topic_name == operation.topic for topic in answer.topics)
            outcomes.append(Outcome(node, _result(operation, share, has_topic=has_topic), share=share))
    return outcomes


def _result(operation: Operation, share: Share | None, *, has_topic: bool) -> Result:
    if operation.action == "create":
        if share is not None:
            return Result.ALREADY
        return Result.PLANNED if has_topic or not operation.channel else Result.ABSENT
    if share is None:
        return Result.ABSENT
    if operation.action in ("pause", "unpause") and share.paused == (operation.action == "pause"):
        return Result.ALREADY
    return Result.PLANNED


def plan_for_lookupds(cluster: Cluster, operation: Operation) -> list[Outcome[Lookupd]]:
    """Plan the operation for each nsqlookupd; these are only involved in creation and deletion."""
    if operation.action not in ("create", "delete"):
        return []

    def lists(lookupd: Lookupd) -> bool:
        return (
            operation.channel in lookupd.channels(operation.topic)
            if operation.channel
            else operation.topic in lookupd.topics()
        )

    outcomes: list[Outcome[Lookupd]] = []
    answers = cluster.ask_lookupds(lists)
    for lookupd in cluster.lookupds:
        answer = answers[lookupd.address]
        if isinstance(answer, NodeError):
            outcomes.append(Outcome(lookupd, Result.FAILED, answer))
        elif answer == (operation.action == "delete"):
            outcomes.append(Outcome(lookupd, Result.PLANNED))
        else:
            outcomes.append(Outcome(lookupd, Result.ALREADY if answer else Result.ABSENT))
    return outcomes


def do_on_nodes(cluster: Cluster, operation: Operation, outcomes: Sequence[Outcome[Nsqd]]) -> None:
    """Do what is planned, and record the results in `outcomes`."""
    shares = {outcome.peer.address: outcome.share for outcome in outcomes}

    def done(node: Nsqd) -> None:
        node.act(operation.action, operation.topic, operation.channel)
        share = shares[node.address]
        if operation.with_channels and isinstance(share, TopicStats):
            for channel in share.channels:
                _empty_channel(node, operation.topic, channel.channel_name)

    with progress(f"{_DOING[operation.action]} {operation}", len(outcomes), "nodes") as advance:
        do_planned(cluster, outcomes, done, advance)


def _empty_channel(node: Nsqd, topic: str, channel: str) -> None:
    try:
        node.act("empty", topic, channel)
    except UnicodeEncodeError:
        reason = "answered JSON that is not an nsqd's: no channel can have such a name"
        raise NodeError(node.program, node.address, reason) from None


def do_planned(
    cluster: Cluster,
    outcomes: Sequence[Outcome[P]],
    done: Callable[[P], None],
    advance: Callable[[int], None] = lambda count: None,
) -> None:
    """Call `done` for all whose result is PLANNED, and record the results in `outcomes`."""

    def asked(peer: P) -> None:
        try:
            done(peer)
        finally:
            advance(1)

    planned = [outcome for outcome in outcomes if outcome.result is Result.PLANNED]
    answers: Answers[None] = ask_all([outcome.peer for outcome in planned], asked, cluster.timeout)
    for outcome in planned:
        answer = answers[outcome.peer.address]
        if not isinstance(answer, NodeError):
            outcome.result = Result.DONE
        elif isinstance(answer, Refused) and answer.code in _ABSENT:
            outcome.result = Result.ABSENT  # somebody else was faster
        else:
            outcome.result = Result.FAILED
            outcome.error = answer
            if answer.reason == timed_out(cluster.timeout):  # a daemon completes it even if its client has gone
                reason = f"{answer.reason}; it may still have been done"
                outcome.error = NodeError(answer.program, answer.address, reason)


_DOING = {"create": "creating", "delete": "deleting", "empty": "emptying", "pause": "pausing", "unpause": "unpausing"}

_DOCUMENT = """
    action    create, delete, empty, pause, unpause or tombstone
    topic
    channel   null for the topic itself
    dry_run   true: nothing was done
    nodes     list, in the order queried: address, result, error (null, or why it
              failed), lost
    lookupds  list of the nsqlookupds involved: address, result, error
    lost      the sums over all nodes
    A result is "done", "already" (no change was needed), "absent" (no such topic or
    channel), "failed", or "planned" in a dry run. "lost" has the counts shortly
    before: depth, in_flight_count, deferred_count, client_count, channel_count, as
    far as the action affects them; null if nothing is lost.
    With a pattern, the document has action, dry_run and operations: a list of these
    documents, one for each match.
"""

_DONE = {
    "create": "created",
    "delete": "deleted",
    "empty": "emptied",
    "pause": "paused",
    "unpause": "unpaused",
    "tombstone": "hidden",
}
_ALREADY = {"create": "already existed", "pause": "was already paused", "unpause": "was not paused"}


@dataclass(slots=True)
class OutcomeRow:
    """The losses and the result at one target; of a pattern, those of one match, on a number of nodes."""

    address: object = column("node", key="node", tone=Tone.NODE)
    program: str = column("program", default="nsqd")
    topic: str = column("topic", tone=Tone.STRONG)
    channel: str = column("channel", keep=ALWAYS)
    nodes: int | None = column("nodes", form=Form.COUNT, keep=ALWAYS)
    channel_count: object = column("channels", form=Form.COUNT, keep=6)
    depth: object = column("depth", form=Form.COUNT, keep=ALWAYS)
    in_flight_count: object = column("in flight", "inflt", Form.COUNT, keep=ALWAYS)
    deferred_count: object = column("deferred", "def", Form.COUNT, keep=6)
    client_count: object = column("clients", form=Form.COUNT, keep=ALWAYS)
    result: Cell | None = column("result", keep=ALWAYS)


_OF_TARGETS = ("address", "program")
_OF_MATCHES = ("topic", "channel", "nodes")
_LOSSES = ("channel_count", "depth", "in_flight_count", "deferred_count", "client_count")


@dataclass(slots=True)
class Work:
    """An operation and its outcomes at all targets. `lookupd_action` is the action at nsqlookupds, if it differs."""

    operation: Operation
    nodes: Sequence[Outcome[Nsqd]]
    lookupds: Sequence[Outcome[Lookupd]]
    lookupd_action: str = ""

    @property
    def at_lookupds(self) -> str:
        return self.lookupd_action or self.operation.action

    def losses_of(self, outcome: Outcome[Nsqd]) -> dict[str, int]:
        """What is lost on a node if the operation was or will be done there, else nothing."""
        if outcome.share is None or outcome.result not in (Result.PLANNED, Result.DONE):
            return {}
        return self.operation.losses(outcome.share)

    def losses(self) -> dict[str, int]:
        """The sums over all nodes."""
        lost: dict[str, int] = {}
        for outcome in self.nodes:
            for key, number in self.losses_of(outcome).items():
                lost[key] = lost.get(key, 0) + number
        return lost

    def failures(self, known: Sequence[AdminError]) -> list[AdminError]:
        """The errors, except those in `known`."""
        texts = {str(error) for error in known}
        errors = [outcome.error for outcome in self.lookupds] + [outcome.error for outcome in self.nodes]
        return [error for error in errors if error is not None and str(error) not in texts]

    def confirm(self, confirm: Confirm) -> None:
        """Return if confirmed; AdminError."""
        question = "Empty it?" if self.operation.action == "empty" else "Delete it?"
        confirm.ask(f"{self._warning()}.", self._blocks(), question)

    def _warning(self) -> str:
        """Deleting the topic x on 2 nodes loses 7 messages and disconnects 3 clients"""
        count = sum(outcome.result in (Result.PLANNED, Result.DONE) for outcome in self.nodes)
        lost = self.losses()
        messages = sum(lost.get(key, 0) for key in ("depth", "in_flight_count", "deferred_count"))
        where = f"on {plural(count, 'node')}" if count else "at nsqlookupd"
        lost_messages = plural(messages, "message") if messages else "no messages"
        text = f"{_DOING[self.operation.action].capitalize()} {self.operation} {where} loses {lost_messages}"
        clients = lost.get("client_count", 0)
        return f"{text} and disconnects {plural(clients, 'client')}" if clients else text

    def do(self, cluster: Cluster) -> None:
        """Do what is planned, and record the results."""
        action, topic, channel = self.operation.action, self.operation.topic, self.operation.channel
        do_planned(cluster, self.lookupds, lambda lookupd: lookupd.act(action, topic, channel))
        do_on_nodes(cluster, self.operation, self.nodes)

    def show(self, output: Output, *, dry_run: bool = False) -> None:
        """Print the results."""
        end = ""
        if dry_run:
            warned = self.operation.is_destructive and (self.nodes or not self.lookupd_action)
            end = f"{f'{self._warning()}. ' if warned else ''}Nothing was done."
        output.show(
            lambda: self.document(dry_run), lambda: self._blocks(end), lambda: self._table(self.nodes, self.lookupds)
        )

    def document(self, dry_run: bool) -> dict[str, Any]:
        """As specified by DOCUMENT."""

        def outcomes(found: Sequence[Outcome[Any]]) -> list[dict[str, Any]]:
            reasons = [outcome.error.reason if outcome.error else None for outcome in found]
            return [
                {"address": str(outcome.peer.address), "result": outcome.result, "error": reason}
                for outcome, reason in zip(found, reasons, strict=True)
            ]

        lost = [{"lost": self.losses_of(outcome) or None} for outcome in self.nodes]
        return {
            "action": self.at_lookupds,
            "topic": self.operation.topic,
            "channel": self.operation.channel or None,
            "dry_run": dry_run,
            "nodes": [one | other for one, other in zip(outcomes(self.nodes), lost, strict=True)],
            "lookupds": outcomes(self.lookupds),
            "lost": self.losses() or None,
        }

    def _blocks(self, end: str = "") -> list[Block]:
        """As text: nodes without the topic are only counted, if others have it."""
        operation = self.operation
        there = [outcome for outcome in self.nodes if outcome.result is not Result.ABSENT]
        found: list[Block] = []
        if not operation.is_destructive:
            found.append(Grid([[Cell(str(one.peer), Tone.NODE), _said(operation.action, one)] for one in there]))
        elif there:
            found.append(self._table(there))
        listed = [outcome for outcome in self.lookupds if outcome.result is not Result.ABSENT]
        if listed:
            rows: list[Sequence[Cell | str]] = [
                [Cell(str(one.peer), Tone.NODE), "nsqlookupd", _said(self.at_lookupds, one)] for one in listed
            ]
            found.append(Grid(rows))
        if absent := len(self.nodes) - len(there):
            others = "other node" if there else "node"
            verb = "does" if absent == 1 else "do"
            what = f"the topic {operation.topic}" if operation.action == "create" else "it"
            found.append(Line.of(f"{plural(absent, others)} {verb} not have {what}", Tone.FAINT))
        return [*found, Line.of(end)] if end else found

    def _table(self, outcomes: Sequence[Outcome[Nsqd]], lookupds: Sequence[Outcome[Lookupd]] | None = None) -> Table:
        """One row for each node: what is lost there, and the result; for CSV, also one for each of `lookupds`."""
        action = self.operation.action
        rows = [
            OutcomeRow(str(one.peer), result=_said(action, one), **_marked(self.losses_of(one))) for one in outcomes
        ]
        rows += [OutcomeRow(str(one.peer), "nsqlookupd", result=_said(self.at_lookupds, one)) for one in lookupds or ()]
        done = sum(outcome.result in (Result.PLANNED, Result.DONE) for outcome in outcomes)
        lost = self.losses()
        kept = lost or (["depth"] if self.operation.is_destructive and outcomes else [])
        without = {*_OF_MATCHES, *_LOSSES, *(["program"] if lookupds is None else [])}.difference(kept)
        total = OutcomeRow(Cell(plural(done, "node"), Tone.STRONG), **_marked(lost)) if done > 1 and lost else None
        return table_of(OutcomeRow, rows, without=without, total=total)


def _marked(lost: dict[str, int]) -> dict[str, Any]:
    return {key: Cell(number, Tone.NOTE) if number else number for key, number in lost.items()}


def operate(
    cluster: Cluster,
    output: Output,
    operation: Operation,
    confirm: Confirm | None = None,
    *,
    lookupd_only: bool = False,
) -> int:
    """Do `operation` on all nodes that have its object, and return the exit code; destructive ones need `confirm`."""
    if lookupd_only and not cluster.lookupds:
        raise click.UsageError("--lookupd-only requires an nsqlookupd: give it by --lookupd-http-address.")
    nodes = [] if lookupd_only else cluster.nsqds()
    if operation.is_pattern:
        assert confirm is not None
        return _operate_on_matches(cluster, output, operation, confirm, nodes)
    work = Work(operation, plan_for_nodes(cluster, operation, nodes), plan_for_lookupds(cluster, operation))
    errors = cluster.lookupd_errors
    if not lookupd_only:
        _require(cluster, work, errors)
    dry_run = confirm is not None and confirm.dry_run
    if not dry_run:
        if confirm is not None and operation.is_destructive:
            work.confirm(confirm)
        work.do(cluster)
    work.show(output, dry_run=dry_run)
    return report([*errors, *work.failures(errors)])


def _operate_on_matches(
    cluster: Cluster, output: Output, operation: Operation, confirm: Confirm, nodes: Sequence[Nsqd]
) -> int:
    """Do `operation` on everything that matches its pattern, once that is confirmed."""
    seen = Snapshot(cluster.ask(Nsqd.stats, nodes), cluster.lookupd_errors)
    works = [
        Work(one, _plan(one, nodes, seen.answers), plan_for_lookupds(cluster, one)) for one in operation.matches(seen)
    ]
    if not works:
        what = f"channel that matches {operation.topic}/{operation.channel}"
        raise not_found(f"a {what}" if operation.channel else f"a topic that matches {operation.topic}", seen.errors)
    done = f"{plural(len(works), 'channel' if operation.channel else 'topic')}"

    def blocks(end: str = "") -> list[Block]:
        return [_match_table(works), *([Line.of(end)] if end else [])]

    if not confirm.dry_run:
        doing = _DOING[operation.action].capitalize()
        confirm.ask(
            f"{doing} {done} loses what the table shows." if operation.is_destructive else f"{doing} {done}.",
            blocks(),
            "Continue?",
        )
        for work in works:
            work.do(cluster)
    output.show(
        lambda: {
            "action": operation.action,
            "dry_run": confirm.dry_run,
            "operations": [work.document(confirm.dry_run) for work in works],
        },
        lambda: blocks("Nothing was done." if confirm.dry_run else ""),
    )
    failures = {str(error): error for work in works for error in work.failures(seen.errors)}
    return report([*seen.errors, *failures.values()])


def _match_table(works: Sequence[Work]) -> Table:
    rows = []
    for work in works:
        results = [outcome for outcome in work.nodes if outcome.result is not Result.ABSENT]
        worst = max(results, key=lambda outcome: _BY_NEED.index(outcome.result))
        row = OutcomeRow(result=_said(work.operation.action, worst), **_marked(work.losses()))
        row.topic, row.channel, row.nodes = work.operation.topic, work.operation.channel, len(results)
        rows.append(row)
    lost = {key for work in works for key in work.losses()}
    without = {*_OF_TARGETS, *_LOSSES, *([] if works[0].operation.channel else ["channel"])}
    return table_of(OutcomeRow, rows, without=without - lost)


_BY_NEED = (Result.ABSENT, Result.ALREADY, Result.DONE, Result.PLANNED, Result.FAILED)


def _require(cluster: Cluster, work: Work, errors: Sequence[AdminError]) -> None:
    """Raise unless the topic or channel exists."""
    operation = work.operation
    if any(outcome.result in (Result.PLANNED, Result.ALREADY) for outcome in work.nodes):
        return
    if any(outcome.result is Result.PLANNED for outcome in work.lookupds) and (
        operation.action == "delete" or not operation.channel
    ):
        return  # a topic or channel that nsqlookupds alone remember, or a topic for nodes that will come
    if operation.action == "create" and operation.channel and is_listed(cluster, operation.topic):
        return
    channel = "" if operation.action == "create" else operation.channel
    failed = Work(operation, work.nodes, ()).failures(errors)
    raise no_such(cluster, [*errors, *failed], operation.topic, channel)


def is_listed(cluster: Cluster, topic: str) -> bool:
    """Whether any nsqlookupd lists the topic."""
    return any(topic in topics for topics in values_of(cluster.ask_lookupds(Lookupd.topics)).values())


def _said(action: str, outcome: Outcome[Nsqd] | Outcome[Lookupd]) -> Cell:
    """The result as readable text."""
    match outcome.result:
        case Result.DONE:
            return Cell(_DONE[action], Tone.GOOD)
        case Result.ALREADY:
            return Cell(_ALREADY[action], Tone.FAINT)
        case Result.ABSENT:
            return Cell("not there", Tone.FAINT)
        case Result.FAILED:
            reason = outcome.error.reason if outcome.error is not None else ""
            return Cell(f"failed: {reason}", Tone.BAD)
        case Result.PLANNED:
            return Cell(f"to be {_DONE[action]}", Tone.NOTE)


# Decorators of commands that perform an operation, also on all matches of a pattern.
operation_command = partial(command, document=_DOCUMENT)
pattern_command = partial(operation_command, patterns=True)
lookupd_only_option = option(
    "--lookupd-only",
    is_flag=True,
    help="Create it only at nsqlookupds, as nsqadmin does with topics. Nodes create the topic or channel at its "
    "first use.",
)
