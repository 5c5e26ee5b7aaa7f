"""`gnsqadmin drain`: lets consumers empty gnsqd nodes, which then exit.

A drain ends with the exit of its node, so a node that refuses connections has exited. Its last answer shows whether it
was empty, or its time was up.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from nsqadmin_cli import units
from nsqadmin_cli.api import ModelError, Nsqd, scalars
from nsqadmin_cli.cluster import Answers, Cluster, errors_of, values_of
from nsqadmin_cli.command import command, option
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import Address, NodeError, Refused
from nsqadmin_cli.output import Advance, Confirm, Output, note, progress, report
from nsqadmin_cli.table import ALWAYS, Cell, Form, Tone, column, described, json_only, table_of
from nsqadmin_cli.units import plural, shortened

POLL_SECONDS = 0.2
_GONE = ("connection refused", "no such file or directory")  # a closed port or unix socket
_TRIES = 3  # looks that may fail in a row: a daemon that exits may reset a connection before it refuses others


@dataclass(frozen=True, slots=True)
class Holder:
    """A queue that is not empty; `channel` is "" for a topic's own, `remark` is the reason if its messages are not
    consumed."""

    topic: str
    channel: str
    messages: int
    remark: str

    def __str__(self) -> str:
        name = f"{self.topic}:{self.channel}" if self.channel else self.topic
        return f"{name} {self.messages:,}{f' ({self.remark})' if self.remark else ''}"


@dataclass(frozen=True, slots=True)
class DrainState:
    """The state of a drain as gnsqd reports it; `remaining` ns are left until it exits in any case. `holding`: the
    fullest queues."""

    draining: bool
    remaining: int
    messages: int
    holding: tuple[Holder, ...]

    @classmethod
    def ask(cls, node: Nsqd, method: Literal["GET", "POST", "DELETE"]) -> "DrainState":
        """Query, start or cancel a drain; NodeError."""
        try:
            answer = node.drain(method)
        except Refused as error:
            if error.status == 404:
                reason = "cannot drain: only gnsqd can"
            elif error.code == "EXITING":
                reason = "is already exiting"
            else:
                raise
            raise NodeError(node.program, node.address, reason) from None
        try:
            holding = tuple(Holder(*scalars(Holder, one)) for one in answer["holding"])
            state = cls(*scalars(cls, answer), holding)  # type: ignore[call-arg]
            if min(state.messages, state.remaining) >= 0:
                return state
        except (ModelError, LookupError, TypeError):
            pass
        reason = "answered JSON that is not an nsqd's: it is not a state of a drain"
        raise NodeError(node.program, node.address, reason)


@dataclass(slots=True)
class Watched:
    """A node whose drain is watched. `end` is empty while it drains, then "exited", "timed out" or "cancelled"."""

    node: Nsqd
    state: DrainState
    seen: float  # by time.monotonic()
    end: str = ""
    error: NodeError | None = None
    failures: int = 0

    def take(self, answer: DrainState | NodeError) -> None:
        """Update from the next answer."""
        now = time.monotonic()
        if isinstance(answer, DrainState):
            self.failures = 0
            self.state, self.seen = answer, now
            if not answer.draining:
                self.end = "cancelled"
        elif answer.reason in _GONE:
            # Its time was up if it could be before this look; what was left then was too much for this moment.
            in_time = self.state.remaining / 1e9 > now - self.seen + POLL_SECONDS
            self.end = "exited" if in_time or not self.state.messages else "timed out"
        else:
            self.failures += 1
            if self.failures == _TRIES:
                self.error = answer


def watch_drains(cluster: Cluster, watched: Sequence[Watched], advance: Advance) -> None:
    """Poll until all of `watched` have ended. Calls `advance` with the number of messages consumed."""
    while going_on := [one for one in watched if not (one.end or one.error)]:
        before = sum(one.state.messages for one in going_on)
        answers = cluster.ask(lambda node: DrainState.ask(node, "GET"), [one.node for one in going_on])
        for one in going_on:
            one.take(answers[one.node.address])
        left = sum(one.state.messages for one in going_on if one.end != "exited")
        advance(before - left)
        time.sleep(POLL_SECONDS)


@dataclass(slots=True)
class DrainRow:
    """The state of a node; None after an error."""

    address: str = column("node", key="node", tone=Tone.NODE)
    error: str | None = json_only("null, or a text")
    draining: bool | None = json_only()
    remaining: int | None = json_only("ns until the node exits in any case")
    remaining_seconds: float | None = column("time left", "left", Form.DURATION, keep=6, json=False)
    messages: int | None = column("messages", "msgs", Form.COUNT, keep=ALWAYS, help="in all queues")
    state: Cell | str = column("state", keep=ALWAYS, json=False)
    held_by: str | None = column("held by", key="holding", keep=3, json=False)
    holding: list[dict[str, Any]] | None = json_only(
        "null or a list of the fullest queues: topic, channel, messages, remark"
    )
    end: str = json_only('null, "exited", "timed out" or "cancelled"', null=True, default="")


_DOCUMENT = (
    described("nodes", "list, in the order queried", DrainRow),
    "After an error draining, remaining, messages and holding are null.",
)
_TIME_LIMIT = "drain_timeout"
_SHOWN = 3  # queues in a row


@command(
    "start",
    examples="""
        gnsqadmin drain start --dry-run --nsqd-http-address a.example:4151
        gnsqadmin drain start --watch --nsqd-http-address a.example:4151
        gnsqadmin drain start --yes --json --nsqd-http-address a.example:4151
    """,
    document=_DOCUMENT,
)
@option("--watch", "is_watched", is_flag=True, help="Wait until the nodes have exited, like gnsqadmin drain watch.")
def start(cluster: Cluster, output: Output, confirm: Confirm, is_watched: bool) -> int:
    """Drain nodes: they refuse publishers, and exit when consumers have emptied all queues.

    They also exit after their --drain-timeout; remaining messages are kept on disk, except for ephemeral topics and
    channels. Some messages cannot be consumed: in topics without channels, in paused topics and channels, and in
    channels without consumers. With such messages, the node waits until the timeout. Only gnsqd can drain.
    """
    nodes = cluster.nsqds()
    answers = cluster.ask(lambda node: DrainState.ask(node, "GET"), nodes)
    able = [node for node in nodes if node.address in values_of(answers)]
    if not able:
        report([*cluster.lookupd_errors, *errors_of(answers)])
        raise AdminError("no node can be drained")
    if not confirm.dry_run:
        limits = values_of(cluster.ask(lambda node: node.get_config(_TIME_LIMIT), able))
        everywhere = bool(cluster.lookupds) and len(able) == len(nodes)
        confirm.ask(
            _warning(able, list(limits.values()), everywhere),
            [table_of(DrainRow, [_row(*one) for one in answers.items()])],
            f"Drain {_them(able)}?",
        )
        answers |= cluster.ask(lambda node: DrainState.ask(node, "POST"), able)
    if is_watched and not confirm.dry_run:
        return _watch(cluster, output, answers)
    return _show_answers(cluster, output, answers)


@command(
    "status",
    examples="gnsqadmin drain status\ngnsqadmin drain status --json | jq '.nodes[].messages'",
    document=_DOCUMENT,
)
def status(cluster: Cluster, output: Output) -> int:
    """Show which nodes drain, the time left, and the messages left."""
    return _show_answers(cluster, output, cluster.ask(lambda node: DrainState.ask(node, "GET")))


@command(
    "watch",
    examples="gnsqadmin drain watch --nsqd-http-address a.example:4151\ngnsqadmin drain watch --json",
    document=_DOCUMENT,
)
def watch(cluster: Cluster, output: Output) -> int:
    """Wait until draining nodes have exited, and report whether they were empty.

    The exit code is 1 if a node reached its timeout before it was empty, or if its drain was cancelled. Ctrl-C ends
    only this command.
    """
    answers = cluster.ask(lambda node: DrainState.ask(node, "GET"))
    return _watch(cluster, output, answers)


@command(
    "cancel",
    examples="gnsqadmin drain cancel --nsqd-http-address a.example:4151\ngnsqadmin drain cancel --json",
    document=_DOCUMENT,
)
def cancel(cluster: Cluster, output: Output) -> int:
    """Cancel drains: the nodes accept messages again."""
    return _show_answers(cluster, output, cluster.ask(lambda node: DrainState.ask(node, "DELETE")))


def _show_answers(cluster: Cluster, output: Output, answers: Answers[DrainState]) -> int:
    _show(output, answers)
    return report([*cluster.lookupd_errors, *errors_of(answers)])


def _watch(cluster: Cluster, output: Output, answers: Answers[DrainState]) -> int:
    """Wait for the drains in `answers`; returns the exit code."""
    now = time.monotonic()
    watched = {
        address: Watched(Nsqd(address, cluster.http), state, now)
        for address, state in values_of(answers).items()
        if state.draining
    }
    errors = [*cluster.lookupd_errors, *errors_of(answers)]
    if not watched:
        report(errors)
        raise AdminError("no node is draining")
    total = sum(one.state.messages for one in watched.values())
    try:
        with progress(f"draining {plural(len(watched), 'node')}", total) as advance:
            watch_drains(cluster, list(watched.values()), advance)
    except KeyboardInterrupt:
        note("the drain continues; gnsqadmin drain cancel cancels it")
        raise
    ended: Answers[DrainState] = {address: one.error or one.state for address, one in watched.items()}
    ends = {address: one.end for address, one in watched.items()}
    _show(output, ended, ends)
    errors += errors_of(ended)
    for one in watched.values():
        if one.end == "timed out":
            text = f"exited because its time was up; about {plural(one.state.messages, 'message')} were left"
            errors.append(NodeError(one.node.program, one.node.address, text))
        elif one.end == "cancelled":
            errors.append(NodeError(one.node.program, one.node.address, "no longer drains: it was cancelled"))
    return report(errors)


def _them(nodes: Sequence[Nsqd]) -> str:
    return "it" if len(nodes) == 1 else "them"


def _warning(nodes: Sequence[Nsqd], limits: Sequence[str], everywhere: bool) -> str:
    """Draining 2 nodes makes them refuse publishers, and exit when empty, after 1m 0s at the latest."""
    known = [int(limit) / 1e9 for limit in limits if limit.isascii() and limit.isdigit() and len(limit) < 20]
    latest = f", after {units.latency(max(known))} at the latest" if known else ""
    doing = (
        f"Draining {plural(len(nodes), 'node')} makes {_them(nodes)} refuse publishers, and exit when empty{latest}."
    )
    return f"{doing} These are all nodes of the cluster." if everywhere else doing


def _show(output: Output, answers: Answers[DrainState], ends: dict[Address, str] | None = None) -> None:
    rows = [_row(address, answer, (ends or {}).get(address, "")) for address, answer in answers.items()]
    output.show(lambda: {"nodes": rows}, lambda: [table_of(DrainRow, rows, empty="No nodes.")])


def _row(address: Address, answer: DrainState | NodeError, end: str = "") -> DrainRow:
    if isinstance(answer, NodeError):
        return DrainRow(str(address), answer.reason, state=Cell(f"failed: {answer.reason}", Tone.BAD))
    state = Cell(end, _TONES[end]) if end else Cell("draining", Tone.NOTE) if answer.draining else "not draining"
    left = answer.remaining / 1e9 if answer.draining and not end else None
    row = DrainRow(str(address), None, answer.draining, answer.remaining, left, answer.messages, state)
    row.held_by, row.holding, row.end = (
        shortened(list(map(str, answer.holding)), _SHOWN),
        [*map(asdict, answer.holding)],
        end,
    )
    return row


_TONES = {"exited": Tone.GOOD, "timed out": Tone.BAD, "cancelled": Tone.NOTE}
