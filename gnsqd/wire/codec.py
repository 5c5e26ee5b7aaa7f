"""The bytes of protocol V2, without any I/O (NSQD-COMPAT sections 2.1 and 2.4).

A client sends `  V2` and then commands: a line of words, for some of them followed by an int32 size and that many
bytes. `feed` the decoder with what arrives, in whatever pieces, and ask it for the next command; None means that more
bytes are needed first. The real daemon answers some mistakes before the body is there, so a command comes out as soon
as its line is in, with its size and body if they came along, else None; `size`, `body` and `messages` give the rest.

Incomplete bytes are kept in pieces and joined once: a large body that arrives in many segments costs no more than its
length.

Compiled, the locals called `data` are pointers into the buffer: they are indexed and sliced, and nothing else.
"""

from enum import Enum
from struct import Struct

from gnsqd.shared.errors import NSQError
from gnsqd.shared.protocol import FRAME_TYPE_ERROR

MAX_LINE = 16384  # with the line feed
MESSAGE_ID_LENGTH = 16

_FRAME_HEAD = Struct(">ii")


class Tail(Enum):
    """What follows a command's line."""

    NOTHING = 0
    BODY = 1  # int32 size, body
    MESSAGES = 2  # int32 size, int32 count, count x { int32 size, body }


# Every command of the protocol; HANDLERS in `commands` has the same keys.
GRAMMAR: dict[bytes, Tail] = {
    b"IDENTIFY": Tail.BODY,
    b"AUTH": Tail.BODY,
    b"SUB": Tail.NOTHING,
    b"PUB": Tail.BODY,
    b"MPUB": Tail.MESSAGES,
    b"DPUB": Tail.BODY,
    b"RDY": Tail.NOTHING,
    b"FIN": Tail.NOTHING,
    b"REQ": Tail.NOTHING,
    b"TOUCH": Tail.NOTHING,
    b"NOP": Tail.NOTHING,
    b"CLS": Tail.NOTHING,
}

_FIN = b"FIN "
_FIN_LENGTH = len(_FIN) + MESSAGE_ID_LENGTH + 1
_FIN_COLUMNS = ((_FIN_LENGTH - 1, b"\n"), (0, b"F"), (1, b"I"), (2, b"N"), (3, b" "))
_MAX_RUN = 512

_HAS_SIZE = {name for name, tail in GRAMMAR.items() if tail is not Tail.NOTHING}
_HAS_BODY = {name for name, tail in GRAMMAR.items() if tail is Tail.BODY}


class CodecError(NSQError):
    """Invalid bytes: `code` is the E_ code, `reason` the text that follows the command's name."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason


class LineTooLong(NSQError):
    """A command line of more than 16384 bytes."""


class ClientError(NSQError):
    """A command is refused: `frame` is an error frame with `code text`, and the connection ends if `fatal`. Frequent
    errors that are not the client's fault are `quiet` in the log."""

    def __init__(
        self, code: str, text: str | bytes, cause: Exception | None = None, *, fatal: bool = True, quiet: bool = False
    ) -> None:
        raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
        data = code.encode() + b" " + raw
        self.frame = frame(FRAME_TYPE_ERROR, data)
        self.cause = cause
        self.fatal = fatal
        self.quiet = quiet
        super().__init__(data.decode("utf-8", "backslashreplace"))


class CutOff(NSQError):
    """The stream ended, or broke, where a command needed it."""


def frame(frame_type: int, data: bytes) -> bytes:
    """int32 size, int32 type, data."""
    return _FRAME_HEAD.pack(4 + len(data), frame_type) + data


class Command:
    """One command: `params[0]` is its name; `size` and `body` are None while they haven't arrived."""

    __slots__ = ("body", "params", "size")

    params: list[bytes]
    size: int | None
    body: bytes | None


def _int32(buffer: bytes, at: int) -> int:
    data = buffer
    size = data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]
    return size - (1 << 32) if size >= 1 << 31 else size


class Decoder:
    """One direction of one connection, from the client to the daemon."""

    __slots__ = ("_bodies", "_buffer", "_count", "_length", "_pieces", "_pieces_length", "_position", "_total")

    def __init__(self) -> None:
        self._buffer = b""
        self._position = 0
        self._length = 0
        self._pieces: list[bytes] = []
        self._pieces_length = 0
        self._count = -1
        self._bodies: list[bytes] = []
        self._total = 0

    def feed(self, data: bytes) -> None:
        """Add what was received."""
        if self._position == self._length and not self._pieces:
            self._buffer = data
            self._position = 0
            self._length = len(data)
        else:
            self._pieces.append(data)
            self._pieces_length += len(data)

    @property
    def buffered(self) -> int:
        """The number of bytes to be decoded."""
        return self._length - self._position + self._pieces_length

    def take_rest(self) -> bytes:
        """All bytes not decoded yet: after an upgrade they belong to the upgraded stream."""
        self._join()
        rest = self._buffer[self._position :]
        self._buffer = b""
        self._position = self._length = 0
        return rest

    def _join(self) -> None:
        if self._pieces:
            self._pieces.insert(0, self._buffer[self._position :])
            self._buffer = b"".join(self._pieces)
            self._position = 0
            self._length = len(self._buffer)
            self._pieces.clear()
            self._pieces_length = 0

    def _has(self, count: int) -> bool:
        """Whether the next `count` bytes are there, and then contiguous in the buffer."""
        if self._length - self._position >= count:
            return True
        if self.buffered < count:
            return False
        self._join()
        return True

    def magic(self) -> bytes | None:
        """The first four bytes of a connection."""
        return self._take(4)

    def _take(self, count: int) -> bytes | None:
        if not self._has(count):
            return None
        start = self._position
        self._position = start + count
        data = self._buffer
        return data[start : start + count]

    def finished_ids(self) -> list[bytes]:
        """The message ids of the FINs that are next, as far as they have the usual form, which takes no parsing."""
        buffer = data = self._buffer
        start = self._position
        if not buffer.startswith(_FIN, start):
            return []
        count = min((self._length - start) // _FIN_LENGTH, _MAX_RUN)
        # One column after the other: what all lines have at the same place is looked at in one go.
        for place, character in _FIN_COLUMNS:
            column = buffer[start + place : start + count * _FIN_LENGTH : _FIN_LENGTH]
            count -= len(column.lstrip(character))
        end = start + count * _FIN_LENGTH
        self._position = end
        return [data[at : at + 16] for at in range(start + 4, end, 21)]  # literals make it a loop in C

    def take_back(self, count: int) -> None:
        """Let the last `count` of the FINs that `finished_ids` found come as commands after all."""
        self._position -= count * _FIN_LENGTH

    def next_command(self) -> Command | None:
        """The next command; LineTooLong if there can't be one any more."""
        if self._position == self._length and not self._pieces:
            self._buffer = b""
            self._position = self._length = 0
            return None
        end = self._buffer.find(b"\n", self._position)
        if end < 0:
            if self._pieces:
                self._join()
                end = self._buffer.find(b"\n", self._position)
            if end < 0:
                if self._length - self._position >= MAX_LINE:
                    raise LineTooLong("bufio: buffer full")
                return None
        start = self._position
        if end - start >= MAX_LINE:
            raise LineTooLong("bufio: buffer full")
        self._position = end + 1
        data = self._buffer
        if end > start and data[end - 1] == 13:
            end -= 1
        line: bytes = data[start:end]
        command = Command.__new__(Command)
        command.params = line.split(b" ")
        command.size = None
        command.body = None
        name = command.params[0]
        if name in _HAS_SIZE:
            command.size = self.size()
            if command.size is not None and name in _HAS_BODY:
                known = command.size
                if 0 < known <= self._length - self._position:
                    start = self._position
                    self._position = start + known
                    data = self._buffer  # size may have joined pieces
                    command.body = data[start : start + known]
        return command

    def size(self) -> int | None:
        """The int32 that follows a command line."""
        if not self._has(4):
            return None
        start = self._position
        self._position = start + 4
        return _int32(self._buffer, start)

    def body(self, size: int) -> bytes | None:
        """The `size` bytes of a command's body."""
        return self._take(size)

    def messages(self, max_body_size: int, max_msg_size: int) -> list[bytes] | None:
        """The bodies of an MPUB, from the count on; CodecError as soon as they can't be right.

        The inner sizes decide where it ends, not the size in front, as in the real daemon; but their sum is bounded.
        """
        if self._count < 0:
            count = self.size()
            if count is None:
                return None
            if count <= 0 or count > (max_body_size - 4) // 5:
                raise CodecError("E_BAD_BODY", f"invalid message count {count}")
            self._count = count
        bodies = self._bodies
        total = self._total
        data = self._buffer
        start = self._position
        while len(bodies) < self._count:
            if self._length - start >= 4:
                size = data[start] << 24 | data[start + 1] << 16 | data[start + 2] << 8 | data[start + 3]
                end = start + 4 + size
                if 0 < size <= max_msg_size and end <= self._length and total + size <= max_body_size:
                    bodies.append(data[start + 4 : end])
                    total += size
                    start = end
                    continue
            self._total = total
            self._position = start
            if not self._has_message(max_body_size, max_msg_size):
                return None
            data = self._buffer
            start = self._position
        self._position = start
        self._count = -1
        self._bodies = []
        self._total = 0
        return bodies

    def _has_message(self, max_body_size: int, max_msg_size: int) -> bool:
        """Whether the next message of an MPUB is there, and then contiguous in the buffer; CodecError for a bad one."""
        if not self._has(4):
            return False
        size = _int32(self._buffer, self._position)
        if size <= 0:
            raise CodecError("E_BAD_MESSAGE", f"invalid message({len(self._bodies)}) body size {size}")
        if size > max_msg_size:
            raise CodecError("E_BAD_MESSAGE", f"message too big {size} > {max_msg_size}")
        if self._total + size > max_body_size:
            raise CodecError("E_BAD_BODY", f"body too big {self._total + size} > {max_body_size}")
        return self._has(4 + size)

    def messages_cut_off(self) -> CodecError:
        """The error if the stream ends where `messages` needs more."""
        if self._count < 0:
            return CodecError("E_BAD_BODY", "failed to read message count")
        if self.buffered < 4:
            return CodecError("E_BAD_MESSAGE", f"failed to read message({len(self._bodies)}) body size")
        return CodecError("E_BAD_MESSAGE", "failed to read message body")
