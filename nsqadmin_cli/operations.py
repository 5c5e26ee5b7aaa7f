"""Operations on one topic or channel on all nodes: what would be lost, confirmation, execution, results.

Nodes are queried first, so that a missing topic is reported before confirmation, nodes without it are skipped, and
losses can be shown. Deletion starts at nsqlookupds: otherwise a consumer could be sent to a node that has just deleted
the topic, and create it again.
"""

import enum
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import click

from nsqadmin_cli.api import Action, Lookupd, Nsqd, Peer
from nsqadmin_cli.cluster import Answers, Cluster, ask_all, values_of
from nsqadmin_cli.confirm import Confirm
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import NodeError, Refused, timed_out
from nsqadmin_cli.look import no_such
from nsqadmin_cli.models import ChannelStats, NodeStats, TopicStats
from nsqadmin_cli.output import Output, report
from nsqadmin_cli.table import ALWAYS, Block, Cell, Column, Form, Grid, Line, Row, Table, Tone
from nsqadmin_cli.text import plural

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


def losses_of(operation: Operation, outcome: Outcome[Nsqd]) -> dict[str, int]:
    """What is lost on a node if the operation was or will be done there, else nothing."""
    if outcome.share is None or outcome.result not in (Result.PLANNED, Result.DONE):
        return {}
    return operation.losses(outcome.share)


def sum_of_losses(operation: Operation, outcomes: Iterable[Outcome[Nsqd]]) -> dict[str, int]:
    lost: dict[str, int] = {}
    for outcome in outcomes:
        for key, number in losses_of(operation, outcome).items():
            lost[key] = lost.get(key, 0) + number
    return lost


def plan_for_nodes(cluster: Cluster, operation: Operation, nodes: Sequence[Nsqd]) -> list[Outcome[Nsqd]]:
    """Plan the operation for each of `nodes`, after querying them."""
    # A channel is created only on nodes that have its topic, so the query includes the topic.
    channel = "" if operation.action == "create" else operation.channel
    answers = cluster.ask(partial(Nsqd.stats, topic=operation.topic, channel=channel), nodes)
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


def do_at_lookupds(cluster: Cluster, operation: Operation, outcomes: Sequence[Outcome[Lookupd]]) -> None:
    """Do what is planned, and record the results in `outcomes`."""

    def done(lookupd: Lookupd) -> None:
        assert operation.action in ("create", "delete")
        if operation.channel:
            lookupd.channel(operation.action, operation.topic, operation.channel)
        else:
            lookupd.topic(operation.action, operation.topic)

    do_planned(cluster, outcomes, done)


def do_on_nodes(cluster: Cluster, operation: Operation, outcomes: Sequence[Outcome[Nsqd]]) -> None:
    """Do what is planned, and record the results in `outcomes`."""
    shares = {outcome.peer.address: outcome.share for outcome in outcomes}

    def done(node: Nsqd) -> None:
        if operation.channel:
            node.channel(operation.action, operation.topic, operation.channel)
            return
        node.topic(operation.action, operation.topic)
        share = shares[node.address]
        if operation.with_channels and isinstance(share, TopicStats):
            for channel in share.channels:
                _empty_channel(node, operation.topic, channel.channel_name)

    with _progress(operation, len(outcomes)) as advance:
        do_planned(cluster, outcomes, done, advance)


def _empty_channel(node: Nsqd, topic: str, channel: str) -> None:
    try:
        node.channel("empty", topic, channel)
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
            outcome.error = _perhaps_done(answer, cluster.timeout)


def _perhaps_done(error: NodeError, timeout: float) -> NodeError:
    """A daemon completes an operation even if its client no longer waits for the answer."""
    if error.reason != timed_out(timeout):
        return error
    return NodeError(error.program, error.address, f"{error.reason}; it may still have been done")


def _progress(operation: Operation, count: int) -> AbstractContextManager[Callable[[int], None]]:
    if not sys.stderr.isatty():
        return nullcontext(lambda done: None)
    from nsqadmin_cli.render.progress import progress  # imported late: it loads slowly

    doing = {"create": "creating", "delete": "deleting", "empty": "emptying", "pause": "pausing"}
    return progress(f"{doing.get(operation.action, 'unpausing')} {operation}", total=count, unit="nodes")


DOCUMENT = """
    action    create, delete, empty, pause, unpause or tombstone
    topic
    channel   null for the topic itself
    dry_run   true: nothing was done
    nodes     list, in the order asked: address, result, error (null, or why it
              failed), lost
    lookupds  list of the nsqlookupds involved: address, result, error
    lost      the sums over all nodes
    A result is "done", "already" (no change was needed), "absent" (no such topic or
    channel), "failed", or "planned" in a dry run. "lost" has the counts shortly
    before: depth, in_flight_count, deferred_count, client_count, channel_count, as
    far as the action affects them; null if nothing is lost.
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
_TAKING = {"delete": "Deleting", "empty": "Emptying"}

_LOSSES = {
    "channel_count": Column("channel_count", "channels", form=Form.COUNT, keep=6),
    "depth": Column("depth", "depth", form=Form.COUNT, keep=ALWAYS),
    "in_flight_count": Column("in_flight_count", "in flight", "inflt", Form.COUNT, keep=ALWAYS),
    "deferred_count": Column("deferred_count", "deferred", "def", Form.COUNT, keep=6),
    "client_count": Column("client_count", "clients", form=Form.COUNT, keep=ALWAYS),
}


def operate(
    ctx: click.Context,
    cluster: Cluster,
    output: Output,
    operation: Operation,
    confirm: Confirm | None = None,
    *,
    lookupd_only: bool = False,
) -> None:
    """Do `operation` on all nodes that have what it is about, and end the command; destructive ones need `confirm`."""
    if lookupd_only and not cluster.lookupds:
        raise click.UsageError("--lookupd-only requires an nsqlookupd: give it by --lookupd-http-address.")
    nodes = [] if lookupd_only else cluster.nsqds()
    outcomes = plan_for_nodes(cluster, operation, nodes)
    lookupds = plan_for_lookupds(cluster, operation)
    errors = cluster.lookupd_errors
    _require(cluster, operation, outcomes, lookupds, errors, lookupd_only=lookupd_only)
    dry_run = confirm is not None and confirm.dry_run
    if not dry_run:
        if confirm is not None:
            confirm_losses(confirm, operation, outcomes, lookupds)
        do_at_lookupds(cluster, operation, lookupds)
        do_on_nodes(cluster, operation, outcomes)
    show_outcomes(output, operation, outcomes, lookupds, dry_run=dry_run)
    ctx.exit(report([*errors, *failures(outcomes, lookupds, errors)]))


def _require(
    cluster: Cluster,
    operation: Operation,
    outcomes: Sequence[Outcome[Nsqd]],
    lookupds: Sequence[Outcome[Lookupd]],
    errors: Sequence[AdminError],
    *,
    lookupd_only: bool,
) -> None:
    """Raise unless the topic or channel exists."""
    if any(outcome.result in (Result.PLANNED, Result.ALREADY) for outcome in outcomes) or lookupd_only:
        return
    if any(outcome.result is Result.PLANNED for outcome in lookupds) and (
        operation.action == "delete" or not operation.channel
    ):
        return  # a topic or channel that nsqlookupds alone remember, or a topic for nodes that will come
    if operation.action == "create" and operation.channel and is_listed(cluster, operation.topic):
        return
    channel = "" if operation.action == "create" else operation.channel
    raise no_such(cluster, [*errors, *failures(outcomes, (), errors)], operation.topic, channel)


def is_listed(cluster: Cluster, topic: str) -> bool:
    """Whether any nsqlookupd lists the topic."""
    return any(topic in topics for topics in values_of(cluster.ask_lookupds(Lookupd.topics)).values())


def failures(
    outcomes: Sequence[Outcome[Nsqd]], lookupds: Sequence[Outcome[Lookupd]], known: Sequence[AdminError]
) -> list[AdminError]:
    """The errors of `outcomes`, except those in `known`."""
    told = {str(error) for error in known}
    errors = [outcome.error for outcome in lookupds] + [outcome.error for outcome in outcomes]
    return [error for error in errors if error is not None and str(error) not in told]


def confirm_losses(
    confirm: Confirm,
    operation: Operation,
    outcomes: Sequence[Outcome[Nsqd]],
    lookupds: Sequence[Outcome[Lookupd]],
) -> None:
    """Return if confirmed; AdminError."""
    confirm.ask(
        f"{_warning(operation, outcomes)}.",
        blocks(operation, outcomes, lookupds),
        "Empty it?" if operation.action == "empty" else "Delete it?",
    )


def _warning(operation: Operation, outcomes: Sequence[Outcome[Nsqd]]) -> str:
    """Deleting the topic x on 2 nodes loses 7 messages and disconnects 3 clients"""
    count = sum(outcome.result in (Result.PLANNED, Result.DONE) for outcome in outcomes)
    lost = sum_of_losses(operation, outcomes)
    messages = sum(lost.get(key, 0) for key in ("depth", "in_flight_count", "deferred_count"))
    where = f"on {plural(count, 'node')}" if count else "at nsqlookupd"
    lost_messages = plural(messages, "message") if messages else "no messages"
    text = f"{_TAKING[operation.action]} {operation} {where} loses {lost_messages}"
    clients = lost.get("client_count", 0)
    return f"{text} and disconnects {plural(clients, 'client')}" if clients else text


def show_outcomes(
    output: Output,
    operation: Operation,
    outcomes: Sequence[Outcome[Nsqd]],
    lookupds: Sequence[Outcome[Lookupd]],
    *,
    dry_run: bool = False,
    lookupd_action: str = "",
) -> None:
    """Print the results. `lookupd_action` is the action at nsqlookupds, if it differs."""

    def made() -> list[Block]:
        found = blocks(operation, outcomes, lookupds, lookupd_action)
        if dry_run:
            warning = f"{_warning(operation, outcomes)}. " if outcomes or not lookupd_action else ""
            found.append(Line.of(f"{warning}Nothing was done."))
        return found

    output.show(
        lambda: document(operation, outcomes, lookupds, dry_run=dry_run, action=lookupd_action or operation.action),
        made,
        lambda: _flat_table(operation, outcomes, lookupds, lookupd_action),
    )


def document(
    operation: Operation,
    outcomes: Sequence[Outcome[Nsqd]],
    lookupds: Sequence[Outcome[Lookupd]],
    *,
    dry_run: bool = False,
    action: str = "",
) -> dict[str, Any]:
    return {
        "action": action or operation.action,
        "topic": operation.topic,
        "channel": operation.channel or None,
        "dry_run": dry_run,
        "nodes": [_outcome_document(outcome) | {"lost": losses_of(operation, outcome) or None} for outcome in outcomes],
        "lookupds": [_outcome_document(outcome) for outcome in lookupds],
        "lost": sum_of_losses(operation, outcomes) or None,
    }


def _outcome_document(outcome: Outcome[Nsqd] | Outcome[Lookupd]) -> dict[str, Any]:
    error = outcome.error.reason if outcome.error is not None else None
    return {"address": str(outcome.peer.address), "result": str(outcome.result), "error": error}


def blocks(
    operation: Operation,
    outcomes: Sequence[Outcome[Nsqd]],
    lookupds: Sequence[Outcome[Lookupd]],
    lookupd_action: str = "",
) -> list[Block]:
    """As text: nodes without the topic are only counted, if others have it."""
    shown = [outcome for outcome in outcomes if outcome.result is not Result.ABSENT]
    found: list[Block] = []
    if operation.is_destructive:
        found += [_table(operation, shown)] if shown else []
    else:
        found.append(
            Grid([[Cell(str(outcome.peer), Tone.NODE), _said(operation.action, outcome)] for outcome in shown])
        )
    action = lookupd_action or operation.action
    told = [outcome for outcome in lookupds if outcome.result is not Result.ABSENT]
    if told:
        rows: list[Sequence[Cell | str]] = [
            [Cell(str(outcome.peer), Tone.NODE), "nsqlookupd", _said(action, outcome)] for outcome in told
        ]
        found.append(Grid(rows))
    if absent := len(outcomes) - len(shown):
        others = "other node" if shown else "node"
        verb = "does" if absent == 1 else "do"
        what = f"the topic {operation.topic}" if operation.action == "create" else "it"
        found.append(Line.of(f"{plural(absent, others)} {verb} not have {what}", Tone.FAINT))
    return found


def _table(operation: Operation, outcomes: Sequence[Outcome[Nsqd]]) -> Table:
    """One row for each node: what is lost there, and the result."""
    keys = list(sum_of_losses(operation, outcomes))
    if not keys and operation.is_destructive and outcomes:
        keys = ["depth"]
    table = Table(
        (
            Column("node", "node", tone=Tone.NODE),
            *(_LOSSES[key] for key in keys),
            Column("result", "result", keep=ALWAYS),
        )
    )
    done = 0
    for outcome in outcomes:
        lost = losses_of(operation, outcome)
        done += outcome.result in (Result.PLANNED, Result.DONE)
        table.rows.append(
            [str(outcome.peer), *(_lost(lost.get(key)) for key in keys), _said(operation.action, outcome)]
        )
    if done > 1:
        whole = sum_of_losses(operation, outcomes)
        total: Row = [Cell(plural(done, "node"), Tone.STRONG), *(_lost(whole.get(key)) for key in keys), None]
        table.total = total if keys else None
    return table


def _flat_table(
    operation: Operation, outcomes: Sequence[Outcome[Nsqd]], lookupds: Sequence[Outcome[Lookupd]], lookupd_action: str
) -> Table:
    """One row for each node and nsqlookupd."""
    table = _table(operation, outcomes)
    first, *others = table.columns
    table.columns = (first, Column("program", "program"), *others)
    table.rows = [[row[0], "nsqd", *row[1:]] for row in table.rows]
    blanks = [None] * (len(others) - 1)
    for outcome in lookupds:
        said = _said(lookupd_action or operation.action, outcome)
        table.rows.append([str(outcome.peer), "nsqlookupd", *blanks, said])
    return table


def _lost(number: int | None) -> Cell | int | None:
    return Cell(number, Tone.NOTE) if number else number


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


def lookupd_only_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--lookupd-only`: parameter `lookupd_only`."""
    return click.option(
        "--lookupd-only",
        is_flag=True,
        help="Create it only at nsqlookupds, as nsqadmin does with topics; nodes create it when it is used.",
    )(function)
