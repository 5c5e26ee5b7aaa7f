"""The promises of a topic of NSQ, written down as plainly as can be, for judging what a daemon delivers.

A message that was acknowledged comes to every channel there was, at the earliest when it is due, and again only when
it was requeued or its time was up, one attempt older each time; after FIN it does not come again. Nobody knows exactly
when a daemon gave a message out, so `not_before` are the latest times that are certain to be early enough.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

TOLERANCE = 0.01  # seconds; clocks on disk are coarser, and not the same


class PromisedConsumer(Protocol):
    """A sender of FIN, REQ or TOUCH: `sync` waits until the daemon has executed all of them, and reports to it
    about those it refused; `fences` are the times that this was done. `read_at` is when it last took what had come."""

    fences: int
    read_at: float

    def sync(self) -> None: ...


class Came(NamedTuple):
    """A message: read at `at`, after that many fences of its connection, the last of them sent at `since`. `unseen` is
    that of the channel when its consumer had last read before: from then on it may have been sent, and to others."""

    id: bytes
    attempts: int
    body: bytes
    at: float
    fence: int
    since: float
    unseen: int


@dataclass(eq=False)
class Promise:
    """One message in one channel."""

    body: bytes
    not_before: float
    must: bool = False  # it was acknowledged, for this channel
    id: bytes = b""
    attempts: int = 0
    fewest: int = 0  # attempts that must have been kept
    unseen: int = 0  # of the last delivery
    holder: PromisedConsumer | None = None
    came_to: PromisedConsumer | None = None  # the latest delivery, and when that was read
    came_at: float = 0.0
    asked: PromisedConsumer | None = None  # who answered it last
    fence: int = 0  # of `asked`, which settles the answer
    before: float = 0.0  # not_before, if that answer is refused
    answered_at: float = 0.0
    finished: bool = False
    raced: bool = False  # its holder's last answer may have been for this delivery
    doubtful: bool = False  # it is unknown whether the daemon got the last answer


class Broken(AssertionError):
    """A promise was broken."""


@dataclass(eq=False)
class PromisedChannel:
    """`timeout` is the daemon's msg-timeout in seconds. `unseen` counts the times that a message may have been sent to
    somebody who did not read it."""

    timeout: float
    records: dict[bytes, Promise] = field(default_factory=dict)
    unseen: int = 0
    consumers: list[PromisedConsumer] = field(default_factory=list)

    def starved(self, now: float) -> None:
        """Counts the deliveries that may have timed out in the buffers of consumers that have not read for long."""
        self.unseen += sum(int((now - consumer.read_at) / (0.8 * self.timeout)) for consumer in self.consumers)

    def expect(self, body: bytes, not_before: float) -> None:
        self.records.setdefault(body, Promise(body, not_before)).must = True

    def deliver(self, record: Promise, consumer: PromisedConsumer, came: Came) -> bool:
        """Judges a message that came to `consumer`; returns True if that may answer."""
        now, attempts, id = came.at, came.attempts, came.id
        if consumer is not record.came_to:
            if attempts <= record.attempts and came.since < record.came_at:
                return False  # it timed out in the buffer of a consumer that read late, after the next was read
            if record.finished and came.since + self.timeout < record.answered_at:
                return False  # the same, after who had read the one before was sent it again and finished it
        early = now < record.not_before - TOLERANCE
        raced = False
        if record.asked is consumer and came.fence < record.fence:
            # It may have been on its way, timed out, to whom it had timed out for, who has answered it meanwhile. If so
            # with the delivery before, the answer before may have ended that one, and this is the next one.
            raced = record.raced or now >= record.before - TOLERANCE
            if raced and (record.finished or early):
                record.attempts = attempts
                return False
            if record.finished or early:
                raise Broken(f"{record} came {record.before - now:.3f} s early")
        elif record.asked is not None and record.fence > record.asked.fences and not record.doubtful:
            record.asked.sync()
            early = now < record.not_before - TOLERANCE
        if record.finished and not record.doubtful:
            raise Broken(f"{record} came after FIN")
        if early and not record.doubtful:
            raise Broken(f"{record} came {record.not_before - now:.3f} s early")
        most = record.attempts + 1 + self.unseen - record.unseen
        if not min(record.fewest, record.attempts) + 1 <= attempts <= most:
            raise Broken(f"{record} came with {attempts} attempts, {most} at most")
        if record.id not in (b"", id):
            raise Broken(f"{record} came with the id {id!r}")
        record.id, record.attempts, record.fewest, record.unseen = id, attempts, attempts, came.unseen
        record.came_to, record.came_at = consumer, now
        record.holder, record.asked, record.doubtful, record.finished = consumer, None, False, False
        record.raced = raced
        if not raced:  # else the answer may have ended this delivery, and the next one follows at once
            record.not_before = max(record.not_before, came.since) + self.timeout
        return True

    def answer(self, record: Promise, now: float, delay: float | None) -> None:
        """Notes that its holder requeues it, or finishes it (None)."""
        assert record.holder is not None
        record.asked, record.fence = record.holder, record.holder.fences + 1
        record.before = record.not_before
        record.holder = None
        record.answered_at = now
        if delay is None:
            record.finished = True
        else:
            record.not_before = now + delay

    def refused(self, record: Promise, now: float) -> None:
        """Judges a refusal: the answer came too late, because the message had timed out; never before."""
        if now < record.before - TOLERANCE and not record.raced:
            raise Broken(f"{record}: refused {record.before - now:.3f} s before its time was up")
        record.finished = False
        record.not_before = record.before
        record.asked = None

    def left(self, consumer: PromisedConsumer, unread: float) -> None:
        """Notes the end of its connection: nobody knows which of its last answers were read, nor what it was sent in
        the seconds that it did not read."""
        self.unseen += 1 + int(unread / self.timeout)
        for record in self.records.values():
            if record.asked is consumer and record.fence > consumer.fences:
                record.doubtful = True

    def restarted(self, now: float, settled: float, kept_attempts: bool) -> None:
        """Notes that the daemon ended at `now`; of the answers only those are sure that came before `settled`."""
        self.unseen += 1
        for record in self.records.values():
            if (record.asked is not None and record.fence > record.asked.fences) or record.answered_at > settled:
                record.doubtful = True
            if record.holder is not None or record.doubtful:
                record.not_before = min(record.not_before, now)
            if not kept_attempts:
                record.fewest = 0
            record.holder = None

    def missing(self) -> list[Promise]:
        return [record for record in self.records.values() if record.must and not record.finished]


@dataclass(eq=False)
class PromisedTopic:
    """`waiting` are the messages published before there was a channel, with their `not_before`."""

    timeout: float
    channels: dict[str, PromisedChannel] = field(default_factory=dict)
    sent: dict[bytes, float] = field(default_factory=dict)
    waiting: dict[bytes, float] = field(default_factory=dict)

    def acknowledged(self, bodies: list[bytes]) -> None:
        """Expects them in each channel: there were the same channels when they were sent."""
        for body in bodies:
            for channel in self.channels.values():
                channel.expect(body, self.sent[body])
            if not self.channels:
                self.waiting[body] = self.sent[body]

    def create(self, name: str) -> None:
        if name not in self.channels:
            channel = self.channels[name] = PromisedChannel(self.timeout)
            for body, not_before in self.waiting.items():
                channel.expect(body, not_before)
            self.waiting.clear()

    def record(self, name: str, body: bytes) -> Promise:
        """Returns that of a message that came to the channel, which it may even if it was sent before."""
        if body not in self.sent:
            raise Broken(f"nobody sent {body!r}")
        return self.channels[name].records.setdefault(body, Promise(body, self.sent[body]))
