"""Plays commands and requests to two daemons at a time, and compares what they answer.

Every step waits until both daemons are at rest: for the answers and the messages that have to come (`queues` knows how
many), and until /stats of both is the same, and that everything is where it must end up. So the outcome is
determined: one thing is outstanding at a time, and of the consumers of a channel one at most has room.
"""

import re
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from kit.nsq_client import ERROR, MESSAGE, Frame, ReceivedMessage, parse_message
from model import explained
from model.queues import ConsumerWindow, Queues
from model.sides import PATIENCE, DaemonSide, HTTPAnswer, Link, counts

STATS = "GET /stats?format=json&include_mem=false&include_clients=false"
UNKNOWN_ID = b"0" * 16
FENCE_ID = b"fence-of-session"
FENCE = b"FIN " + FENCE_ID + b"\n"  # refused and answered, and the connection goes on
CLOSED = Frame(-1, b"closed")
STARTED = re.compile(rb'"start_time":\d+')
ID = re.compile(rb"\b[0-9a-f]{16}\b")
HARMLESS = (b"E_FIN_FAILED ", b"E_REQ_FAILED ", b"E_TOUCH_FAILED ")  # the connection goes on


T = TypeVar("T")


class Disagreement(AssertionError):
    """The daemons do not agree, or not with what must be."""

    def __init__(self, what: str, ours: object, real: object) -> None:
        super().__init__(f"{what}\n    gnsqd: {ours}\n    nsqd:  {real}")


class ExplainedDisagreement(Exception):
    """One of `explained`; the text is the reason."""


class Held(NamedTuple):
    """A message in flight: its id in each daemon."""

    ids: tuple[bytes, bytes]
    body: bytes


class ConnectionPair:
    """To both daemons at a time. A `lazy` one has the default output buffer, where a message waits unless it is the
    last that the consumer takes, so it takes one at a time."""

    def __init__(self, links: list[Link], number: int) -> None:
        self.links = links
        self.number = number
        self.lazy = True
        self.window = ConsumerWindow()
        self.held: list[Held] = []
        self.dropped: list[Held] = []  # no longer in flight
        self.arrived: list[list[ReceivedMessage]] = [[], []]

    def __str__(self) -> str:
        return f"connection {self.number}"


class Player:
    """`sides` are ours and the real one; `trace` records what was done."""

    def __init__(self, sides: tuple[DaemonSide, DaemonSide], patience: float = PATIENCE) -> None:
        self.sides = sides
        self.trace: list[str] = []
        self.patience = patience
        self.queues = Queues()
        self.connections: list[ConnectionPair] = []
        self.number = 0  # of the step
        self._known: dict[tuple[str, bytes], list[tuple[bytes, int]]] = {}  # id and timestamp in each daemon

    def note(self, text: str) -> None:
        self.trace.append(f"{self.number}: {text}")

    def compare(self, what: str, ours: object, real: object) -> None:
        if ours != real:
            if reason := explained.reason(self.trace[-1], str(ours), str(real)):
                raise ExplainedDisagreement(reason)
            raise Disagreement(f"{self.trace[-1]}: {what}", ours, real)

    # At rest

    def rest(self) -> None:
        """Waits until nothing moves any more; raises Disagreement unless both are where they should be."""
        windows = [connection.window for connection in self.connections]
        expected = {id(window): count for window, count in self.queues.settle(windows)}
        for connection in self.connections:
            if count := expected.get(id(connection.window), 0):
                self._receive(connection, count)
            elif any(connection.arrived):
                raise Disagreement(f"{self.trace[-1]}: unexpected messages", *connection.arrived)
        self.eventually(self._stats, "/stats")

    def eventually(self, look: Callable[[], list[T]], what: str) -> None:
        """Looks until it is the same on both sides."""
        deadline = time.monotonic() + self.patience
        while (seen := look())[0] != seen[1]:
            if time.monotonic() > deadline:
                self.compare(what, *seen)

    def _stats(self) -> list[object]:
        ours, real = (STARTED.sub(b"", answer.body) for answer in self.ask(STATS))
        if ours == real:
            stats = counts(ours.partition(b'"topics":')[2])
            self.queues.adopt(stats)
            expected = self.queues.stats()
            if stats != expected:
                return [stats, f"the same in both, but it should be {expected}"]
        return [ours, real]

    def ask(self, what: str, body: bytes | None = None) -> list[HTTPAnswer]:
        for side in self.sides:
            side.web.send(what, body)
        return [side.web.answer() for side in self.sides]

    def _receive(self, connection: ConnectionPair, count: int) -> None:
        """Receives that many messages, the same from both."""
        for link, arrived in zip(connection.links, connection.arrived, strict=True):
            while len(arrived) < count:
                frame = link.next_frame()
                if frame is None or frame.type != MESSAGE:
                    raise Disagreement(f"{self.trace[-1]}: {count} messages expected", frame, connection.arrived)
                arrived.append(parse_message(frame.data))
        ours, real = connection.arrived
        shown = [[(message.attempts, message.body) for message in side] for side in (ours, real)]
        self.compare(f"messages of {connection}", *shown)
        connection.arrived = [[], []]
        for pair in zip(ours, real, strict=True):
            connection.held.append(Held((pair[0].id, pair[1].id), pair[0].body))
            seen = [(message.id, message.timestamp) for message in pair]
            known = self._known.setdefault((connection.window.topic, pair[0].body), seen)
            if known != seen:
                raise Disagreement(f"{self.trace[-1]}: ids and timestamps are {seen}, and were", *known)

    # Talking

    def talk(self, connection: ConnectionPair, data: bytes, replies: int = 1) -> list[Frame]:
        """Sends, and expects that many replies, the same from both; messages between them are kept. No more come after
        that to a FENCE, or after the end of the connection, which must follow on a fatal error."""
        for link in connection.links:
            link.send(data)
        return self._replies(connection, replies)

    def send(self, connection: ConnectionPair, commands: list[bytes]) -> bool:
        """Sends a command that has no answer, to each daemon its own, and waits for its end; returns True if it was
        executed."""
        for link, command in zip(connection.links, commands, strict=True):
            link.send(command + b"\n" + FENCE)
        heard = self._replies(connection, 2)
        return len(heard) == 1 and FENCE_ID in heard[0].data

    def _replies(self, connection: ConnectionPair, count: int) -> list[Frame]:
        heard = [self._replies_of(connection, i, count) for i in range(len(connection.links))]
        self.compare("answers", *heard)
        if heard[0][-1] == CLOSED:
            self.lose(connection)
        return heard[0]

    def _replies_of(self, connection: ConnectionPair, i: int, count: int) -> list[Frame]:
        frames: list[Frame] = []
        while len(frames) < count:
            frame = connection.links[i].next_frame()
            if frame is None:
                return [*frames, CLOSED]
            if frame.type == MESSAGE:
                connection.arrived[i].append(parse_message(frame.data))
                continue
            if frame.type == ERROR:
                if not frame.data.startswith(HARMLESS):
                    count = len(frames) + 2
                elif FENCE_ID in frame.data:
                    return [*frames, frame]
                else:
                    frame = Frame(ERROR, ID.sub(b"ID", frame.data))
            frames.append(frame)
        return frames

    def lose(self, connection: ConnectionPair) -> None:
        """Closes a connection, which may have ended."""
        for link in connection.links:
            link.close()
        self.connections.remove(connection)
        self.queues.leave(connection.window)
