"""Reads files and standard input incrementally and splits them into lines. At most one line is kept in memory."""

import os
import sys
import zlib
from collections.abc import Iterable, Iterator

from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.output import Advance
from nsqadmin_cli.text import plural

STDIN = "-"
_PIECE = 1 << 20  # bytes read, or unpacked, at once
_GZIP = b"\x1f\x8b"


class InputError(AdminError):
    """A file cannot be read, or its content is invalid."""


def size_of(path: str) -> int | None:
    """The number of bytes to read; None if unknown, as for a pipe."""
    try:
        return (os.path.getsize(path) if path != STDIN else 0) or None
    except OSError:
        return None


def read_pieces(path: str) -> Iterator[bytes]:
    """The content of a file, or of standard input for `-`, as it arrives. InputError."""
    try:
        descriptor = sys.stdin.fileno() if path == STDIN else os.open(path, os.O_RDONLY)
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"cannot read {name_of(path)}: {_reason(error)}") from None
    try:
        while data := os.read(descriptor, _PIECE):
            yield data
    except OSError as error:
        raise InputError(f"cannot read {name_of(path)}: {_reason(error)}") from None
    finally:
        if path != STDIN:
            os.close(descriptor)


def spread(advance: Advance, size: int, count: int) -> Advance:
    """A function to call with the number of parts done, of `count`; it advances by `size` in total."""
    done = 0

    def part(more: int) -> None:
        nonlocal done
        before = size * done // count
        done += more
        advance(size * done // count - before)

    return part


def unpack(pieces: Iterable[bytes], path: str) -> Iterator[tuple[bytes, int]]:
    """`pieces`, decompressed if they begin like a gzip file, each with its size in bytes of the file. InputError."""
    unpacker = None
    first = True
    whole = True
    for piece in pieces:
        if first:
            first = False
            if piece.startswith(_GZIP):
                unpacker = zlib.decompressobj(31)
        if unpacker is None:
            yield piece, len(piece)
            continue
        taken = 0
        while piece:
            if unpacker.eof:  # another archive follows, as gzip allows
                unpacker = zlib.decompressobj(31)
            try:
                data = unpacker.decompress(piece, _PIECE)
            except zlib.error:
                raise InputError(f"{name_of(path)} is damaged and cannot be decompressed further") from None
            rest = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            taken += len(piece) - len(rest)
            piece = rest
            whole = unpacker.eof
            if data:
                yield data, taken
                taken = 0
    if not whole:
        raise InputError(f"{name_of(path)} is truncated")


class Splitter:
    """Splits its input at each `delimiter`, a single byte; InputError for more than `longest` bytes without one."""

    def __init__(self, delimiter: bytes, longest: int, path: str) -> None:
        self._delimiter = delimiter
        self._longest = longest
        self._path = path
        self._pieces: list[bytes] = []
        self._size = 0
        self.count = 0  # parts that are whole

    def feed(self, data: bytes) -> list[bytes]:
        """The complete parts, without their delimiters; also empty ones."""
        last = data.rfind(self._delimiter)
        if last < 0:
            self._hold(data)
            return []
        parts = b"".join([*self._pieces, data[:last]]).split(self._delimiter)
        self.count += len(parts)
        self._pieces, self._size = [], 0
        self._hold(data[last + 1 :])
        return parts

    def rest(self) -> bytes:
        """The rest behind the last delimiter."""
        return b"".join(self._pieces)

    def _hold(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._longest:
            where = f"line {self.count + 1:,} of {name_of(self._path)}"
            raise InputError(f"{where} is longer than {plural(self._longest, 'byte')}")
        if data:
            self._pieces.append(data)


def name_of(path: str) -> str:
    return "standard input" if path == STDIN else path


def _reason(error: BaseException) -> str:
    return ((error.strerror if isinstance(error, OSError) else None) or "it is closed").lower()
