"""`gnsqadmin drain`: lets consumers empty gnsqd nodes, which then exit.

A drain ends with the exit of its node, so a node that refuses connections has exited. Its last answer shows whether it
was empty, or its time was up.
"""

import time
from dataclasses import dataclass, replace
from typing import Any

from msgspec.structs import asdict

from nsqadmin_cli import units
from nsqadmin_cli.api import DrainState, Nsqd
from nsqadmin_cli.change import Change, Shown
from nsqadmin_cli.cluster import Answers, Cluster, errors_of, failures_of, values_of
from nsqadmin_cli.command_base import change_command, command, flag
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import Address, NodeError
from nsqadmin_cli.output import note, progress
from nsqadmin_cli.snapshot import shown_rows
from nsqadmin_cli.table import ALWAYS, Cell, Form, Tone, column, described, json_only
from nsqadmin_cli.units import plural, shortened

POLL_SECONDS = 0.2
_GONE = ("connection refused", "no such file or directory")  # a closed port or unix socket
_TRIES = 3  # looks that may fail in a row: a daemon that exits may reset a connection before it refuses others


@dataclass(slots=True)
class WatchedDrain:
    """A node whose drain is watched. `end` is empty while it drains, then "exited", "timed out" or "cancelled"."""

    node: Nsqd
    state: DrainState
    asked: float  # when it was asked for `state`, by time.monotonic()
    end: str = ""
    error: NodeError | None = None
    failures: int = 0

    def take(self, answer: DrainState | NodeError, asked: float) -> None:
        if isinstance(answer, DrainState):
            self.failures = 0
            self.state, self.asked = answer, asked
            if not answer.draining:
                self.end = "cancelled"
        elif answer.reason in _GONE:
            # Its time was up if it could be before this look; what was left then was too much for this moment.
            in_time = self.state.remaining / 1e9 > time.monotonic() - self.asked + POLL_SECONDS
            self.end = "exited" if in_time or not self.state.messages else "timed out"
        else:
            self.failures += 1
            if self.failures == _TRIES:
                self.error = answer


@dataclass(slots=True)
class DrainRow:
    """The state of a node; None after an error."""

    address: str = column("node", key="node", tone=Tone.NODE)
    error: str | None = json_only("null, or a text")
    draining: bool | None = json_only()
    remaining: int | None = json_only("ns until the node exits in any case")
    remaining_seconds: float | None = column("time left", "left", Form.DURATION, keep=6, json=False)
    messages: int | None = column("messages", "msgs", Form.COUNT, keep=ALWAYS, help="in all queues")
    result: Cell | None = column("state", key="state", keep=ALWAYS, json=False)
    held_by: str | None = column("held by", key="holding", keep=3, json=False)
    holding: list[Any] | None = json_only("null or a list of the fullest queues: topic, channel, messages, remark")
    end: str = json_only('null, "exited", "timed out" or "cancelled"', null=True, default="")


_DOCUMENT = (
    described("nodes", "list, in the order queried", DrainRow),
    "After an error draining, remaining, messages and holding are null.",
)
_SHOWN = 3  # queues in a row


@change_command(
    document=_DOCUMENT,
    examples="""
        gnsqadmin drain start --dry-run --nsqd-http-address a.example:4151
        gnsqadmin drain start --watch --nsqd-http-address a.example:4151
        gnsqadmin drain start --yes --json --nsqd-http-address a.example:4151
    """,
)
def start(
    cluster: Cluster,
    is_watched: bool = flag("Wait until the nodes have exited, like gnsqadmin drain watch.", "--watch", on_page=False),
) -> Change:
    """They also exit after their --drain-timeout; remaining messages are kept on disk, except for ephemeral topics and
    channels. Some messages cannot be consumed: in topics without channels, in paused topics and channels, and in
    channels without consumers. With such messages, the node waits until the timeout. Only gnsqd can drain."""
    nodes = cluster.nsqds()
    answers = cluster.ask(Nsqd.drain, nodes)
    able = [node for node in nodes if node.address in values_of(answers)]
    if not able:
        raise AdminError("no node can be drained", causes=[*cluster.lookupd_errors, *errors_of(answers)])
    limits = values_of(cluster.ask(lambda node: node.config("drain_timeout"), able)).values()
    known = [int(limit) / 1e9 for limit in limits if limit.isascii() and limit.isdigit() and len(limit) < 20]
    latest = f", after {units.latency(max(known))} at the latest" if known else ""
    them = "it" if len(able) == 1 else "them"
    warning = f"Draining {plural(len(able), 'node')} makes {them} refuse publishers, and exit when empty{latest}."
    if cluster.lookupds and len(able) == len(nodes):
        warning += " These are all nodes of the cluster."
    began: list[float] = []

    def do() -> None:
        began.append(time.monotonic())
        answers.update(cluster.ask(lambda node: node.drain("POST"), able))

    def show(dry_run: bool) -> Shown:
        return _watch(cluster, began[0], answers) if began and is_watched else _shown(cluster, answers)

    return Change(show, do, warning, f"Drain {them}?")


@command(document=_DOCUMENT, examples="gnsqadmin drain status\ngnsqadmin drain status --json | jq '.nodes[].messages'")
def status(cluster: Cluster) -> Shown:
    return _shown(cluster, cluster.ask(Nsqd.drain))


@command(
    document=_DOCUMENT,
    examples="gnsqadmin drain watch --nsqd-http-address a.example:4151\ngnsqadmin drain watch --json",
)
def watch(cluster: Cluster) -> Shown:
    """The exit code is 1 if a node reached its timeout before it was empty, or if its drain was cancelled. Ctrl-C ends
    only this command."""
    return _watch(cluster, time.monotonic(), cluster.ask(Nsqd.drain))


@change_command(
    asks=False,
    document=_DOCUMENT,
    examples="gnsqadmin drain cancel --nsqd-http-address a.example:4151\ngnsqadmin drain cancel --json",
)
def cancel(cluster: Cluster) -> Change:
    nodes = cluster.nsqds()
    answers: Answers[DrainState] = {}

    def do() -> None:
        answers.update(cluster.ask(lambda node: node.drain("DELETE"), nodes))

    def show(dry_run: bool) -> Shown:
        return _shown(cluster, answers or cluster.ask(Nsqd.drain, nodes))

    return Change(show, do)


def _shown(cluster: Cluster, answers: Answers[DrainState]) -> Shown:
    rows = {at: answer if isinstance(answer, NodeError) else _row(at, answer) for at, answer in answers.items()}
    return shown_rows(cluster, {}, DrainRow, rows)


def _watch(cluster: Cluster, asked: float, answers: Answers[DrainState]) -> Shown:
    """Waits for the drains in `answers`, which were `asked` for at that time, and returns how they ended."""
    draining = {at: state for at, state in values_of(answers).items() if state.draining}
    watched = [WatchedDrain(Nsqd(address, cluster.http), state, asked) for address, state in draining.items()]
    errors = [*cluster.lookupd_errors, *failures_of(answers)]
    if not watched:
        raise AdminError("no node is draining", causes=errors)
    try:
        with progress(
            f"draining {plural(len(watched), 'node')}", sum(drain.state.messages for drain in watched)
        ) as advance:
            while going_on := [drain for drain in watched if not (drain.end or drain.error)]:
                before = sum(drain.state.messages for drain in going_on)
                asked = time.monotonic()
                polled = cluster.ask(Nsqd.drain, [drain.node for drain in going_on])
                for drain in going_on:
                    drain.take(polled[drain.node.address], asked)
                advance(before - sum(drain.state.messages for drain in going_on if drain.end != "exited"))
                time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        note("the drain continues; gnsqadmin drain cancel cancels it")
        raise
    errors += [drain.error for drain in watched if drain.error]
    for drain in watched:
        left = f"exited because its time was up; about {plural(drain.state.messages, 'message')} were left"
        reasons = {"timed out": left, "cancelled": "no longer drains: it was cancelled"}
        if drain.end in reasons:
            errors.append(NodeError(drain.node.program, drain.node.address, reasons[drain.end]))
    rows = {drain.node.address: drain.error or _row(drain.node.address, drain.state, drain.end) for drain in watched}
    return replace(shown_rows(cluster, {}, DrainRow, rows), errors=errors)


def _row(address: Address, drain: DrainState, end: str = "") -> DrainRow:
    row = DrainRow(str(address), draining=drain.draining, remaining=drain.remaining, messages=drain.messages, end=end)
    row.remaining_seconds = drain.remaining / 1e9 if drain.draining and not end else None
    state = end or ("draining" if drain.draining else "not draining")
    row.result = Cell(state, _TONES.get(state, Tone.NOTE))
    row.holding = [*map(asdict, drain.holding)]
    row.held_by = shortened(list(map(str, drain.holding)), _SHOWN)
    return row


_TONES = {"exited": Tone.GOOD, "timed out": Tone.BAD, "not draining": Tone.PLAIN}
