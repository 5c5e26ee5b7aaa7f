"""The client for tests, upgraded: TLS of the standard library, zlib, and snappy's framing format by hand.

Like the client itself it uses nothing of gnsqd. It is strict where a client library is not: every snappy chunk must be
whole, checked, and no larger than the format allows, and it knows whether what the daemon sent ends with a flush.
"""

import json
import ssl
import struct
import time
import zlib
from typing import Any, Protocol, Self

import cramjam

from kit.daemons import DEADLINE, Address
from kit.nsq_client import NSQClient

TLS_VERSIONS = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}

# Fields of IDENTIFY, by what they put on.
UPGRADES: dict[str, dict[str, Any]] = {
    "none": {},
    "tls": {"tls_v1": True},
    "deflate": {"deflate": True},
    "snappy": {"snappy": True},
    "tls+deflate": {"tls_v1": True, "deflate": True},
    "tls+snappy": {"tls_v1": True, "snappy": True},
}

SNAPPY_IDENTIFIER = bytes.fromhex("ff 06 00 00 73 4e 61 50 70 59")
SNAPPY_BLOCK = 65536  # uncompressed bytes in a chunk, at most
SYNC_FLUSH = b"\0\0\xff\xff"


def tls_client_context(version: str | None = None, identity: tuple[str, str] | None = None) -> ssl.SSLContext:
    """Returns the context of a client that verifies nobody and offers `version` alone; `identity` is a key pair."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if version:
        context.set_ciphers("DEFAULT:@SECLEVEL=0")  # the old versions want it
        context.minimum_version = context.maximum_version = TLS_VERSIONS[version]
    if identity:
        context.load_cert_chain(*identity)
    return context


class Compression(Protocol):
    """Both directions of one connection."""

    @property
    def flushed(self) -> bool:
        """Nothing that came in waits for more."""

    def encode(self, data: bytes) -> bytes: ...

    def decode(self, raw: bytes) -> bytes: ...


class Deflate:
    def __init__(self, level: int = 6) -> None:
        self._compress = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._decompress = zlib.decompressobj(-zlib.MAX_WBITS)
        self._tail = SYNC_FLUSH

    @property
    def flushed(self) -> bool:
        return self._tail == SYNC_FLUSH

    def encode(self, data: bytes) -> bytes:
        return self._compress.compress(data) + self._compress.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, raw: bytes) -> bytes:
        self._tail = (self._tail + raw)[-4:]
        return self._decompress.decompress(raw)


class Snappy:
    def __init__(self) -> None:
        self._unread = b""
        self._identified = False
        self._sent_identifier = False

    @property
    def flushed(self) -> bool:
        return not self._unread

    def encode(self, data: bytes) -> bytes:
        chunks = [] if self._sent_identifier else [SNAPPY_IDENTIFIER]
        self._sent_identifier = True
        for start in range(0, len(data), SNAPPY_BLOCK):
            chunks.append(best_chunk(data[start : start + SNAPPY_BLOCK]))
        return b"".join(chunks)

    def decode(self, raw: bytes) -> bytes:
        self._unread += raw
        plain = []
        while len(self._unread) >= 4:
            end = 4 + int.from_bytes(self._unread[1:4], "little")
            if end > len(self._unread):
                break
            one, self._unread = self._unread[:end], self._unread[end:]
            if not self._identified:
                assert one == SNAPPY_IDENTIFIER, one
                self._identified = True
            else:
                plain.append(read_chunk(one))
        return b"".join(plain)


def _crc_table() -> list[int]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """Returns the CRC-32C (polynomial 0x1EDC6F41, reflected), a byte at a time."""
    crc, table = 0xFFFFFFFF, _CRC_TABLE
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def masked_checksum(plain: bytes) -> bytes:
    crc = crc32c(plain)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def chunk(kind: int, payload: bytes, plain: bytes | None = None) -> bytes:
    """Returns one chunk of the framing format; with `plain`, its masked checksum comes before the payload."""
    if plain is not None:
        payload = masked_checksum(plain) + payload
    return bytes([kind]) + len(payload).to_bytes(3, "little") + payload


def best_chunk(plain: bytes) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(plain))
    return chunk(0x00, block, plain) if len(block) < len(plain) else chunk(0x01, plain, plain)


def read_chunk(raw: bytes) -> bytes:
    """Returns what a whole chunk with data holds; AssertionError if it is another, or wrong."""
    assert raw[0] in (0x00, 0x01), raw[:4]
    plain = bytes(cramjam.snappy.decompress_raw(raw[8:])) if raw[0] == 0x00 else raw[8:]
    assert 0 < len(plain) <= SNAPPY_BLOCK
    assert raw[4:8] == masked_checksum(plain)
    return plain


class UpgradedClient(NSQClient):
    """IDENTIFY with `fields`, then every upgrade of the answer: TLS by `tls`, deflate at the level agreed, snappy.

    `answer` is the answer, `compression` None without one. What TLS refuses is an ssl.SSLError or ConnectionError.
    """

    def __init__(
        self, address: Address, tls: ssl.SSLContext | None = None, *, timeout: float = DEADLINE, **fields: object
    ) -> None:
        self.compression: Compression | None = None
        super().__init__(address, timeout=timeout)
        try:
            self.upgrade(tls, fields)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def upgrade(self, tls: ssl.SSLContext | None, fields: dict[str, Any]) -> None:
        self.answer: dict[str, Any] = json.loads(self.identify(feature_negotiation=True, **fields).data)
        if self.answer["tls_v1"]:
            assert tls is not None
            assert not self.buffer
            self.sock = tls.wrap_socket(self.sock)
            assert self.response() == b"OK"
        self.compression = self._agreed_compression()
        if self.compression is not None:
            self.buffer = self.compression.decode(self.buffer)  # the daemon may have been fast
            assert self.response() == b"OK"

    def _agreed_compression(self) -> Compression | None:
        if self.answer["snappy"]:
            return Snappy()
        return Deflate(self.answer["deflate_level"]) if self.answer["deflate"] else None

    def send(self, data: bytes) -> None:
        super().send(self.compression.encode(data) if self.compression else data)

    def _receive(self, deadline: float) -> None:
        before = len(self.buffer)
        super()._receive(deadline)
        if self.compression is not None:
            self.buffer, raw = self.buffer[:before], self.buffer[before:]
            self.buffer += self.compression.decode(raw)

    def settled(self) -> bool:
        """True if what was sent up to the last frame can be read to its last byte, and is all there is."""
        deadline = time.monotonic() + self.timeout
        while self.compression is not None and not self.compression.flushed:
            self._receive(deadline)
        return not self.buffer
