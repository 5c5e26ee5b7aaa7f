"""The bytes of protocol V2, without any I/O (NSQD-COMPAT sections 2.1 and 2.4).

`feed` the decoder with what arrives, in whatever pieces. `next_command` returns a command as soon as its line is in,
because the real daemon refuses some lines before the body is there; `complete` then waits for what follows the line,
and refuses sizes that break the limits of the command before the bytes arrive. Incomplete bytes are kept in pieces and
joined once: a large body that arrives in many segments costs no more than its length.

Compiled, the locals called `data` are pointers into the buffer: they are indexed and sliced, and nothing else.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any

from gnsqd.shared.errors import NSQError
from gnsqd.shared.protocol import FIN_LENGTH, FRAME_TYPE_ERROR

MAX_LINE = 16384  # with the line feed
MESSAGE_ID_LENGTH = 16
UNKNOWN = b" "  # the key of the row for all other words

_NO_BODIES: list[bytes] = []
_FRAME_HEAD = Struct(">ii")
_MAX_FINS = 512 * FIN_LENGTH  # bytes of FINs that are executed together
_MAX_PUBS = 65536  # bytes of PUBs that are published together
_MAX_REPEATED = 128  # bytes of a line that is kept


class LineTooLong(NSQError):
    """A command line has more than 16384 bytes."""


class ClientError(NSQError):
    """A command is refused: `frame` is an error frame with `code text`, and the connection ends if `fatal`. Frequent
    errors that are not the client's fault are `quiet` in the log."""

    def __init__(
        self, code: str, text: str | bytes, cause: Exception | None = None, *, fatal: bool = True, quiet: bool = False
    ) -> None:
        raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
        data = code.encode() + b" " + raw
        self.code = code
        self.frame = frame(FRAME_TYPE_ERROR, data)
        self.cause = cause
        self.fatal = fatal
        self.quiet = quiet
        super().__init__(data.decode("utf-8", "backslashreplace"))


def frame(frame_type: int, data: bytes) -> bytes:
    """Returns int32 size, int32 type, data."""
    return _FRAME_HEAD.pack(4 + len(data), frame_type) + data


class CommandSpec:
    """One row of the table of commands. `handler` executes the command, and is None if it publishes; `check` refuses
    what is wrong before the body is there. Both are called with the owner of the handlers, the client and the command.
    With `limits`, int32 size and a body of that size follow the line: `code` is that of a refused size, which must not
    exceed any of the limits. With a `message_limit`, the body is int32 count, and for each message int32 size and body.
    What an `after_commit` command does can't be undone, so a publish before it that can't be kept is refused first."""

    def __init__(
        self,
        name: str,
        handler: Callable[..., bytes | None] | None,
        code: str = "",
        limits: tuple[int, ...] = (),
        message_limit: int | None = None,
        check: Callable[[Any, Any, Any], None] | None = None,
        after_commit: bool = False,
    ) -> None:
        self.name = name
        self.handler = handler
        self.code = code
        self.limits = limits
        self.limit = min(*limits, 2**31 - 1) if limits else 0
        self.has_messages = message_limit is not None
        self.message_limit = message_limit or 0
        self.check = check
        self.publishes = handler is None
        self.after_commit = after_commit

    def refusal(self, text: str, cause: Exception | None = None) -> ClientError:
        """Returns the refusal of what follows the line; {} in `text` stands for what that is."""
        noun = "message body" if self.code == "E_BAD_MESSAGE" else "body"
        return ClientError(self.code, f"{self.name} {text.format(noun)}", cause)

    def bad_size(self, size: int) -> ClientError:
        """Returns the refusal of a size that is not between 1 and the limits."""
        if size <= 0:
            return self.refusal(f"invalid {{}} size {size}")
        limit = next(limit for limit in self.limits if size > limit)
        noun = "message" if self.code == "E_BAD_MESSAGE" else "body"
        return ClientError(self.code, f"{self.name} {noun} too big {size} > {limit}")


class Command:
    """One command from its line on: `params[0]` is its name, and `spec` its row in the table. `size` is 0 and `bodies`
    is empty until they have arrived. Its check and its handler fill in the rest."""

    params: list[bytes]
    spec: CommandSpec
    size: int
    bodies: list[bytes]
    checked: bool
    may_yield: bool  # IOLoop executes it
    topic_name: str  # "" until the line is checked, and that of the last command if it had the same line
    deferred: int  # ns
    topic: Any  # that it has published to, and that is to be committed
    counter: Any  # of what the client has published to the topic; None before the first time
    upgrade: tuple[Any, Any, str] | None  # TLS, compression and its name in the log, if IDENTIFY has agreed on them


def _int32(buffer: bytes, at: int) -> int:
    data = buffer
    size = data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]
    return size - (1 << 32) if size >= 1 << 31 else size


class Decoder:
    """Decodes what one client sends. `table` has the row of each command; it may be replaced after `take_rest`."""

    def __init__(self, table: dict[bytes, CommandSpec]) -> None:
        self.table = table
        self._buffer = b""
        self._position = 0
        self._length = 0
        self._pieces: list[bytes] = []
        self._pieces_length = 0
        self._count = -1
        self._bodies: list[bytes] = []
        self._total = 0
        self._end: Exception | None = None
        self._repeated: Command | None = None  # the last publish, which often has the same line as the next
        self._line = b""  # that of `_repeated`, with its end

    def feed(self, data: bytes) -> None:
        if self._position == self._length and not self._pieces:
            self._buffer = data
            self._position = 0
            self._length = len(data)
        else:
            self._pieces.append(data)
            self._pieces_length += len(data)

    def end(self, cause: str = "") -> None:
        """Notes that no more bytes come, by default because the client has closed the connection."""
        # Not the error itself: with its traceback it would form a cycle with all that the connection had.
        self._end = NSQError(cause or ("unexpected EOF" if self.buffered else "EOF"))

    @property
    def buffered(self) -> int:
        """The number of bytes that are not decoded yet."""
        return self._length - self._position + self._pieces_length

    def take_rest(self) -> bytes:
        """Removes and returns all bytes not decoded yet: after an upgrade they belong to the upgraded stream."""
        self._repeated = None
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
        """True if the next `count` bytes are there; then they are contiguous in the buffer."""
        if self._length - self._position >= count:
            return True
        if self.buffered < count:
            return False
        self._join()
        return True

    def magic(self) -> bytes | None:
        """Returns the first four bytes of a connection, or None until they are there."""
        if not self._has(4):
            return None
        start = self._position
        self._position = start + 4
        data = self._buffer
        return data[start : start + 4]

    def next_fins(self) -> bytes:
        """Removes and returns the FINs of the usual form that come next, which takes no parsing."""
        data = self._buffer
        start = end = self._position
        last = min(self._length, start + _MAX_FINS) - FIN_LENGTH
        while end <= last:
            # The bytes of FIN, a space, and a line feed: compiled, numbers are compared in C.
            if data[end] != 70 or data[end + 1] != 73 or data[end + 2] != 78 or data[end + 3] != 32:
                break
            if data[end + 20] != 10:
                break
            end += FIN_LENGTH
        self._position = end
        return data[start:end]

    def put_back(self, size: int) -> None:
        """Takes back the last `size` bytes that `next_fins` returned: `next_command` returns these FINs."""
        self._position -= size

    def add_repeated(self, command: Command, most: int) -> None:
        """Removes the next commands that have the same line as `command`, and adds their bodies to its own, `most` in
        all. Stops at a command that is not complete, or is refused for its size. `command` is complete, and repeats
        the line of the command before it."""
        data = self._buffer
        start = self._position
        last = min(self._length, start + _MAX_PUBS - command.size)  # a large command gets no other body
        bodies = command.bodies
        while len(bodies) < most and self._buffer.startswith(self._line, start):
            at = start + len(self._line) + 4
            if at > last:
                break
            size = data[at - 4] << 24 | data[at - 3] << 16 | data[at - 2] << 8 | data[at - 1]
            if not 0 < size <= command.spec.limit or at + size > last:
                break
            start = at + size
            bodies.append(data[at:start])
        self._position = start

    def next_command(self) -> Command | None:
        """Returns the next command, without what follows its line, or None until the line is in. It is valid until the
        next call. Raises LineTooLong."""
        command = self._repeated
        if command is not None:
            command.bodies = _NO_BODIES
            command.topic = None
        start = self._position
        if start == self._length and not self._pieces:
            self._buffer = b""
            self._position = self._length = 0
            return None
        if command is not None and self._buffer.startswith(self._line, start):
            self._position = start + len(self._line)
            command.checked = command.spec.check is None  # then the line alone is checked
        else:
            command = self._new_command()
            if command is None:
                return None
        command.size = 0
        command.may_yield = False
        return command

    def _new_command(self) -> Command | None:
        """Returns the command of the next line; errors and None as `next_command`."""
        end = self._buffer.find(b"\n", self._position)
        if end < 0 and self._pieces:
            self._join()
            end = self._buffer.find(b"\n", self._position)
        start = self._position
        if (self._length if end < 0 else end) - start >= MAX_LINE:
            raise LineTooLong("bufio: buffer full")
        if end < 0:
            return None
        self._position = end + 1
        data = self._buffer
        if end > start and data[end - 1] == 13:
            end -= 1
        line: bytes = data[start:end]
        command = Command.__new__(Command)
        command.params = params = line.split(b" ")
        spec = self.table.get(params[0]) or self.table[UNKNOWN]
        command.spec = spec
        command.bodies = _NO_BODIES
        command.topic_name = ""
        command.checked = False
        command.topic = command.upgrade = command.counter = None
        if spec.publishes and end - start <= _MAX_REPEATED:
            self._repeated = command
            self._line = data[start : self._position]
        return command

    def complete(self, command: Command) -> bool:
        """Returns True once `command` has what follows its line. Raises ClientError for a bad size, or after `end`."""
        spec = command.spec
        if not spec.limits or command.bodies:
            return True
        size = command.size
        if not size:
            if self._length - self._position < 4 and not self._has(4):
                return self._wait(command)
            start = self._position
            data = self._buffer
            size = data[start] << 24 | data[start + 1] << 16 | data[start + 2] << 8 | data[start + 3]
            if not 0 < size <= spec.limit:
                raise spec.bad_size(_int32(self._buffer, start))
            command.size = size
            self._position = start + 4
        if spec.has_messages:
            bodies = self.messages(spec.limit, spec.message_limit)
            if bodies is None:
                return self._wait(command)
            command.bodies = bodies
        elif self._length - self._position >= size or self._has(size):
            start = self._position
            end = start + size
            self._position = end
            data = self._buffer
            command.bodies = [data[start:end]]
        else:
            return self._wait(command)
        return True

    def _wait(self, command: Command) -> bool:
        """Returns False, as `command` lacks bytes; raises ClientError if they do not come any more."""
        spec = command.spec
        if self._end is None:
            return False
        if command.size and spec.has_messages:
            raise self.messages_cut_off()
        raise spec.refusal("failed to read {}" if command.size else "failed to read {} size", self._end)

    def messages(self, max_body_size: int, max_msg_size: int) -> list[bytes] | None:
        """Returns the bodies of an MPUB, from the count on, or None until they are there; raises ClientError as soon as
        they can't be right. The inner sizes decide where it ends, as in the real daemon; but their sum is bounded."""
        if self._count < 0:
            if not self._has(4):
                return None
            count = _int32(self._buffer, self._position)
            self._position += 4
            if count <= 0 or count > (max_body_size - 4) // 5:
                raise ClientError("E_BAD_BODY", f"MPUB invalid message count {count}")
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
        """True if the next message of an MPUB is there, then contiguous in the buffer; raises ClientError for a bad
        size."""
        if not self._has(4):
            return False
        size = _int32(self._buffer, self._position)
        if size <= 0:
            raise ClientError("E_BAD_MESSAGE", f"MPUB invalid message({len(self._bodies)}) body size {size}")
        if size > max_msg_size:
            raise ClientError("E_BAD_MESSAGE", f"MPUB message too big {size} > {max_msg_size}")
        if self._total + size > max_body_size:
            raise ClientError("E_BAD_BODY", f"MPUB body too big {self._total + size} > {max_body_size}")
        return self._has(4 + size)

    def messages_cut_off(self) -> ClientError:
        """Returns the refusal if no more bytes come where `messages` needs some."""
        if self._count < 0:
            return ClientError("E_BAD_BODY", "MPUB failed to read message count", self._end)
        lacking = f"message({len(self._bodies)}) body size" if self.buffered < 4 else "message body"
        return ClientError("E_BAD_MESSAGE", f"MPUB failed to read {lacking}", self._end)
