"""The layers between a client's socket and the codec: none at first, then those negotiated by IDENTIFY.

Layers are stacked, TLS below deflate or snappy, and do no I/O: `decode` converts received bytes to input of the codec,
`encode` converts frames to bytes to send. Every `encode` ends with a flush, so that the peer can read all of it at
once. Every `decode` returns a bounded amount: a layer that has more sets `pending`, and the caller calls `decode(b"")`
before it receives again. So a decompression bomb takes as long to read as the bytes it expands to, and the limits of
the codec end it.

Facts: NSQD-COMPAT 2.6.
"""

from collections.abc import Callable
from typing import Protocol

from gnsqd.shared.errors import NSQError

MAX_CHUNK = 256 * 1024  # bytes: a compressing layer decodes at most this much in one call


class StreamError(NSQError):
    """The peer sent invalid data for a layer; the connection is lost. The text is that of Go's packages."""


class TLSError(StreamError):
    """The handshake failed. `alert` is TLS's last message to the peer, perhaps b""; nothing else may be sent."""

    def __init__(self, text: str, alert: bytes) -> None:
        super().__init__(text)
        self.alert = alert


class Layer(Protocol):
    """One transformation of the byte stream. Neither method yields, so greenlets may share a layer as long as what they
    encode is sent in the order of encoding."""

    pending: bool  # `decode(b"")` may return more
    ended: bool  # by the peer, inside this layer: later bytes are ignored
    cut_off: str  # Go's error if no more is received, "" if the peer may stop here

    def decode(self, data: bytes) -> bytes:
        """Decodes received bytes; returns b"" when more are needed. Raises StreamError for invalid data."""

    def encode(self, data: bytes) -> bytes:
        """Encodes plain bytes so that the peer can read all of `data`."""


class TLS(Layer, Protocol):
    """The layer in `tls`, a module that only a daemon with a certificate loads: it takes time and memory."""

    established: bool
    version: str
    cipher_suite: str
    peer_common_name: str

    def handshake(self, data: bytes) -> bytes: ...
    def end(self) -> None: ...


class Stack:
    """Two layers as one: `upper` is nearer to the codec."""

    def __init__(self, lower: Layer, upper: Layer) -> None:
        self._lower = lower
        self._upper = upper
        self._note_state()

    def _note_state(self) -> None:
        self.pending = self._lower.pending or self._upper.pending
        self.ended = self._lower.ended or self._upper.ended
        self.cut_off = self._lower.cut_off or self._upper.cut_off

    def decode(self, data: bytes) -> bytes:
        plain = self._upper.decode(self._lower.decode(data))
        self._note_state()
        return plain

    def encode(self, data: bytes) -> bytes:
        return self._lower.encode(self._upper.encode(data))


class DeflateLayer:
    """Raw deflate, RFC 1951. `level` is 1 to 9 and concerns what we send; the peer chooses its own."""

    def __init__(self, level: int) -> None:
        from zlib_ng import zlib_ng  # imported late, as few need it

        # zlib-ng's level 1 has fixed codes only, 9 is slower than 8; both send more bytes than the same level of zlib.
        self._compress = zlib_ng.compressobj(min(max(level, 2), 8), zlib_ng.DEFLATED, -zlib_ng.MAX_WBITS)
        self._decompress = zlib_ng.decompressobj(-zlib_ng.MAX_WBITS)
        self._zlib_ng = zlib_ng
        self.pending = False
        self.ended = False
        self.cut_off = "unexpected EOF"

    def decode(self, data: bytes) -> bytes:
        try:
            plain = self._decompress.decompress(self._decompress.unconsumed_tail + data, MAX_CHUNK)
        except self._zlib_ng.error as error:  # type: ignore[misc]  # its stubs take the class for an instance
            raise StreamError("flate: corrupt input") from error
        self.ended = self._decompress.eof
        self.cut_off = "" if self.ended else "unexpected EOF"
        # A full chunk may leave output inside zlib-ng even when it has consumed all input.
        self.pending = len(plain) == MAX_CHUNK and not self.ended
        return plain

    def encode(self, data: bytes) -> bytes:
        if not data:
            return b""
        return self._compress.compress(data) + self._compress.flush(self._zlib_ng.Z_SYNC_FLUSH)


_SNAPPY_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_BLOCK = 65536  # uncompressed bytes in a chunk, at most
_SNAPPY_MAX_LENGTH = 4 + 32 + _SNAPPY_BLOCK + _SNAPPY_BLOCK // 6  # CRC, and a block that compresses as badly as can be
_SNAPPY_MAX_RATIO = 22  # a three-byte copy gives at most 64 bytes
_SNAPPY_CHUNK_COST = 64  # looking at a chunk takes as long as decoding about that many bytes
_SNAPPY_SMALL = 16  # bytes: a block that has no more of them does not become smaller
# All blocks are decoded into this buffer: the library refuses a block that claims a larger size, and allocates nothing.
_snappy_buffer = memoryview(bytearray(_SNAPPY_BLOCK))


class SnappyLayer:
    """Snappy's framing format, https://github.com/google/snappy/blob/main/framing_format.txt.

    The library compresses blocks; chunks and checksums are made here. The library's own functions for the format need
    whole streams, and for each they clear buffers, which takes several times as long as the blocks of a few messages.
    """

    ended = False  # the format has no end

    def __init__(self) -> None:
        import cramjam  # imported late, as few need them
        import google_crc32c

        self._cramjam = cramjam
        self._compress = cramjam.snappy.compress_raw
        self._decompress_into = cramjam.snappy.decompress_raw_into
        self._crc32c: Callable[[bytes], int] = google_crc32c.value
        self._unread = b""  # begins with a chunk's header
        self._skip = 0  # bytes still to come of a chunk that is to be skipped
        self._identified = False
        self._sent_identifier = False
        self.pending = False
        self.cut_off = ""

    def decode(self, data: bytes) -> bytes:
        chunks = self._take_chunks(data)
        parts = [plain for chunk in chunks if (plain := self._read_chunk(chunk)) is not None]
        if len(parts) == len(chunks):
            return b"".join(parts)
        try:
            # Something is wrong, and the library's error names it.
            return bytes(self._cramjam.snappy.decompress(b"".join((_SNAPPY_IDENTIFIER, *chunks))))
        except self._cramjam.DecompressionError as error:
            raise StreamError(str(error)) from error

    def _read_chunk(self, chunk: bytes) -> bytes | None:
        """Returns the data of a chunk, or None if the chunk is damaged."""
        if chunk[0] == 0xFF:
            return b"" if chunk == _SNAPPY_IDENTIFIER else None
        plain = chunk[8:]
        if chunk[0] == 0x00:
            try:
                plain = bytes(_snappy_buffer[: self._decompress_into(plain, _snappy_buffer)])
            except self._cramjam.DecompressionError:
                return None
        return plain if len(plain) <= _SNAPPY_BLOCK and chunk[4:8] == self._checksum(plain) else None

    def _checksum(self, plain: bytes) -> bytes:
        """Returns the CRC-32C of a chunk's data, masked as the format demands."""
        crc = self._crc32c(plain)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")

    def _take_chunks(self, data: bytes) -> list[bytes]:
        """Returns the next whole chunks, without padding: as many as surely decode to at most MAX_CHUNK bytes."""
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        unread = self._unread + data
        chunks = []
        size = start = 0
        self.pending = False
        while len(unread) - start >= 4:
            kind = unread[start]
            length = unread[start + 1] | unread[start + 2] << 8 | unread[start + 3] << 16
            end = start + 4 + length
            self._check_header(kind, length)
            skippable = 0x80 <= kind <= 0xFE
            if end > len(unread) and not skippable:
                break
            size += min(_SNAPPY_BLOCK, _SNAPPY_MAX_RATIO * length + _SNAPPY_CHUNK_COST)
            if size > MAX_CHUNK:
                self.pending = True
                break
            if skippable:
                self._skip = max(0, end - len(unread))
            else:
                chunks.append(unread[start:end])
            start = end
        self._unread = unread[start:]
        self.cut_off = "snappy: corrupt input" if self._unread or self._skip else ""
        return chunks

    def _check_header(self, kind: int, length: int) -> None:
        """Refuses an invalid chunk before the rest of it has arrived."""
        if not self._identified and kind != 0xFF:
            raise StreamError("snappy: corrupt input (no stream identifier)")
        self._identified = True
        if 0x02 <= kind <= 0x7F:
            raise StreamError(f"snappy: unsupported input (chunk type {kind})")
        if length > _SNAPPY_MAX_LENGTH and not 0x80 <= kind <= 0xFE:
            raise StreamError(f"snappy: unsupported input (chunk length {length})")

    def encode(self, data: bytes) -> bytes:
        if not data:
            return b""
        chunks = [] if self._sent_identifier else [_SNAPPY_IDENTIFIER]
        self._sent_identifier = True
        for start in range(0, len(data), _SNAPPY_BLOCK):
            plain = data[start : start + _SNAPPY_BLOCK]
            kind, block = 0x01, plain
            if len(plain) > _SNAPPY_SMALL:
                compressed = bytes(self._compress(plain))
                if len(compressed) < len(plain) - len(plain) // 8:  # as Go's package decides
                    kind, block = 0x00, compressed
            chunks += (len(block) + 4 << 8 | kind).to_bytes(4, "little"), self._checksum(plain), block
        return b"".join(chunks)
