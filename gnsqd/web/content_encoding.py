"""Decodes request bodies that have a Content-Encoding (RFC 9110, section 8.4): gzip, deflate or zstd, or several of
them, in the order in which they were applied.

The output is limited while it is produced, so a bomb takes no more memory and time than the largest plain body. Large
bodies are decoded one after the other: many small bombs that arrive at once are not large at once. A body that may
yield is decoded without them first, up to SMALL, so that no small one waits. A gzip body may have several members, and
a Zstandard body several frames; anything else after the end is an error.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from io import BytesIO
from sys import maxsize
from typing import Any, NamedTuple

from gevent.lock import Semaphore
from zlib_ng import zlib_ng  # inflates 1.5 times as fast as zlib

from gnsqd.hub.cooperative import Turns, WouldYield, stand_in_line
from gnsqd.shared.errors import NSQError
from gnsqd.web.http11 import Request

MAX_CODINGS = 4  # of one body
MAX_MEMBERS = 1000  # of one gzip body: each takes 10 to 100 us, also if it is empty
MAX_FRAMES = 100  # of one Zstandard body: these take two to three times as long
_INPUT = 16384  # bytes that are given to a decompressor at a time: it copies what follows a member
_PIECE = 65536  # bytes of output
_WINDOW_LOG = 23  # of Zstandard: 8 MB, the most that RFC 9659 permits


class DecodingBudget(NamedTuple):
    """The bytes of input and of output, and the members, beyond which a body has to be decoded otherwise."""

    input: int
    output: int
    members: int


ON_HUB = DecodingBudget(4096, _PIECE, 1)
SMALL = DecodingBudget(65536, 4 * _PIECE, 100)
_LARGE = DecodingBudget(maxsize, maxsize, maxsize)


class Undecodable(NSQError):
    """The answer to a body that cannot be decoded: status and code."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


@cache
def _load_zstd() -> Any:
    try:
        from compression import zstd  # type: ignore[import-not-found]  # from Python 3.14 on
    except ImportError:
        from backports import zstd
    return partial(zstd.ZstdDecompressor, options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})


# `deflate` is the format of zlib, RFC 1950. Bare RFC 1951, which some clients send, has neither a mark nor a checksum.
_DECOMPRESSORS: dict[str, tuple[Callable[[], Any], int]] = {  # of one member, and the most members
    "gzip": (lambda: zlib_ng.decompressobj(zlib_ng.MAX_WBITS | 16), MAX_MEMBERS),
    "deflate": (zlib_ng.decompressobj, 1),
    "zstd": (lambda: _load_zstd()(), MAX_FRAMES),
}
_ALIASES = {"x-gzip": "gzip"}
_NONE = ("", "identity", "utf-8")  # the last one is a charset, which some clients name here
_DECODING = Semaphore()  # of large bodies


def decode(request: Request, accepted: Sequence[str]) -> None:
    """Replaces the body by the decoded one; one that is longer than the limit makes the request `too_big`. Raises
    Undecodable, also for codings that are not `accepted`. May yield if the request does, else raises WouldYield."""
    words = request.headers[b"content-encoding"].decode("latin-1").lower().split(",")
    codings = [_ALIASES.get(word, word) for word in map(str.strip, words) if word not in _NONE]
    if len(codings) > MAX_CODINGS or not set(codings) <= set(accepted):
        raise Undecodable(415, "UNSUPPORTED_ENCODING")
    body = None
    try:
        body = _decode(request, codings, SMALL if request.may_yield else ON_HUB)
    except WouldYield:
        if not request.may_yield:
            raise
    if body is None:  # here, as the error keeps what was decoded
        with _DECODING:
            body = _decode(request, codings, _LARGE)
    request.body = body
    request.announced |= request.too_big  # so that no part of it is looked at
    request.encoded = False


def _decode(request: Request, codings: list[str], budget: DecodingBudget) -> bytes:
    body = request.body
    for coding in reversed(codings):
        if not request.too_big:
            body = _decompress(request, body, budget, *_DECOMPRESSORS[coding])
    return body


def _decompress(request: Request, data: bytes, budget: DecodingBudget, new: Callable[[], Any], most: int) -> bytes:
    turns = Turns(wait=stand_in_line)
    decoded = BytesIO()  # its value is not a copy
    start = members = 0
    while start < len(data):
        members += 1
        if members > most:
            reason = f": more than {most} members or frames" if most > 1 else ""
            raise Undecodable(400, f"INVALID_ENCODING{reason}")
        decompressor = new()
        piece = unread = b""
        while not decompressor.eof:
            if len(data) > budget.input or decoded.tell() > budget.output or members > budget.members:
                raise WouldYield
            if not unread and len(piece) < _PIECE:
                unread = data[start : start + _INPUT]
                start += len(unread)
                if not unread:
                    raise Undecodable(400, "INVALID_ENCODING")  # cut off
            try:
                piece = decompressor.decompress(unread, _PIECE)
            except Exception as error:  # zlib_ng and zstd have no common one
                raise Undecodable(400, "INVALID_ENCODING") from error
            unread = getattr(decompressor, "unconsumed_tail", b"")  # zstd keeps it
            decoded.write(piece)
            if decoded.tell() > request.limit:
                request.too_big = True
                return b""
            if request.may_yield:
                turns.give()
        start -= len(decompressor.unused_data)
    return decoded.getvalue()
