"""The knowledge of the clients of a topic: which messages were published, and which of them each channel delivered and
finished. For every channel holds: what was acknowledged and not finished comes in the end.

A message is a number, which is in its body, and costs some bytes here, so that those of hours fit into memory. Any
thread may use a ledger.
"""

import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

SETTLED = 0.3  # seconds that a FIN may take to be read and kept


class Receipts:
    """The messages of one channel, which was there before the first of them."""

    def __init__(self) -> None:
        self.finished_at = array("d")  # time.time() by number; 0.0 for a message that is not finished
        self.attempts = array("H")  # of the latest delivery, where consumers give them
        self.again: Counter[int] = Counter()  # deliveries of a message that was finished
        self.unsure: set[int] = set()  # finished so late that these may come again
        self.finished_count = 0
        self.requeues = 0
        self._lock = threading.Lock()

    def extend(self, count: int) -> None:
        with self._lock:
            self.finished_at.extend([0.0] * count)
            self.attempts.extend([0] * count)

    def deliver(self, number: int, attempts: int = 0) -> None:
        """Notes a delivery. A consumer beside others gives the attempts of it, as it may read one from its buffer late,
        after a later delivery of the same message: that is ignored."""
        with self._lock:
            if attempts and attempts <= self.attempts[number]:
                return
            self.attempts[number] = attempts
            if self.finished_at[number] and number not in self.unsure:
                self.again[number] += 1

    def finish(self, numbers: Iterable[int]) -> None:
        """Notes a FIN for each of them, which the daemon took or takes unless it refuses it."""
        with self._lock:
            now = time.time()
            for number in numbers:
                if not self.finished_at[number]:
                    self.finished_count += 1
                elif number not in self.unsure:
                    self.again[number] += 1
                self.finished_at[number] = now

    def refuse(self, number: int) -> None:
        """Notes that a FIN was refused, because the time of the message was up: that it came again is right."""
        with self._lock:
            self.unsure.add(number)
            self.again.pop(number, None)

    def unfinish(self, number: int) -> None:
        with self._lock:
            self.finished_count -= self.finished_at[number] > 0
            self.finished_at[number] = 0.0

    def requeue(self, count: int) -> None:
        """Notes that many REQ, or, where it is negative, refusals of them."""
        with self._lock:
            self.requeues += count

    def fault(self, moment: float) -> None:
        """Notes the end of the daemon: what was finished shortly before may come again."""
        with self._lock:
            self.unsure |= {number for number, at in enumerate(self.finished_at) if at > moment - SETTLED}

    def lost(self, acknowledged: Iterable[int]) -> set[int]:
        return {number for number in acknowledged if not self.finished_at[number]}


class Ledger:
    """The messages of one topic."""

    def __init__(self, topic: str, channels: Mapping[str, Receipts]) -> None:
        self.topic = topic
        self.channels = channels
        self.count = 0  # of acknowledged messages
        self.bytes = 0  # of their bodies
        self._acknowledged = bytearray()  # 1 for each number that is
        self._lock = threading.Lock()

    def new_bodies(self, sizes: Sequence[int]) -> list[bytes]:
        """Returns bodies of about these many bytes, to be published to this topic."""
        with self._lock:
            first = len(self._acknowledged)
            self._acknowledged.extend(bytes(len(sizes)))
            for receipts in self.channels.values():
                receipts.extend(len(sizes))
        return [self._body(number, size) for number, size in enumerate(sizes, first)]

    def _body(self, number: int, size: int) -> bytes:
        return f"{self.topic} {number} {size} ".ljust(size, ".").encode()

    def number(self, body: bytes) -> int:
        """Returns the number of a message; raises AssertionError if it was never published."""
        parts = body.split(b" ", 3)
        assert len(parts) == 4, body[:100]
        assert all(part.isdigit() for part in parts[1:3]), body[:100]
        number = int(parts[1])
        assert body == self._body(number, int(parts[2])), body[:100]
        assert number < len(self._acknowledged), body[:100]
        return number

    def acknowledge(self, bodies: Sequence[bytes]) -> None:
        """Notes that a publisher received OK for them."""
        numbers = [self.number(body) for body in bodies]
        with self._lock:
            for number in numbers:
                self._acknowledged[number] = 1
            self.count += len(bodies)
            self.bytes += sum(map(len, bodies))

    def take_back(self, bodies: Sequence[bytes]) -> None:
        """Notes that nobody may rely on the OK for them any more."""
        with self._lock:
            for body in bodies:
                self._acknowledged[self.number(body)] = 0
            self.count -= len(bodies)

    def acknowledged(self) -> list[int]:
        return [number for number, is_acknowledged in enumerate(self._acknowledged) if is_acknowledged]

    def lost(self, channel: str) -> set[int]:
        """Returns what was acknowledged and not finished."""
        return self.channels[channel].lost(self.acknowledged())

    def is_finished(self) -> bool:
        """True if every channel has finished what was acknowledged."""
        return all(receipts.finished_count == self.count for receipts in self.channels.values())

    def complaints(self, channel: str) -> list[str]:
        """Returns what is wrong in a channel when nothing should be left."""
        receipts, found = self.channels[channel], []
        if lost := self.lost(channel):
            found.append(f"{len(lost)} messages lost, such as {sorted(lost)[:3]}")
        if receipts.finished_count > self.count:
            found.append("messages without an OK")
        if receipts.again:
            found.append(f"{len(receipts.again)} finished messages delivered again, such as {list(receipts.again)[:3]}")
        return [f"topic {self.topic}: channel {channel}: {text}" for text in found]
