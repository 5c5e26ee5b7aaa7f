"""One connection of a consumer that never doubts what became of a message.

FIN is not answered, unless it is refused. So from time to time the consumer finishes what is not a message, a *fence*:
when that is refused, all that was sent before has been read, and what was not refused was taken.
"""

import random
import threading
import time
from collections.abc import Callable

from faults.ledger import Ledger
from kit.nsq_client import ERROR, HEARTBEAT, MESSAGE, NSQClient, ReceivedMessage, parse_message

FENCE = b"no-message's-id."  # as long as one
FENCED = 50  # FINs between two fences
IDLE = 0.1  # seconds
LATE = 1.0  # seconds until a message that was touched is finished


class FencedConsumer:
    """A consumer of `channel`, by a client that is subscribed. It finishes most messages, puts some back, and forgets a
    few; if `finish_all()`, it finishes all."""

    def __init__(
        self, client: NSQClient, ledger: Ledger, channel: str, chance: random.Random, finish_all: Callable[[], bool]
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._receipts = ledger.channels[channel]
        self._chance = chance
        self._finish_all = finish_all
        self._asked: dict[bytes, int] = {}  # finished since the last fence: number by id
        self._fenced: dict[bytes, int] = {}  # and before it
        self._fence_is_out = False
        self._late: dict[bytes, tuple[float, int]] = {}  # to be finished then
        self._ignoring = False
        self._is_closing = False

    def serve(self, seconds: float, stopped: threading.Event) -> None:
        """Takes and answers messages for that long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not stopped.is_set():
            came = self._read(IDLE)
            self._finish_late()
            if self._asked and (not came or len(self._asked) >= FENCED):
                self._send_fence()

    def leave(self) -> None:
        """Takes no more, and waits until the answers were read. What was touched or forgotten times out."""
        self._client.command(b"CLS")
        while not self._is_closing:
            self._read()
        self._settle()

    def break_off(self) -> None:
        """Resets the connection, with messages in flight."""
        self._ignoring = True
        self._settle()
        self._client.reset()

    def _settle(self) -> None:
        while self._asked or self._fence_is_out:
            self._send_fence()
            self._read()

    def _send_fence(self) -> None:
        if not self._fence_is_out:
            self._fence_is_out = True
            self._fenced, self._asked = self._asked, {}
            self._client.command(b"FIN " + FENCE)

    def _read(self, seconds: float | None = None) -> bool:
        """Reads a frame; returns False if none came within that many seconds. Raises TimeoutError without a number."""
        try:
            frame = self._client.frame(seconds)
        except TimeoutError:
            if seconds is None:
                raise
            return False
        if frame.type == MESSAGE:
            self._receive(parse_message(frame.data))
        elif frame.type == ERROR:
            self._note_refused(frame.data)
        elif frame.data == HEARTBEAT:
            self._client.command(b"NOP")
        else:
            assert frame.data == b"CLOSE_WAIT", frame
            self._is_closing = True
        return True

    def _receive(self, message: ReceivedMessage) -> None:
        number = self._ledger.number(message.body)
        self._receipts.deliver(number, message.attempts)
        if self._ignoring or any(message.id in held for held in (self._asked, self._fenced, self._late)):
            return  # it timed out before the FIN that is on the way, or yet to come, and that is for this delivery now
        choice = 1.0 if self._finish_all() else self._chance.random()
        if choice > 0.06:
            self._finish(message.id, number)
        elif choice > 0.02:
            self._receipts.requeue(1)
            self._client.command(b"REQ %b %d" % (message.id, self._chance.choice((0, 0, 50, 1000))))
        elif choice > 0.01:
            self._client.command(b"TOUCH " + message.id)
            self._late[message.id] = time.monotonic() + LATE, number

    def _finish(self, id: bytes, number: int) -> None:
        self._client.command(b"FIN " + id)
        self._asked[id] = number

    def _finish_late(self) -> None:
        now = time.monotonic()
        for id in [id for id, (due, _) in self._late.items() if due <= now]:
            self._finish(id, self._late.pop(id)[1])

    def _note_refused(self, data: bytes) -> None:
        code, _, what = data.partition(b"_FAILED ")
        id = what.partition(b" ")[2][: len(FENCE)]
        if id == FENCE:
            self._receipts.finish(self._fenced.values())
            self._fenced = {}
            self._fence_is_out = False
        elif code == b"E_FIN":
            del (self._fenced if id in self._fenced else self._asked)[id]  # it timed out
        elif code == b"E_REQ":
            self._receipts.requeue(-1)
        else:
            assert code == b"E_TOUCH", data
