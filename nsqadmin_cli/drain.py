"""Drains of nodes: what each says of its own, and watching them until they are over.

A drain ends with the exit of its node, so a node that refuses connections is one that has exited. What it last said
tells whether it was empty by then, or its time was up.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.http_client import NodeError, Refused

POLL_SECONDS = 0.2
_GONE = ("connection refused", "no such file or directory")  # a port or a unix socket where nobody listens
_TRIES = 3  # looks that may fail in a row: a daemon that exits may reset a connection before it refuses others

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Holder:
    """A queue that is not empty; `channel` is "" for a topic's own, `remark` says why nobody takes its messages."""

    topic: str
    channel: str
    messages: int
    remark: str

    def __str__(self) -> str:
        name = f"{self.topic}:{self.channel}" if self.channel else self.topic
        return f"{name} {self.messages:,}{f' ({self.remark})' if self.remark else ''}"


@dataclass(frozen=True, slots=True)
class DrainState:
    """What a gnsqd says of its drain; `remaining` ns are left until it exits anyhow. `holding`: the fullest queues."""

    draining: bool
    remaining: int
    messages: int
    holding: tuple[Holder, ...]

    @classmethod
    def ask(cls, node: Nsqd, method: Literal["GET", "POST", "DELETE"]) -> "DrainState":
        """Look at a drain, start or cancel it; NodeError."""
        try:
            answer = node.drain(method)
        except Refused as error:
            if error.status == 404:
                reason = "cannot drain, gnsqd alone can"
            elif error.code == "EXITING":
                reason = "is exiting already"
            else:
                raise
            raise NodeError(node.program, node.address, reason) from None
        state = cls._of(answer)
        if state is None:
            reason = "answered JSON that is not an nsqd's: it is no state of a drain"
            raise NodeError(node.program, node.address, reason)
        return state

    @classmethod
    def _of(cls, answer: dict[str, Any]) -> "DrainState | None":
        try:
            holders = tuple(
                Holder(*(_typed(item[key], kind) for key, kind in _HOLDER.items())) for item in answer["holding"]
            )
            remaining, messages = _typed(answer["remaining"], int), _typed(answer["messages"], int)
        except (LookupError, TypeError):
            return None
        return cls(bool(answer["draining"]), remaining, messages, holders)


_HOLDER: dict[str, type] = {"topic": str, "channel": str, "messages": int, "remark": str}


def _typed(value: Any, kind: type) -> Any:
    """`value` if it is what it should be; TypeError."""
    if type(value) is not kind or (isinstance(value, int) and not 0 <= value < 2**64):
        raise TypeError
    return value


@dataclass(slots=True)
class Watched:
    """A node whose drain is watched. `end` is empty while it drains, then "exited", "timed out" or "cancelled"."""

    node: Nsqd
    state: DrainState
    seen: float  # by time.monotonic()
    end: str = ""
    error: NodeError | None = None
    failures: int = 0

    @property
    def is_over(self) -> bool:
        return bool(self.end) or self.error is not None

    def take(self, answer: DrainState | NodeError) -> None:
        """What the next look brought."""
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
    """Look again and again until all of `watched` are over. `advance` is told how many messages were taken."""
    while going_on := [one for one in watched if not one.is_over]:
        before = sum(one.state.messages for one in going_on)
        answers = cluster.ask(lambda node: DrainState.ask(node, "GET"), [one.node for one in going_on])
        for one in going_on:
            one.take(answers[one.node.address])
        left = sum(one.state.messages for one in going_on if one.end != "exited")
        advance(before - left)
        time.sleep(POLL_SECONDS)
