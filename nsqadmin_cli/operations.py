"""Operations on one topic or channel on all nodes: what would be lost, confirmation, execution, results.

Nodes are queried first, so that a missing topic is reported before confirmation, nodes without it are skipped, and
losses can be shown. Deletion starts at nsqlookupds: otherwise a consumer could be sent to a node that has just deleted
the topic, and create it again.
"""

import enum
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import click

from nsqadmin_cli.api import Action, ChannelStats, Lookupd, NodeStats, Nsqd, Peer, TopicStats, located
from nsqadmin_cli.change import Change, Shown, ending
from nsqadmin_cli.cluster import Answers, Cluster, ask_all, values_of
from nsqadmin_cli.command_base import ChangeCommand, Name, argument, change_command, flag
from nsqadmin_cli.errors import AdminError, NotFound
from nsqadmin_cli.http_client import NodeError, NodeRefused, timed_out
from nsqadmin_cli.output import Advance, not_found, progress
from nsqadmin_cli.snapshot import ClusterSnapshot, by_key, no_such
from nsqadmin_cli.table import ALWAYS, Block, Cell, Form, Grid, Line, Table, Tone, column, failed, table_of
from nsqadmin_cli.units import plural, printable

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
    """An operation, on the topic itself if `channel` is empty. `with_channels` is for emptying a topic, `lookupd_only`
    for creation at nsqlookupds."""

    action: Action
    topic: str
    channel: str = ""
    with_channels: bool = False
    lookupd_only: bool = False

    def __str__(self) -> str:
        """Its object, as in "no node has ..."."""
        return f"the channel {self.channel} in the topic {self.topic}" if self.channel else f"the topic {self.topic}"

    def matches(self, snapshot: ClusterSnapshot) -> "list[Operation]":
        """The operations that a pattern stands for, by name."""
        known = snapshot.channel_shares if self.channel else [(topic, "") for topic in snapshot.topic_shares]
        names = sorted(key for key in known if fnmatchcase(key[0], self.topic) and fnmatchcase(key[1], self.channel))
        return [replace(self, topic=topic, channel=channel) for topic, channel in names]

    @property
    def is_destructive(self) -> bool:
        return self.action in ("delete", "empty")

    def losses(self, share: Share) -> dict[str, int]:
        """What is lost with `share`, named as in Totals; empty if the operation is harmless. A topic that is emptied
        keeps what its channels have, a channel that is emptied its clients."""
        if not self.is_destructive:
            return {}
        if isinstance(share, TopicStats) and self.action == "empty" and not self.with_channels:
            return {"depth": share.depth}
        channels = share.channels if isinstance(share, TopicStats) else (share,)
        lost = {"channel_count": len(channels)} if self.action == "delete" and not self.channel else {}
        lost["depth"] = sum(channel.depth for channel in channels)
        lost["depth"] += share.depth if isinstance(share, TopicStats) else 0
        names = ["in_flight_count", "deferred_count", *(["client_count"] if self.action == "delete" else [])]
        return lost | {name: sum(getattr(channel, name) for channel in channels) for name in names}


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
            continue
        rows, result = by_key(answer), Result.PLANNED
        share = rows.get((operation.topic, operation.channel))
        if share is not None and operation.action in ("create", "pause" if share.paused else "unpause"):
            result = Result.ALREADY
        elif share is None and (
            operation.action != "create" or (operation.channel and (operation.topic, "") not in rows)
        ):
            result = Result.ABSENT
        outcomes.append(Outcome(node, result, share=share))
    return outcomes


def plan_for_lookupds(cluster: Cluster, operation: Operation) -> list[Outcome[Lookupd]]:
    """Plan the operation for each nsqlookupd; these are only involved in creation and deletion."""
    if operation.action not in ("create", "delete"):
        return []
    topic, channel = operation.topic, operation.channel
    answers = cluster.ask_lookupds(
        lambda lookupd: channel in lookupd.channels(topic) if channel else topic in lookupd.topics()
    )
    outcomes: list[Outcome[Lookupd]] = []
    for lookupd in cluster.lookupds:
        answer = answers[lookupd.address]
        if isinstance(answer, NodeError):
            outcomes.append(Outcome(lookupd, Result.FAILED, answer))
        elif answer == (operation.action == "delete"):
            outcomes.append(Outcome(lookupd, Result.PLANNED))
        else:
            outcomes.append(Outcome(lookupd, Result.ALREADY if answer else Result.ABSENT))
    return outcomes


def do_planned(
    cluster: Cluster, outcomes: Sequence[Outcome[P]], done: Callable[[P], None], advance: Advance = lambda count: None
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
        elif isinstance(answer, NodeRefused) and answer.code in _ABSENT:
            outcome.result = Result.ABSENT  # somebody else was faster
        else:
            outcome.result = Result.FAILED
            outcome.error = answer
            if answer.reason == timed_out(cluster.timeout):  # a daemon completes it even if its client has gone
                reason = f"{answer.reason}; it may still have been done"
                outcome.error = NodeError(answer.program, answer.address, reason)


_DOING = {"create": "creating", "delete": "deleting", "empty": "emptying", "pause": "pausing", "unpause": "unpausing"}

DOCUMENT = """
    action    create, delete, empty, pause, unpause or tombstone
    topic
    channel   null for the topic itself
    dry_run   true: nothing was done
    nodes     list, in the order queried: address, result, error (null, or why it
              failed), lost
    lookupds  list of the nsqlookupds involved: address, result, error
    lost      the sums over all nodes
    A result is "done", "already" (no change was needed), "absent" (no such topic
    or channel), "failed", or "planned" in a dry run. "lost" has the counts
    shortly before: depth, in_flight_count, deferred_count, client_count,
    channel_count, as far as the action affects them; null if nothing is lost.
    With a pattern, the document has action, dry_run and operations: a list of
    these documents, one for each match.
"""

_DONE = {"create": "created", "delete": "deleted", "empty": "emptied", "pause": "paused", "unpause": "unpaused"}
_ALREADY = {"create": "already existed", "pause": "was already paused", "unpause": "was not paused"}


@dataclass(slots=True)
class OutcomeRow:
    """The losses and the result at one target; of a pattern, those of one match, on a number of nodes."""

    address: object = column("node", key="node", tone=Tone.NODE)
    program: str = column("program", default="nsqd")
    topic: str | None = column("topic", tone=Tone.STRONG, sparse=True)
    channel: str | None = column("channel", keep=ALWAYS, sparse=True)
    nodes: int | None = column("nodes", form=Form.COUNT, keep=ALWAYS, sparse=True)
    channel_count: object = column("channels", form=Form.COUNT, keep=6, tone=Tone.NOTE, sparse=True)
    depth: object = column("depth", form=Form.COUNT, keep=ALWAYS, tone=Tone.NOTE)
    in_flight_count: object = column("in flight", "inflt", Form.COUNT, keep=ALWAYS, tone=Tone.NOTE, sparse=True)
    deferred_count: object = column("deferred", "def", Form.COUNT, keep=6, tone=Tone.NOTE, sparse=True)
    client_count: object = column("clients", form=Form.COUNT, keep=ALWAYS, tone=Tone.NOTE, sparse=True)
    result: Cell | None = column("result", keep=ALWAYS)


@dataclass(slots=True)
class Work:
    """An operation and its outcomes at all targets. With `hidden`, the name of a node, nsqlookupds only hide it from
    consumers of the topic, which is deleted on `nodes`; these may be none."""

    operation: Operation
    nodes: Sequence[Outcome[Nsqd]]
    lookupds: Sequence[Outcome[Lookupd]]
    hidden: str = ""

    @property
    def at_lookupds(self) -> str:
        return "tombstone" if self.hidden else self.operation.action

    def losses_of(self, outcome: Outcome[Nsqd]) -> dict[str, Any]:
        """What is lost on a node if the operation was or will be done there, else nothing."""
        if outcome.share is None or outcome.result not in (Result.PLANNED, Result.DONE):
            return {}
        return self.operation.losses(outcome.share)

    def losses(self) -> Counter[str]:
        """The sums over all nodes."""
        lost: Counter[str] = Counter()
        for outcome in self.nodes:
            lost.update(self.losses_of(outcome))
        return lost

    def failures(self, known: Sequence[AdminError]) -> list[AdminError]:
        """The errors, except those in `known`."""
        texts = {str(error) for error in known}
        errors = [outcome.error for outcome in self.lookupds] + [outcome.error for outcome in self.nodes]
        return [error for error in errors if error is not None and str(error) not in texts]

    def warning(self) -> str:
        """As in: Deleting the topic x on 2 nodes loses 7 messages and disconnects 3 clients"""
        count = sum(outcome.result in (Result.PLANNED, Result.DONE) for outcome in self.nodes)
        lost = self.losses()
        messages = lost["depth"] + lost["in_flight_count"] + lost["deferred_count"]
        where = f"on {plural(count, 'node')}" if count else "at nsqlookupd"
        lost_messages = plural(messages, "message") if messages else "no messages"
        text = f"{_DOING[self.operation.action].capitalize()} {self.operation} {where} loses {lost_messages}"
        clients = lost["client_count"]
        return f"{text} and disconnects {plural(clients, 'client')}" if clients else text

    def do(self, cluster: Cluster) -> None:
        """Do what is planned, and record the results in the outcomes."""
        action, topic, channel = self.operation.action, self.operation.topic, self.operation.channel
        shares = {outcome.peer.address: outcome.share for outcome in self.nodes}

        def at_lookupd(lookupd: Lookupd) -> None:
            if self.hidden:
                lookupd.tombstone(topic, self.hidden)
            else:
                lookupd.act(action, topic, channel)

        def at_node(node: Nsqd) -> None:
            share = shares[node.address]
            channels = share.channels if self.operation.with_channels and isinstance(share, TopicStats) else ()
            refused: NodeRefused | None = None
            for name in (channel, *(emptied.channel_name for emptied in channels)):
                try:
                    node.act(action, topic, name)
                except NodeRefused as error:  # the others may free the space that this one lacks
                    refused = refused or error
            if refused is not None:
                raise refused

        do_planned(cluster, self.lookupds, at_lookupd)
        shown = cluster.waiting is not None
        with progress(f"{_DOING[action]} {self.operation}", len(self.nodes), "nodes", shown=shown) as advance:
            do_planned(cluster, self.nodes, at_node, advance)

    def change(self, cluster: Cluster) -> Change:
        """Returns the change that does it. It needs confirmation if messages are lost, which only nodes can."""
        known = list(cluster.lookupd_errors)
        loses = self.operation.is_destructive and (self.nodes or not self.hidden)
        warning = f"{self.warning()}." if loses else ""

        def show(dry_run: bool) -> Shown:
            blocks = [*self._blocks(), *ending(dry_run, warning)]
            errors = [*known, *self.failures(known)]
            return Shown(self.document(dry_run), blocks, self.table(self.nodes, self.lookupds), errors)

        return Change(show, partial(self.do, cluster), warning, f"{self.operation.action.capitalize()} it?")

    def document(self, dry_run: bool) -> dict[str, Any]:

        def described(outcome: Outcome[Any]) -> dict[str, Any]:
            reason = outcome.error.reason if outcome.error else None
            return {"address": str(outcome.peer.address), "result": outcome.result, "error": reason}

        topic, channel = self.operation.topic, self.operation.channel or None
        about = {"action": self.at_lookupds, "topic": topic, "channel": channel, "dry_run": dry_run}
        nodes = [described(outcome) | {"lost": self.losses_of(outcome) or None} for outcome in self.nodes]
        lookupds = [described(outcome) for outcome in self.lookupds]
        return about | {"nodes": nodes, "lookupds": lookupds, "lost": self.losses() or None}

    def _blocks(self) -> list[Block]:
        """As text: nodes without the topic are only counted, if others have it."""
        operation = self.operation
        there = [outcome for outcome in self.nodes if outcome.result is not Result.ABSENT]
        listed = [outcome for outcome in self.lookupds if outcome.result is not Result.ABSENT]
        blocks: list[Block] = []
        if not operation.is_destructive:
            results = [(str(outcome.peer), _cell(operation.action, outcome)) for outcome in there]
            blocks.append(Grid([[Cell(address, Tone.NODE), result] for address, result in results]))
        elif there:
            blocks.append(self.table(there))
        if listed:
            results = [(str(outcome.peer), _cell(self.at_lookupds, outcome)) for outcome in listed]
            blocks.append(Grid([[Cell(address, Tone.NODE), "nsqlookupd", result] for address, result in results]))
        if absent := len(self.nodes) - len(there):
            others = plural(absent, "other node" if there else "node")
            what = f"the topic {operation.topic}" if operation.action == "create" else "it"
            blocks.append(Line.of(f"{others} {'does' if absent == 1 else 'do'} not have {what}", Tone.FAINT))
        return blocks

    def table(self, outcomes: Sequence[Outcome[Nsqd]], lookupds: Sequence[Outcome[Lookupd]] | None = None) -> Table:
        """One row for each node: what is lost there, and the result; for CSV, also one for each of `lookupds`."""
        action = self.operation.action
        rows = [
            _row(self.losses_of(outcome), address=str(outcome.peer), result=_cell(action, outcome))
            for outcome in outcomes
        ]
        rows += [
            OutcomeRow(str(outcome.peer), "nsqlookupd", result=_cell(self.at_lookupds, outcome))
            for outcome in lookupds or ()
        ]
        done = sum(outcome.result in (Result.PLANNED, Result.DONE) for outcome in outcomes)
        lost = self.losses()
        without = [] if lost or (self.operation.is_destructive and outcomes) else ["depth"]
        without += ["program"] if lookupds is None else []
        total = _row(lost, address=Cell(plural(done, "node"), Tone.STRONG)) if done > 1 and lost else None
        return table_of(OutcomeRow, rows, without=without, total=total)


def _row(lost: Mapping[str, Any], **values: Any) -> OutcomeRow:
    return OutcomeRow(**values, **lost)


def plan(cluster: Cluster, operation: Operation) -> Work:
    """Plan the operation for all nodes that have its object; AdminError if none has it."""
    nodes = [] if operation.lookupd_only else cluster.nsqds()
    work = Work(operation, plan_for_nodes(cluster, operation, nodes), plan_for_lookupds(cluster, operation))
    if operation.lookupd_only or any(outcome.result in (Result.PLANNED, Result.ALREADY) for outcome in work.nodes):
        return work
    is_planned = any(outcome.result is Result.PLANNED for outcome in work.lookupds)
    if is_planned and (operation.action == "delete" or not operation.channel):
        return work  # a topic or channel that nsqlookupds alone remember, or a topic for nodes that will come
    if operation.action == "create" and operation.channel and is_listed(cluster, operation.topic):
        return work
    errors = [*cluster.lookupd_errors, *(outcome.error for outcome in work.nodes if outcome.error)]
    raise no_such(cluster, errors, operation.topic, "" if operation.action == "create" else operation.channel)


def plan_tombstone(cluster: Cluster, topic: str, node: str, *, with_delete: bool) -> Work:
    """Plan a tombstone for the node of this name, which must have the topic; NotFound."""
    producers, address = cluster.producers(), node.removeprefix("http://")
    matching = [
        producer for producer in producers if node == producer.name or address in map(str, dict(located([producer])))
    ]
    if not matching:
        known = ", ".join(producer.name for producer in producers) or "none"
        raise NotFound(f"nsqlookupd does not list the node {printable(node)}; it lists: {printable(known, 1000)}")
    if topic not in matching[0].topics:
        raise NotFound(f"the node {printable(node)} has not registered the topic {topic} at nsqlookupd")
    operation = Operation("delete", topic)
    try:
        nodes = [Nsqd(matching[0].http_address, cluster.http)] if with_delete else []
    except ValueError as error:
        raise AdminError(f"nsqlookupd lists a node at {error}") from None
    hidden = [Outcome(lookupd, Result.PLANNED) for lookupd in cluster.lookupds]
    return Work(operation, plan_for_nodes(cluster, operation, nodes), hidden, matching[0].name)


def operate(cluster: Cluster, operation: Operation) -> Change:
    """Returns the change of `operation` on all nodes that have its object; AdminError if none has it."""
    if operation.lookupd_only and not cluster.lookupds:
        raise click.UsageError("--lookupd-only requires an nsqlookupd: give it by --lookupd-http-address.")
    if any(letter in operation.topic + operation.channel for letter in "*?["):  # a pattern
        return _operate_on_matches(cluster, operation)
    return plan(cluster, operation).change(cluster)


def _operate_on_matches(cluster: Cluster, operation: Operation) -> Change:
    """Returns the change of everything that matches the pattern of `operation`, which always needs confirmation."""
    nodes = cluster.nsqds()
    snapshot = ClusterSnapshot(cluster.ask(Nsqd.stats, nodes), cluster.lookupd_errors)
    matches = operation.matches(snapshot)
    works = [Work(match, _plan(match, nodes, snapshot.answers), plan_for_lookupds(cluster, match)) for match in matches]
    if not works:
        kind, pattern = "topic", operation.topic
        if operation.channel:
            kind, pattern = "channel", f"{operation.topic}/{operation.channel}"
        raise not_found(f"a {kind} that matches {pattern}", snapshot.errors)
    doing = f"{_DOING[operation.action].capitalize()} {plural(len(works), 'channel' if operation.channel else 'topic')}"
    losing = " loses what the table shows" * operation.is_destructive

    def show(dry_run: bool) -> Shown:
        about: dict[str, Any] = {"action": operation.action, "dry_run": dry_run}
        failures = {str(error): error for work in works for error in work.failures(snapshot.errors)}
        return Shown(
            about | {"operations": [work.document(dry_run) for work in works]},
            [_match_table(works), *ending(dry_run)],
            errors=[*snapshot.errors, *failures.values()],
        )

    def do() -> None:
        for work in works:
            work.do(cluster)

    return Change(show, do, f"{doing}{losing}.", matches=matches)


def _match_table(works: Sequence[Work]) -> Table:
    rows = []
    for work in works:
        errors = [outcome for outcome in work.nodes if outcome.error]
        there = [outcome for outcome in work.nodes if not (outcome.error or outcome.result is Result.ABSENT)]
        worst = max(there or errors or work.nodes, key=lambda outcome: _BY_NEED.index(outcome.result))
        result = _cell(work.operation.action, worst)
        if there and errors:
            result = Cell(f"{result.value}, {plural(len(errors), 'node')} failed", Tone.BAD)
        names = {"topic": work.operation.topic, "channel": work.operation.channel or None, "nodes": len(there)}
        rows.append(_row(work.losses(), result=result, **names))
    without = ["address", "program", *([] if any(work.losses() for work in works) else ["depth"])]
    return table_of(OutcomeRow, rows, without=without)


_BY_NEED = (Result.ABSENT, Result.ALREADY, Result.DONE, Result.PLANNED, Result.FAILED)


def is_listed(cluster: Cluster, topic: str) -> bool:
    return any(topic in topics for topics in values_of(cluster.ask_lookupds(Lookupd.topics)).values())


def _cell(action: str, outcome: Outcome[Nsqd] | Outcome[Lookupd]) -> Cell:
    if outcome.error is not None:
        return failed(outcome.error.reason)
    done = _DONE.get(action, "hidden")  # by a tombstone
    cells = {Result.DONE: Cell(done, Tone.GOOD), Result.ALREADY: Cell(_ALREADY.get(action), Tone.FAINT)}
    cells[Result.ABSENT] = Cell("not there", Tone.FAINT)
    return cells.get(outcome.result) or Cell(f"to be {done}", Tone.NOTE)


class Row(NamedTuple):
    """A command that performs an operation: its help below the summary, its examples, and options of its own."""

    text: str
    examples: str
    options: Mapping[str, Any] = {}


_AT_LOOKUPDS = flag(
    "Create it only at nsqlookupds, as nsqadmin does with topics. Nodes create the topic or channel at its first use."
)
ROWS: dict[tuple[str, Action], Row] = {
    ("topic", "create"): Row(
        "Publishing creates a topic automatically. Create it explicitly to add channels or pause it before the first "
        "message.",
        """
        gnsqadmin topic create orders
        gnsqadmin topic create orders --nsqd-http-address a.example:4151 --nsqd-http-address b.example:4151
        gnsqadmin topic create orders --lookupd-only --lookupd-http-address lookup.example:4161
        """,
        {"lookupd_only": _AT_LOOKUPDS},
    ),
    ("topic", "pause"): Row(
        "Publishers are not affected: messages are queued in the topic. Channels continue with the messages they have. "
        "The topic stays paused across restarts.",
        "gnsqadmin topic pause orders\ngnsqadmin topic pause 'orders*'",
    ),
    ("topic", "unpause"): Row("", "gnsqadmin topic unpause orders\ngnsqadmin topic unpause orders --json"),
    ("topic", "empty"): Row(
        "A topic has such messages if it is paused or has no channel. Its channels keep their messages; see also "
        "gnsqadmin channel empty.",
        """
        gnsqadmin topic empty orders --dry-run
        gnsqadmin topic empty orders --with-channels
        gnsqadmin topic empty orders --yes --nsqd-http-address a.example:4151
        """,
        {"with_channels": flag("Also empty all its channels.")},
    ),
    ("topic", "delete"): Row(
        "It is deleted on all nodes and nsqlookupds, and its consumers are disconnected. Publishers, and consumers "
        "that reconnect, create the topic again: stop them first. To delete it on one node only, see gnsqadmin topic "
        "tombstone.",
        """
        gnsqadmin topic delete orders --dry-run
        gnsqadmin topic delete orders --lookupd-http-address lookup.example:4161
        gnsqadmin topic delete orders --yes --nsqd-http-address a.example:4151
        """,
    ),
    ("channel", "create"): Row(
        "From then on, the channel queues what is published, even without consumers. Nodes that create the topic later "
        "get the channel from nsqlookupd.",
        """
        gnsqadmin channel create orders billing
        gnsqadmin channel create orders billing --lookupd-http-address lookup.example:4161
        gnsqadmin channel create orders billing --lookupd-only --lookupd-http-address lookup.example:4161
        """,
        {"lookupd_only": _AT_LOOKUPDS},
    ),
    ("channel", "pause"): Row(
        "New messages are queued, consumers stay connected, and messages in flight can be finished. The channel stays "
        "paused across restarts.",
        "gnsqadmin channel pause orders billing\ngnsqadmin channel pause 'orders/*'",
    ),
    ("channel", "unpause"): Row(
        "", "gnsqadmin channel unpause orders billing\ngnsqadmin channel unpause orders billing --json"
    ),
    ("channel", "empty"): Row(
        "This includes messages in flight and deferred messages. Other channels keep their messages. Consumers stay "
        "connected, but cannot finish their messages in flight.",
        """
        gnsqadmin channel empty orders billing --dry-run
        gnsqadmin channel empty 'orders/*' --dry-run
        gnsqadmin channel empty orders billing --yes --nsqd-http-address a.example:4151
        """,
    ),
    ("channel", "delete"): Row(
        "It is deleted on all nodes and nsqlookupds, and its consumers are disconnected. A consumer that reconnects "
        "creates the channel again: stop the consumers first.",
        """
        gnsqadmin channel delete orders billing --dry-run
        gnsqadmin channel delete orders billing --lookupd-http-address lookup.example:4161
        gnsqadmin channel delete orders billing --yes --json
        """,
    ),
}
_PATTERN = "{} may be a pattern such as 'orders*': all matches are shown, and changed after confirmation."
_SUBJECTS = {"topic": "TOPIC", "channel": "TOPIC and CHANNEL, or TOPIC/CHANNEL as one argument,"}


def commands_of(kind: str) -> list[ChangeCommand]:
    """Returns the commands of the rows of this kind. They take patterns, except to create."""
    return [_command(*key, row) for key, row in ROWS.items() if key[0] == kind]


def _command(kind: str, action: Action, row: Row) -> ChangeCommand:
    def operation(cluster: Cluster, topic: str, channel: str | None = "", **options: bool) -> Change:
        if "/" in topic or channel is None:
            topic, slash, second = topic.partition("/")
            if bool(slash) == bool(channel):
                raise click.UsageError("give TOPIC and CHANNEL, or TOPIC/CHANNEL.")
            channel = channel or second
        return operate(cluster, Operation(action, topic, channel, **options))

    is_pattern = action != "create"
    names: dict[str, Any] = {
        "topic": argument(Name("topic", pattern=is_pattern, path=is_pattern and kind == "channel"))
    }
    if kind == "channel":
        names["channel"] = argument(Name("channel", pattern=is_pattern), required=not is_pattern)
    operation.__name__ = action
    operation.__doc__ = f"{row.text}\n\n{_PATTERN.format(_SUBJECTS[kind])}".lstrip() if is_pattern else row.text
    parameters = {"cluster": None, **names, **row.options}
    return change_command(asks=is_pattern, parameters=parameters, document=DOCUMENT, examples=row.examples)(operation)
