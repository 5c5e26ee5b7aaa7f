"""Files of messages: one JSON document per line (`MessageRow.document`), compressed with gzip if the name ends in .gz.

When `ArchiveWriter.write` returns, the messages are on disk and may be finished in their queue. If writing fails or is
interrupted, the file is truncated to its last whole line, and remains valid.

Files and standard input are read incrementally; at most one line is kept in memory.
"""

import json
import os
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any, BinaryIO, NamedTuple

from gnsqd.shared.errors import reason_of
from gnsqd.shared.names import is_valid_name
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.message import MessageRow, body_of
from nsqadmin_cli.output import standard_output
from nsqadmin_cli.units import plural

DASH = "-"  # input or output, as a path
_PIECE = 1 << 20  # bytes read, or unpacked, at once
_GZIP = b"\x1f\x8b"


class InputError(AdminError):
    """A file cannot be read, or its content is invalid."""


def size_of(path: str) -> int | None:
    """Returns the number of bytes to read; None if unknown, as for a pipe."""
    try:
        return (os.path.getsize(path) if path != DASH else 0) or None
    except OSError:
        return None


def read_pieces(path: str) -> Iterator[bytes]:
    """Yields the content of a file, or of standard input for `-`, as it arrives; raises InputError."""
    descriptor = -1
    try:
        descriptor = sys.stdin.fileno() if path == DASH else os.open(path, os.O_RDONLY)
        while data := os.read(descriptor, _PIECE):
            yield data
    except (OSError, ValueError, AttributeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "it is closed"
        raise InputError(f"cannot read {name_of(path)}: {reason.lower()}") from None
    finally:
        if path != DASH and descriptor >= 0:
            os.close(descriptor)


def unpack(pieces: Iterable[bytes], path: str) -> Iterator[tuple[bytes, int]]:
    """Yields `pieces`, unpacked if they begin like gzip, each with its size in bytes of the file; raises InputError."""
    unpacker = None
    for number, piece in enumerate(pieces):
        if number == 0 and piece.startswith(_GZIP):
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
            if data:
                yield data, taken
                taken = 0
    if unpacker is not None and not unpacker.eof:
        raise InputError(f"{name_of(path)} is truncated")


def split(
    pieces: Iterable[tuple[bytes, int]], delimiter: bytes, longest: int, path: str
) -> Iterator[tuple[list[bytes], int]]:
    """Yields the parts between delimiters, also empty ones, that each piece completes, with the number beside it,
    and at the end what follows the last delimiter. Raises InputError for more than `longest` bytes without one."""
    held: list[bytes] = []
    count = size = 0
    for piece, number in pieces:
        *parts, last = piece.split(delimiter)
        if parts:
            parts[0] = b"".join([*held, parts[0]])
            held, size = [], 0
            count += len(parts)
        held.append(last)
        size += len(last)
        if size > longest:
            raise InputError(f"line {count + 1:,} of {name_of(path)} is longer than {plural(longest, 'byte')}")
        yield parts, number
    yield [b"".join(held)], 0


def name_of(path: str) -> str:
    return "standard input" if path == DASH else path


LONGEST_LINE = 256 * 1024 * 1024  # bytes
_BEGINNING = b'{"topic": "'  # of each line that is written here


class ArchiveWriter(AbstractContextManager["ArchiveWriter"]):
    """Writes to `path`, or to standard output for `-`; `with` closes it. `append`: to an existing file."""

    def __init__(self, path: str, *, append: bool = False) -> None:
        self.path = path
        self.messages = 0
        self._packer = zlib.compressobj(wbits=31) if path.endswith(".gz") else None
        self._whole = True  # nothing was written in part
        self._safe = 0  # bytes of the file that are whole lines on disk
        self._regular = False
        self._new = False
        try:
            self._file = standard_output().buffer if path == DASH else self._open(append)
        except FileExistsError:
            raise AdminError(f"{path} already exists; --append adds to it") from None
        except OSError as error:
            raise AdminError(f"cannot write {path}: {reason_of(error)}") from None

    def _open(self, append: bool) -> BinaryIO:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            self._regular = self._new = True
            return open(self.path, "xb", buffering=0)
        if not stat.S_ISREG(status.st_mode):
            return open(self.path, "wb", buffering=0)
        if not append:
            raise FileExistsError
        self._regular = True
        self._safe = self._whole_size(status.st_size)
        file = open(self.path, "r+b", buffering=0)  # noqa: SIM115
        file.truncate(self._safe)
        file.seek(self._safe)
        return file

    def _whole_size(self, size: int) -> int:
        """Returns where to append in a file of `size` bytes; raises AdminError if the result could not be read."""
        with open(self.path, "rb") as file:
            packed = file.read(2) == _GZIP
            if size and packed != (self._packer is not None):
                raise AdminError(f"{self.path} is {'' if packed else 'not '}compressed, which contradicts its name")
            if packed:
                try:
                    for _ in unpack(read_pieces(self.path), self.path):
                        pass
                except InputError as error:
                    raise AdminError(f"{error}; save to another file") from None
                return size
            begin = size
            while begin:
                end, begin = begin, max(0, begin - _PIECE)
                file.seek(begin)
                if (last := file.read(end - begin).rfind(b"\n")) >= 0:
                    begin += last + 1
                    break
            file.seek(begin)
            # A partial line of a killed run was not finished, and is delivered again.
            if not file.read(len(_BEGINNING)).startswith(_BEGINNING[: size - begin]):
                raise AdminError(f"{self.path} ends in the middle of a line; save to another file")
            return begin

    def write(self, messages: Iterable[MessageRow]) -> None:
        """Appends a line for each, durably; raises AdminError."""
        lines = [json.dumps(message.document()) for message in messages]
        data = "".join(f"{line}\n" for line in lines).encode()
        packer = self._packer and self._packer.copy()  # if writing fails, the file ends behind what was packed before
        self._put(packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH) if packer else data)
        self._packer = packer
        self.messages += len(lines)

    def _put(self, data: bytes) -> None:
        self._whole = False
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
            self._file.flush()
            if self._regular:
                os.fsync(self._file.fileno())
                self._safe += len(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise AdminError(f"cannot write {self.path}: {reason_of(error)}") from None
        self._whole = True

    def __exit__(self, kind: object, *error: object) -> None:
        try:
            self._cut()
            if self._packer is not None and self._whole and self.messages:
                with suppress(*((AdminError,) if kind else ())):  # that it is full has been reported
                    self._put(self._packer.flush())
        finally:
            if self.path != DASH:
                self._cut()
                self._file.close()
            if self._new and not self._safe:
                with suppress(OSError):
                    os.unlink(self.path)

    def _cut(self) -> None:
        if self._regular and not self._whole:
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), self._safe)
                self._file.seek(self._safe)
                self._whole = True


class ArchivedLine(NamedTuple):
    number: int
    topic: str
    body: bytes


def read_archive(path: str, *, start: int = 1) -> Iterator[tuple[list[ArchivedLine], int]]:
    """Yields the messages of a file from line `start` on, in pieces as they are read, each with its size in bytes of
    the file. Raises InputError at the first invalid line, after all before it."""
    number = 0
    for texts, size in split(unpack(read_pieces(path), path), b"\n", LONGEST_LINE, path):
        lines, failure = [], None
        for text in texts:
            number += 1
            if number < start or not text.strip():
                continue
            try:
                lines.append(ArchivedLine(number, *_parse(text, f"line {number:,} of {name_of(path)}")))
            except InputError as error:
                failure = error
                break
        yield lines, size
        if failure is not None:
            raise failure


def _parse(text: bytes, where: str) -> tuple[str, bytes]:
    """Returns topic and body; raises InputError that names the line `where` it is."""
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{where} is not JSON") from None
    if not isinstance(document, dict):
        raise InputError(f"{where} is not a JSON object")
    topic = document.get("topic")
    if topic is not None and not (isinstance(topic, str) and is_valid_name(topic)):
        raise InputError(f'{where}: "topic" is not a valid topic name')
    try:
        body = body_of(document)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    if not body:
        raise InputError(f"{where}: its body is empty, which NSQ does not accept")
    return topic or "", body
