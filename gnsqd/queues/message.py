"""A message as one channel sees it, and its bytes.

The bytes are the frame that a consumer gets (NSQD-COMPAT section 2.1), built once and shared by all channels:

    int32 size | int32 type 2 | int64 timestamp | uint16 attempts | 16 bytes id | body

It is stored with attempts 1, the usual case; only a redelivery builds another. What a disk queue keeps is the same
bytes from the timestamp on.
"""

from struct import Struct
from time import monotonic_ns, time_ns
from typing import Any

from gnsqd.net.plain import new_frames
from gnsqd.shared.protocol import FRAME_TYPE_MESSAGE

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
