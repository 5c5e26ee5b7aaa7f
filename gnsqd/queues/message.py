"""A message as one channel sees it, its bytes, and its id.

The bytes are the frame that a consumer gets (NSQD-COMPAT section 2.1), built once and shared by all channels:

    int32 size | int32 type 2 | int64 timestamp | uint16 attempts | 16 bytes id | body

It is stored with attempts 1, the usual case; only a redelivery builds another. What a disk queue keeps is the same
bytes from the timestamp on.

An id is 64 bits (NSQD-COMPAT section 2.7): 42 of a clock that ticks every 2**20 ns, 10 of the node id, 12 of a sequence
within the tick, written as 16 lower-case hex characters. The clock follows the wall clock but never goes back, and
advances when a tick has not as many ids left as are needed at once. So ids are unique, and nobody waits for one.
"""

from struct import Struct
from time import monotonic_ns, time_ns
from typing import Any

from gnsqd.net.plain import new_frames
from gnsqd.shared.protocol import FRAME_TYPE_MESSAGE

NODE_ID_BITS = 10
SEQUENCE_BITS = 12
_EPOCH = 1288834974288
_MAX_ATTEMPTS = 0xFFFF

_SIZE_AND_TYPE = Struct(">ii")
_ATTEMPTS = Struct(">H")
_TIMESTAMP = Struct(">q")

_PAYLOAD_AT = 8
_ATTEMPTS_AT = 16
ID_AT = 18
BODY_AT = 34
FRAME_SURPLUS = 4  # bytes that a frame is longer than a record of a disk queue, its length included


class Message:
    """One channel's copy: the shared frame and this channel's own state of delivery."""

    __slots__ = ("attempts", "client_id", "deadline", "deferred", "delivered_at", "frame", "number")

    # Unset until the message is in flight or held back; times are monotonic ns.
    client_id: int  # who it was delivered to last
    delivered_at: int
    deadline: int  # when it is due again, or, once touched, times out

    def __init__(self, frame: bytes, attempts: int, deferred: int) -> None:
        self.frame = frame
        self.attempts = attempts
        self.deferred = deferred  # ns to hold it back before its first delivery
        self.number = 0  # in the topic's journal

    def copy(self) -> "Message":
        """Returns the same message for another channel, never delivered there."""
        message = Message.__new__(Message)
        message.frame = self.frame
        message.attempts = 0
        message.deferred = self.deferred
        message.number = self.number
        return message

    @property
    def id(self) -> bytes:
        return self.frame[ID_AT:BODY_AT]

    @property
    def timestamp(self) -> int:
        """The time of publication (wall clock, ns)."""
        timestamp: int = _TIMESTAMP.unpack_from(self.frame, _PAYLOAD_AT)[0]
        return timestamp

    @property
    def age(self) -> int:
        """The time since the publication, or since the message was due if it was held back, in ns."""
        age, due = time_ns() - self.timestamp, getattr(self, "deadline", 0)
        return min(age, monotonic_ns() - due) if due else age

    @property
    def body(self) -> bytes:
        return self.frame[BODY_AT:]

    def next_delivery(self) -> bytes:
        """Counts one more attempt and returns the frame with that number. Attempts stop at 65535."""
        attempts = self.attempts
        if attempts < _MAX_ATTEMPTS:
            attempts += 1
            self.attempts = attempts
        if attempts == 1:
            return self.frame
        return self.frame[:_ATTEMPTS_AT] + _ATTEMPTS.pack(attempts) + self.frame[ID_AT:]

    def payload(self) -> bytes:
        """Returns the record of a disk queue (NSQD-COMPAT section 4.3) without its length."""
        return self.frame[_PAYLOAD_AT:_ATTEMPTS_AT] + _ATTEMPTS.pack(self.attempts) + self.frame[ID_AT:]


class GuidFactory:
    """Owns the daemon's id sequence; `node_id` is 0..1023."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._tick = -1
        self._sequence = 0

    def reserve(self, now: int, count: int) -> int:
        """Returns the first of the next `count` ids, at most 4096, which are consecutive numbers of one tick. `now` is
        the wall clock in ns."""
        tick = (now >> 20) - _EPOCH
        if tick > self._tick or self._sequence + count > 1 << SEQUENCE_BITS:
            self._tick = max(tick, self._tick + 1)
            self._sequence = 0
        first = (self._tick << NODE_ID_BITS | self._node_id) << SEQUENCE_BITS | self._sequence
        self._sequence += count
        return first


def new_messages(id: int, timestamp: int, bodies: list[bytes], deferred: int = 0) -> list[Message]:
    """Returns new messages, whose ids are consecutive from `id` on, a result of `GuidFactory.reserve`; `timestamp`
    (wall clock) and `deferred` are in ns."""
    messages: list[Any] = new_frames(id, timestamp, bodies)
    for position, frame in enumerate(messages):
        messages[position] = message = Message.__new__(Message)
        message.frame = frame
        message.attempts = 0
        message.deferred = deferred
        message.number = 0
    return messages


def message_from_payload(payload: bytes) -> Message:
    """Returns the message that a disk queue kept as `payload`, which must be at least 26 bytes long."""
    attempts: int = _ATTEMPTS.unpack_from(payload, 8)[0]
    head = _SIZE_AND_TYPE.pack(4 + len(payload), FRAME_TYPE_MESSAGE)
    return Message(b"".join((head, payload[:8], b"\x00\x01", payload[10:])), attempts, 0)


def time_of(id: str) -> int:
    """Returns the beginning of an id's tick, wall clock in ns; raises ValueError if it is not 16 hex characters."""
    if len(id) != 16:
        raise ValueError("not an id")
    return ((int(id, 16) >> (NODE_ID_BITS + SEQUENCE_BITS)) + _EPOCH) << 20
