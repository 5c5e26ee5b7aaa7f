"""A message as one channel sees it, and its bytes.

The bytes are the frame that a consumer gets (NSQD-COMPAT section 2.1), built once when the message is published and
shared by all channels:

    int32 size | int32 type 2 | int64 timestamp | uint16 attempts | 16 bytes id | body

It is stored with attempts 1, the usual case; only a redelivery builds another. What a disk queue keeps is the same
bytes from the timestamp on.
"""

from struct import Struct

FRAME_TYPE_MESSAGE = 2
MAX_ATTEMPTS = 0xFFFF

_HEAD = Struct(">iiqH")
_SIZE_AND_TYPE = Struct(">ii")
_ATTEMPTS = Struct(">H")
_TIMESTAMP = Struct(">q")

_PAYLOAD_AT = 8
_ATTEMPTS_AT = 16
_ID_AT = 18
_BODY_AT = 34
_SIZE_WITHOUT_BODY = 30


class Message:
    """One channel's copy: the shared frame and this channel's own state of delivery."""

    __slots__ = ("attempts", "client_id", "deadline", "deferred", "delivered_at", "frame", "id")

    def __init__(self, id: bytes, frame: bytes, attempts: int, deferred: int) -> None:
        self.id = id
        self.frame = frame
        self.attempts = attempts
        self.deferred = deferred  # ns to hold it back before its first delivery
        self.client_id = 0  # who it was delivered to last
        self.delivered_at = 0  # monotonic ns
        self.deadline = 0  # monotonic ns: when it times out, or is due again

    def copy(self) -> "Message":
        """The same message for another channel, never delivered there."""
        return Message(self.id, self.frame, 0, self.deferred)

    @property
    def timestamp(self) -> int:
        """Wall clock in ns at which it was published."""
        timestamp: int = _TIMESTAMP.unpack_from(self.frame, _PAYLOAD_AT)[0]
        return timestamp

    @property
    def body(self) -> bytes:
        return self.frame[_BODY_AT:]

    def body_size(self) -> int:
        return len(self.frame) - _BODY_AT

    def next_delivery(self) -> bytes:
        """Count one more attempt and return the frame that says so. Attempts stop at 65535."""
        attempts = self.attempts
        if attempts < MAX_ATTEMPTS:
            attempts += 1
            self.attempts = attempts
        if attempts == 1:
            return self.frame
        return self.frame[:_ATTEMPTS_AT] + _ATTEMPTS.pack(attempts) + self.frame[_ID_AT:]

    def payload(self) -> bytes:
        """What a disk queue keeps (NSQD-COMPAT section 4.3, without the length)."""
        return self.frame[_PAYLOAD_AT:_ATTEMPTS_AT] + _ATTEMPTS.pack(self.attempts) + self.frame[_ID_AT:]


def new_message(id: bytes, timestamp: int, body: bytes, deferred: int = 0) -> Message:
    """A message just published; `timestamp` is the wall clock in ns, `deferred` the ns to hold it back."""
    head = _HEAD.pack(_SIZE_WITHOUT_BODY + len(body), FRAME_TYPE_MESSAGE, timestamp, 1)
    return Message(id, b"".join((head, id, body)), 0, deferred)


def message_from_payload(payload: bytes) -> Message:
    """The message that a disk queue kept as `payload`, which must be at least 26 bytes long."""
    attempts: int = _ATTEMPTS.unpack_from(payload, 8)[0]
    head = _SIZE_AND_TYPE.pack(4 + len(payload), FRAME_TYPE_MESSAGE)
    return Message(payload[10:26], b"".join((head, payload[:8], b"\x00\x01", payload[10:])), attempts, 0)
