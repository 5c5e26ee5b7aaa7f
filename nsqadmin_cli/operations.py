"""Operations on one topic or channel on all nodes: what would be lost, confirmation, execution, results.

Nodes are queried first, so that a missing topic is reported before confirmation, nodes without it are skipped, and
losses can be shown. Deletion starts at nsqlookupds: otherwise a consumer could be sent to a node that has just deleted
the topic, and create it again.
"""

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

import click

from nsqadmin_cli.api import Action, ChannelStats, Lookupd, NodeStats, Nsqd, TopicStats, located
from nsqadmin_cli.change import Change, Shown, ending
from nsqadmin_cli.cluster import Answers, Cluster, ask_all, values_of
from nsqadmin_cli.command_base import ChangeCommand, Name, argument, change_command, flag
from nsqadmin_cli.errors import AdminError, NotOnNode
from nsqadmin_cli.http_client import NodeError, NodeRefused, timed_out
from nsqadmin_cli.output import not_found, progress
from nsqadmin_cli.snapshot import ClusterSnapshot, by_key, no_such
from nsqadmin_cli.table import ALWAYS, Block, Cell, Form, Grid, Line, Table, Tone, column, failed, table_of
from nsqadmin_cli.units import plural, printable

_ABSENT = ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND")
_DOING = {"create": "creating", "delete": "deleting", "empty": "emptying", "pause": "pausing", "unpause": "unpausing"}
_DONE = {"create": "created", "delete": "deleted", "empty": "emptied", "pause": "paused", "unpause": "unpaused"}
_ALREADY = {"create": "already existed", "pause": "was already paused", "unpause": "was not paused"}

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


class TargetState(enum.StrEnum):
    """State of an operation at one nsqd or nsqlookupd. Of the nodes of a match, the last of these is shown."""

    ABSENT = "absent"  # the topic or channel does not exist
    ALREADY = "already"  # it was so before
    DONE = "done"
    PLANNED = "planned"
    FAILED = "failed"


@dataclass(slots=True)
class TargetOutcome:
    """One target of an operation; `share` is the topic or channel on the node shortly before."""

    peer: Nsqd | Lookupd
    result: TargetState
    error: NodeError | None = None
    share: TopicStats | ChannelStats | None = None

    @property
    def is_affected(self) -> bool:
        return self.result in (TargetState.PLANNED, TargetState.DONE)


@dataclass(slots=True)
class OutcomeRow:
    """The losses and the result at one target; of a pattern, those of one match, on a number of nodes."""

    address: Any = column("node", key="node", tone=Tone.NODE)
    program: Any = column("program", default="nsqd")
    topic: Any = column("topic", tone=Tone.STRONG, sparse=True)
    channel: Any = column("channel", keep=ALWAYS, sparse=True)
    nodes: Any = column("nodes", form=Form.COUNT, keep=ALWAYS, sparse=True)
    channel_count: Any = column("channels", form=Form.COUNT, keep=6, tone=Tone.NOTE, sparse=True)
    depth: Any = column("depth", form=Form.COUNT, keep=ALWAYS, tone=Tone.NOTE)
    in_flight_count: Any = column("in flight", "inflt", Form.COUNT, keep=ALWAYS, tone=Tone.NOTE, sparse=True)
    deferred_count: Any = column("deferred", "def", Form.COUNT, keep=6, tone=Tone.NOTE, sparse=True)
    client_count: Any = column("clients", form=Form.COUNT, keep=ALWAYS, tone=Tone.NOTE, sparse=True)
    result: Any = column("result", keep=ALWAYS)


@dataclass(slots=True)
class Operation:
    """An operation, on the topic itself if `channel` is empty, and, once it is planned, its outcomes at all targets.

    `with_channels` is for emptying a topic, `lookupd_only` for creation at nsqlookupds. With `hidden`, the name of a
    node, nsqlookupds only hide it from consumers of the topic, which is deleted on `nodes`; these may be none.
    """

    action: Action
    topic: str
    channel: str = ""
    with_channels: bool = False
    lookupd_only: bool = False
    hidden: str = ""
    nodes: Sequence[TargetOutcome] = ()
    lookupds: Sequence[TargetOutcome] = ()

    def __str__(self) -> str:
        """Returns its object, as in "no node has ..."."""
        return f"the channel {self.channel} in the topic {self.topic}" if self.channel else f"the topic {self.topic}"

    @property
    def is_destructive(self) -> bool:
        return self.action in ("delete", "empty")

    def plan(self, cluster: Cluster, nodes: Sequence[Nsqd], answers: Answers[NodeStats] | None = None) -> None:
        """Plans the outcomes at the nsqlookupds and at these nodes, which are queried without `answers`."""
        if answers is None:
            # A channel is created only on nodes that have its topic, so the query includes the topic.
            channel = "" if self.action == "create" else self.channel
            answers = cluster.ask(partial(Nsqd.stats, topic=self.topic, channel=channel), nodes)
        self.nodes = [self._at_node(node, answers[node.address]) for node in nodes]
        if self.hidden:
            self.lookupds = [TargetOutcome(lookupd, TargetState.PLANNED) for lookupd in cluster.lookupds]
        elif self.action in ("create", "delete"):
            listed = cluster.ask_lookupds(
                lambda peer: self.channel in peer.channels(self.topic) if self.channel else self.topic in peer.topics()
            )
            self.lookupds = [self._at_lookupd(lookupd, listed[lookupd.address]) for lookupd in cluster.lookupds]

    def _at_node(self, node: Nsqd, answer: NodeStats | NodeError) -> TargetOutcome:
        if isinstance(answer, NodeError):
            return TargetOutcome(node, TargetState.FAILED, answer)
        rows = by_key(answer)
        if (share := rows.get((self.topic, self.channel))) is not None:
            is_so = self.action in ("create", "pause" if share.paused else "unpause")
            return TargetOutcome(node, TargetState.ALREADY if is_so else TargetState.PLANNED, share=share)
        is_possible = self.action == "create" and (not self.channel or (self.topic, "") in rows)
        return TargetOutcome(node, TargetState.PLANNED if is_possible else TargetState.ABSENT)

    def _at_lookupd(self, lookupd: Lookupd, is_listed: bool | NodeError) -> TargetOutcome:
        if isinstance(is_listed, NodeError):
            return TargetOutcome(lookupd, TargetState.FAILED, is_listed)
        if is_listed == (self.action == "delete"):
            return TargetOutcome(lookupd, TargetState.PLANNED)
        return TargetOutcome(lookupd, TargetState.ALREADY if is_listed else TargetState.ABSENT)

    def losses_of(self, outcome: TargetOutcome) -> dict[str, int]:
        """Returns what is lost on a node if the operation was or will be done there, else nothing. The names are
        those of Totals. An emptied topic keeps what its channels have, an emptied channel its clients."""
        share = outcome.share
        if not (self.is_destructive and outcome.is_affected and share is not None):
            return {}
        if isinstance(share, TopicStats) and self.action == "empty" and not self.with_channels:
            return {"depth": share.depth}
        channels = share.channels if isinstance(share, TopicStats) else (share,)
        lost = {"channel_count": len(channels)} if self.action == "delete" and not self.channel else {}
        lost["depth"] = sum(channel.depth for channel in channels)
        lost["depth"] += share.depth if isinstance(share, TopicStats) else 0
        names = ["in_flight_count", "deferred_count", *(["client_count"] if self.action == "delete" else [])]
        return lost | {name: sum(getattr(channel, name) for channel in channels) for name in names}

    def losses(self) -> Counter[str]:
        lost: Counter[str] = Counter()
        for outcome in self.nodes:
            lost.update(self.losses_of(outcome))
        return lost

    def failures(self, known: Sequence[AdminError]) -> list[AdminError]:
        """Returns the errors, except those in `known`."""
        texts = {str(error) for error in known}
        errors = [outcome.error for outcome in (*self.lookupds, *self.nodes)]
        return [error for error in errors if error is not None and str(error) not in texts]

    def warning(self) -> str:
        """Returns, for example: Deleting the topic x on 2 nodes loses 7 messages and disconnects 3 clients."""
        count = sum(outcome.is_affected for outcome in self.nodes)
        lost = self.losses()
        messages = lost["depth"] + lost["in_flight_count"] + lost["deferred_count"]
        where = f"on {plural(count, 'node')}" if count else "at nsqlookupd"
        lost_messages = plural(messages, "message") if messages else "no messages"
        clients = f" and disconnects {plural(lost['client_count'], 'client')}" if lost["client_count"] else ""
        return f"{_DOING[self.action].capitalize()} {self} {where} loses {lost_messages}{clients}."

    def do(self, cluster: Cluster) -> None:
        waiting = cluster.waiting and (lambda count: progress(f"{_DOING[self.action]} {self}", count, "nodes"))
        for outcomes in (self.lookupds, self.nodes):
            planned = [outcome for outcome in outcomes if outcome.result is TargetState.PLANNED]
            answers = ask_all([outcome.peer for outcome in planned], self._act, cluster.timeout, waiting)
            for outcome in planned:
                answer = answers[outcome.peer.address]
                if not isinstance(answer, NodeError):
                    outcome.result = TargetState.DONE
                elif isinstance(answer, NodeRefused) and answer.code in _ABSENT:
                    outcome.result = TargetState.ABSENT  # somebody else was faster
                else:
                    outcome.result, outcome.error = TargetState.FAILED, answer
                    if answer.reason == timed_out(cluster.timeout):  # a daemon completes it even if its client has gone
                        reason = f"{answer.reason}; it may still have been done"
                        outcome.error = NodeError(answer.program, answer.address, reason)

    def _act(self, peer: Nsqd | Lookupd) -> None:
        """Does it at one target; raises NodeError."""
        if self.hidden and isinstance(peer, Lookupd):
            peer.tombstone(self.topic, self.hidden)
            return
        share = next((outcome.share for outcome in self.nodes if outcome.peer is peer), None)
        channels = share.channels if self.with_channels and isinstance(share, TopicStats) else ()
        refused: NodeRefused | None = None
        for name in (self.channel, *(emptied.channel_name for emptied in channels)):
            try:
                peer.act(self.action, self.topic, name)
            except NodeRefused as error:  # the others may free the space that this one lacks
                refused = refused or error
        if refused is not None:
            raise refused

    def change(self, cluster: Cluster) -> Change:
        """Returns the change that does it. It needs confirmation if messages are lost, which only nodes can."""
        known = list(cluster.lookupd_errors)
        warning = self.warning() if self.is_destructive and (self.nodes or not self.hidden) else ""

        def show(dry_run: bool) -> Shown:
            blocks = [*self._blocks(), *ending(dry_run, warning)]
            table = self._table([*self.nodes, *self.lookupds])
            return Shown(self.document(dry_run), blocks, table, [*known, *self.failures(known)])

        return Change(show, partial(self.do, cluster), warning, f"{self.action.capitalize()} it?")

    def document(self, dry_run: bool) -> dict[str, Any]:
        """Returns what DOCUMENT describes, without a pattern."""

        def described(outcome: TargetOutcome) -> dict[str, Any]:
            reason = outcome.error.reason if outcome.error else None
            return {"address": str(outcome.peer), "result": outcome.result, "error": reason}

        action, channel = "tombstone" if self.hidden else self.action, self.channel or None
        about = {"action": action, "topic": self.topic, "channel": channel, "dry_run": dry_run}
        nodes = [described(outcome) | {"lost": self.losses_of(outcome) or None} for outcome in self.nodes]
        lookupds = [described(outcome) for outcome in self.lookupds]
        return about | {"nodes": nodes, "lookupds": lookupds, "lost": self.losses() or None}

    def _blocks(self) -> list[Block]:
        """Returns it as text: nodes without the topic are only counted, if others have it."""

        def grid(outcomes: Sequence[TargetOutcome], *program: str) -> Grid:
            return Grid([[Cell(str(each.peer), Tone.NODE), *program, self.cell(each)] for each in outcomes])

        there = [outcome for outcome in self.nodes if outcome.result is not TargetState.ABSENT]
        listed = [outcome for outcome in self.lookupds if outcome.result is not TargetState.ABSENT]
        blocks: list[Block] = []
        if not self.is_destructive:
            blocks.append(grid(there))
        elif there:
            blocks.append(self._table(there, without=["program"]))
        if listed:
            blocks.append(grid(listed, "nsqlookupd"))
        if absent := len(self.nodes) - len(there):
            others = plural(absent, "other node" if there else "node")
            what = f"the topic {self.topic}" if self.action == "create" else "it"
            blocks.append(Line.of(f"{others} {'does' if absent == 1 else 'do'} not have {what}", Tone.FAINT))
        return blocks

    def _table(self, outcomes: Sequence[TargetOutcome], without: Sequence[str] = ()) -> Table:
        rows = [
            OutcomeRow(str(each.peer), each.peer.program, result=self.cell(each), **self.losses_of(each))
            for each in outcomes
        ]
        lost, done = self.losses(), sum(outcome.is_affected for outcome in self.nodes)
        has_depth = lost or (self.is_destructive and self.nodes)
        total = OutcomeRow(Cell(plural(done, "node"), Tone.STRONG), **lost) if done > 1 and lost else None
        return table_of(OutcomeRow, rows, without=[*without, *([] if has_depth else ["depth"])], total=total)

    def cell(self, outcome: TargetOutcome) -> Cell:
        if outcome.error is not None:
            return failed(outcome.error.reason)
        done = "hidden" if self.hidden and isinstance(outcome.peer, Lookupd) else _DONE[self.action]
        match outcome.result:
            case TargetState.DONE:
                return Cell(done, Tone.GOOD)
            case TargetState.ALREADY:
                return Cell(_ALREADY[self.action], Tone.FAINT)
            case TargetState.ABSENT:
                return Cell("not there", Tone.FAINT)
        return Cell(f"to be {done}", Tone.NOTE)


def is_listed(cluster: Cluster, topic: str) -> bool:
    return any(topic in topics for topics in values_of(cluster.ask_lookupds(Lookupd.topics)).values())


def tombstone(cluster: Cluster, topic: str, node: str, *, with_delete: bool) -> Change:
    """Returns the change that hides the node of this name, which must have the topic; raises NotFound."""
    producers, address = cluster.producers(), node.removeprefix("http://")
    matching = [
        producer for producer in producers if node == producer.name or address in map(str, dict(located([producer])))
    ]
    if not matching:
        known = ", ".join(producer.name for producer in producers) or "none"
        raise NotOnNode(f"nsqlookupd does not list the node {printable(node)}; it lists: {printable(known, 1000)}")
    if topic not in matching[0].topics:
        raise NotOnNode(f"the node {printable(node)} has not registered the topic {topic} at nsqlookupd")
    try:
        nodes = [Nsqd(matching[0].http_address, cluster.http)] if with_delete else []
    except ValueError as error:
        raise AdminError(f"nsqlookupd lists a node at {error}") from None
    operation = Operation("delete", topic, hidden=matching[0].name)
    operation.plan(cluster, nodes)
    return operation.change(cluster)


def operate(cluster: Cluster, operation: Operation) -> Change:
    """Returns the change of `operation` on all nodes that have its object; raises AdminError if none has it."""
    if operation.lookupd_only and not cluster.lookupds:
        raise click.UsageError("--lookupd-only requires an nsqlookupd: give it by --lookupd-http-address.")
    if any(letter in operation.topic + operation.channel for letter in "*?["):  # a pattern
        return _operate_on_matches(cluster, operation)
    is_new, channel = operation.action == "create", operation.channel
    operation.plan(cluster, [] if operation.lookupd_only else cluster.nsqds())
    is_there = any(outcome.result in (TargetState.PLANNED, TargetState.ALREADY) for outcome in operation.nodes)
    is_planned = any(outcome.result is TargetState.PLANNED for outcome in operation.lookupds)
    # What is planned there may be a topic or channel that they alone remember, or a topic for nodes that will come.
    is_known = is_there or operation.lookupd_only or (is_planned and (operation.action == "delete" or not channel))
    if not (is_known or (is_new and channel and is_listed(cluster, operation.topic))):
        errors = [*cluster.lookupd_errors, *(outcome.error for outcome in operation.nodes if outcome.error)]
        raise no_such(cluster, errors, operation.topic, "" if is_new else channel)
    return operation.change(cluster)


def _operate_on_matches(cluster: Cluster, pattern: Operation) -> Change:
    """Returns the change of everything that matches the pattern, by name, which always needs confirmation."""
    nodes = cluster.nsqds()
    snapshot = ClusterSnapshot(cluster.ask(Nsqd.stats, nodes), cluster.lookupd_errors)
    names = snapshot.channel_shares if pattern.channel else [(topic, "") for topic in snapshot.topic_shares]
    matches = [
        replace(pattern, topic=topic, channel=channel)
        for topic, channel in sorted(names)
        if fnmatchcase(topic, pattern.topic) and fnmatchcase(channel, pattern.channel)
    ]
    for match in matches:
        match.plan(cluster, nodes, snapshot.answers)
    kind, text = ("channel", f"{pattern.topic}/{pattern.channel}") if pattern.channel else ("topic", pattern.topic)
    if not matches:
        raise not_found(f"a {kind} that matches {text}", snapshot.errors)
    losing = " loses what the table shows" * pattern.is_destructive

    def show(dry_run: bool) -> Shown:
        document = {"action": pattern.action, "dry_run": dry_run}
        failures = {str(error): error for match in matches for error in match.failures(snapshot.errors)}
        return Shown(
            document | {"operations": [match.document(dry_run) for match in matches]},
            [_match_table(matches), *ending(dry_run)],
            errors=[*snapshot.errors, *failures.values()],
        )

    def do() -> None:
        for match in matches:
            match.do(cluster)

    doing = f"{_DOING[pattern.action].capitalize()} {plural(len(matches), kind)}"
    return Change(show, do, f"{doing}{losing}.", matches=matches)


def _match_table(matches: Sequence[Operation]) -> Table:
    rows = []
    for match in matches:
        errors = [outcome for outcome in match.nodes if outcome.error]
        there = [outcome for outcome in match.nodes if not (outcome.error or outcome.result is TargetState.ABSENT)]
        worst = max(there or errors or match.nodes, key=lambda outcome: [*TargetState].index(outcome.result))
        result = match.cell(worst)
        if there and errors:
            result = Cell(f"{result.value}, {plural(len(errors), 'node')} failed", Tone.BAD)
        row = OutcomeRow(topic=match.topic, channel=match.channel or None, nodes=len(there), **match.losses())
        row.result = result
        rows.append(row)
    without = ["address", "program", *([] if any(match.losses() for match in matches) else ["depth"])]
    return table_of(OutcomeRow, rows, without=without)


class OperationCommand(NamedTuple):
    """A command that performs an operation: its help below the summary, its examples, and options of its own."""

    text: str
    examples: str
    options: Mapping[str, Any] = {}


_AT_LOOKUPDS = flag(
    "Create it only at nsqlookupds, as nsqadmin does with topics. Nodes create the topic or channel at its first use."
)
ROWS: dict[tuple[str, Action], OperationCommand] = {
    ("topic", "create"): OperationCommand(
        "Publishing creates a topic automatically. Create it explicitly to add channels or pause it before the first "
        "message.",
        """
        gnsqadmin topic create orders
        gnsqadmin topic create orders --nsqd-http-address a.example:4151 --nsqd-http-address b.example:4151
        gnsqadmin topic create orders --lookupd-only --lookupd-http-address lookup.example:4161
        """,
        {"lookupd_only": _AT_LOOKUPDS},
    ),
    ("topic", "pause"): OperationCommand(
        "Publishers are not affected: messages are queued in the topic. Channels continue with the messages they have. "
        "The topic stays paused across restarts.",
        "gnsqadmin topic pause orders\ngnsqadmin topic pause 'orders*'",
    ),
    ("topic", "unpause"): OperationCommand("", "gnsqadmin topic unpause orders\ngnsqadmin topic unpause orders --json"),
    ("topic", "empty"): OperationCommand(
        "A topic has such messages if it is paused or has no channel. Its channels keep their messages; see also "
        "gnsqadmin channel empty.",
        """
        gnsqadmin topic empty orders --dry-run
        gnsqadmin topic empty orders --with-channels
        gnsqadmin topic empty orders --yes --nsqd-http-address a.example:4151
        """,
        {"with_channels": flag("Also empty all its channels.")},
    ),
    ("topic", "delete"): OperationCommand(
        "It is deleted on all nodes and nsqlookupds, and its consumers are disconnected. Publishers, and consumers "
        "that reconnect, create the topic again: stop them first. To delete it on one node only, see gnsqadmin topic "
        "tombstone.",
        """
        gnsqadmin topic delete orders --dry-run
        gnsqadmin topic delete orders --lookupd-http-address lookup.example:4161
        gnsqadmin topic delete orders --yes --nsqd-http-address a.example:4151
        """,
    ),
    ("channel", "create"): OperationCommand(
        "From then on, the channel queues what is published, even without consumers. Nodes that create the topic later "
        "get the channel from nsqlookupd.",
        """
        gnsqadmin channel create orders billing
        gnsqadmin channel create orders billing --lookupd-http-address lookup.example:4161
        gnsqadmin channel create orders billing --lookupd-only --lookupd-http-address lookup.example:4161
        """,
        {"lookupd_only": _AT_LOOKUPDS},
    ),
    ("channel", "pause"): OperationCommand(
        "New messages are queued, consumers stay connected, and messages in flight can be finished. The channel stays "
        "paused across restarts.",
        "gnsqadmin channel pause orders billing\ngnsqadmin channel pause 'orders/*'",
    ),
    ("channel", "unpause"): OperationCommand(
        "", "gnsqadmin channel unpause orders billing\ngnsqadmin channel unpause orders billing --json"
    ),
    ("channel", "empty"): OperationCommand(
        "This includes messages in flight and deferred messages. Other channels keep their messages. Consumers stay "
        "connected, but cannot finish their messages in flight.",
        """
        gnsqadmin channel empty orders billing --dry-run
        gnsqadmin channel empty 'orders/*' --dry-run
        gnsqadmin channel empty orders billing --yes --nsqd-http-address a.example:4151
        """,
    ),
    ("channel", "delete"): OperationCommand(
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


def _command(kind: str, action: Action, row: OperationCommand) -> ChangeCommand:
    def operation(cluster: Cluster, topic: str, channel: str | None = "", **options: Any) -> Change:
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
