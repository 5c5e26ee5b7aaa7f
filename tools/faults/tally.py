"""What the clients of a soak know: of a topic what was published, of each of its channels what came and was finished.

A message is a number, which is in its body, and costs some bytes here, so that those of hours fit into memory. That is
exact where every publisher waits for its answer, and a FIN or REQ counts only once it is known to have been read.
"""

import threading
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

COUNTS = ("depth", "in_flight_count", "deferred_count")


class Receipts:
    """Of one channel, which was there before the first message."""

    def __init__(self) -> None:
        self.finished = bytearray()  # 1 for each number that is
        self.attempts = array("H")  # of the latest delivery
        self.finished_count = 0
        self.requeues = 0
        self.again: list[int] = []  # delivered once more although finished
        self._lock = threading.Lock()

    def extend(self, count: int) -> None:
        with self._lock:
            self.finished.extend(bytes(count))
            self.attempts.extend([0] * count)

    def deliver(self, number: int, attempts: int) -> None:
        """It came; what comes late, after a later delivery of the same message, is ignored."""
        with self._lock:
            if attempts > self.attempts[number]:
                self.attempts[number] = attempts
                if self.finished[number]:
                    self.again.append(number)

    def finish(self, numbers: Iterable[int]) -> None:
        """The daemon took FIN for them."""
        with self._lock:
            for number in numbers:
                if self.finished[number]:
                    self.again.append(number)
                else:
                    self.finished[number] = 1
                    self.finished_count += 1

    def requeue(self, count: int) -> None:
        """That many REQ were sent, or, where it is negative, refused."""
        with self._lock:
            self.requeues += count


class Tally:
    """Of one topic. Any thread may use it."""

    def __init__(self, topic: str, channels: Sequence[str]) -> None:
        self.topic = topic
        self.channels = {name: Receipts() for name in channels}
        self.count = 0  # of acknowledged messages
        self.bytes = 0  # of their bodies
        self._acknowledged = bytearray()
        self._lock = threading.Lock()

    def new_bodies(self, sizes: Sequence[int]) -> list[bytes]:
        """Bodies of about these many bytes, to be published to this topic."""
        with self._lock:
            first = len(self._acknowledged)
            self._acknowledged.extend(bytes(len(sizes)))
            for receipts in self.channels.values():
                receipts.extend(len(sizes))
        return [self._body(number, size) for number, size in enumerate(sizes, first)]

    def _body(self, number: int, size: int) -> bytes:
        return f"{self.topic} {number} {size} ".ljust(size, ".").encode()

    def number(self, body: bytes) -> int:
        """Which message it is; AssertionError if it was never published."""
        parts = body.split(b" ", 3)
        assert len(parts) == 4, body[:100]
        assert all(part.isdigit() for part in parts[1:3]), body[:100]
        number = int(parts[1])
        assert body == self._body(number, int(parts[2])), body[:100]
        assert number < len(self._acknowledged), body[:100]
        return number

    def acknowledge(self, bodies: Sequence[bytes]) -> None:
        """A publisher received OK for them."""
        numbers = [self.number(body) for body in bodies]
        with self._lock:
            for number in numbers:
                self._acknowledged[number] = 1
            self.count += len(bodies)
            self.bytes += sum(map(len, bodies))

    def lost(self, channel: str) -> list[int]:
        """Acknowledged, and not finished."""
        finished = self.channels[channel].finished
        return [number for number, done in enumerate(self._acknowledged) if done and not finished[number]]

    def finished(self) -> bool:
        """Whether every channel is through with all there is."""
        return all(receipts.finished_count == self.count for receipts in self.channels.values())

    def complaints(self, stats: dict[str, Any]) -> list[str]:
        """What is wrong at the end, when nothing should be left; `stats` are the daemon's, of the topic."""
        found = [
            (f"{key} {stats[key]}", f"{value} expected")
            for key, value in (("depth", 0), ("message_count", self.count), ("message_bytes", self.bytes))
            if stats[key] != value
        ]
        entries = {entry["channel_name"]: entry for entry in stats["channels"]}
        if set(entries) != set(self.channels):
            found.append((f"channels {sorted(entries)}", f"{sorted(self.channels)} expected"))
        for name, receipts in self.channels.items():
            found += [(f"channel {name}", text) for text in self._complaints(name, receipts, entries.get(name, {}))]
        return [f"topic {self.topic}: {what}: {text}" for what, text in found]

    def _complaints(self, name: str, receipts: Receipts, stats: dict[str, Any]) -> list[str]:
        if not stats:
            return ["is gone"]
        # Every delivery but the last of a message ended by REQ or by a time-out.
        expected = dict.fromkeys(COUNTS, 0) | {
            "message_count": self.count,
            "requeue_count": receipts.requeues,
            "timeout_count": sum(receipts.attempts) - self.count - receipts.requeues,
        }
        found = [f"{key} {stats[key]}, {value} expected" for key, value in expected.items() if stats[key] != value]
        if lost := self.lost(name):
            found.append(f"{len(lost)} messages lost, such as {lost[:3]}")
        if receipts.finished_count > self.count:
            found.append("messages without an OK")
        if receipts.again:
            found.append(f"{len(receipts.again)} finished messages delivered again, such as {receipts.again[:3]}")
        return found
