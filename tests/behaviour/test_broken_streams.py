"""Compressed streams: what snappy's framing allows, broken ones, and bombs (NSQD-COMPAT 2.6)."""

import struct
import zlib

import pytest

from kit.daemons import Instance, eventually
from kit.nsq_client import ERROR, RESPONSE, Frame, NSQClient, split_frames
from kit.observers import GoodClients, resident_bytes
from kit.traffic import DaemonFactory
from kit.upgraded_client import SNAPPY_BLOCK, SNAPPY_IDENTIFIER, UpgradedClient, best_chunk, chunk, tls_client_context


@pytest.fixture(scope="module")
def nsqd(module_factory: DaemonFactory, tls_flags: list[str]) -> Instance:
    return module_factory(*tls_flags)


def send_raw(client: NSQClient, raw: bytes) -> None:
    """Sends past the layers, as far as the daemon takes it."""
    try:
        client.sock.sendall(raw)
    except OSError:
        pass


def plain_chunk(data: bytes) -> bytes:
    return chunk(0x01, data, data)


def block(plain: bytes) -> bytes:
    raw = best_chunk(plain)
    assert raw[0] == 0x00
    return raw


PUB = b"PUB streams#ephemeral\n\0\0\0\x05abcde"
WIDE_PUB = b"PUB streams#ephemeral\n" + struct.pack(">i", SNAPPY_BLOCK - 26) + bytes(SNAPPY_BLOCK - 26)
assert len(WIDE_PUB) == SNAPPY_BLOCK

GOOD_SNAPPY = {
    "identifier-again": SNAPPY_IDENTIFIER + plain_chunk(PUB) + SNAPPY_IDENTIFIER,
    "padding": chunk(0xFE, bytes(1000)) + plain_chunk(PUB) + chunk(0xFE, b""),
    "padding-as-long-as-may-be": chunk(0xFE, bytes(76494)) + plain_chunk(PUB),
    "skippable": chunk(0x80, b"later version") + plain_chunk(PUB) + chunk(0xFD, b"x"),
    "empty": plain_chunk(b"") + plain_chunk(PUB) + plain_chunk(b""),
    "byte-by-byte": b"".join(plain_chunk(PUB[i : i + 1]) for i in range(len(PUB))),
    "widest-plain": plain_chunk(WIDE_PUB),
    "widest-block": block(WIDE_PUB),
    "several-in-a-chunk": plain_chunk(b"NOP\n" + PUB + b"NOP\n"),
}


@pytest.mark.parametrize("raw", GOOD_SNAPPY.values(), ids=GOOD_SNAPPY)
def test_snappy_stream_as_the_format_allows(nsqd: Instance, raw: bytes) -> None:
    with UpgradedClient(nsqd.tcp_address, snappy=True) as client:
        client.publish("streams#ephemeral", b"before")
        for _ in range(2):
            client.sock.sendall(raw)
            assert client.response() == b"OK"


CORRUPT, UNSUPPORTED = "snappy: corrupt input", "snappy: unsupported input"
BAD_SNAPPY = {
    "no-snappy": (b"PUB test\n", CORRUPT),
    "no-identifier": (plain_chunk(PUB), CORRUPT),
    "padding-first": (chunk(0xFE, b"a"), CORRUPT),
    "other-identifier": (chunk(0xFF, b"sNaPpX"), CORRUPT),
    "long-identifier": (chunk(0xFF, b"sNaPpYY"), CORRUPT),
    "reserved-02": (SNAPPY_IDENTIFIER + chunk(0x02, b"a"), UNSUPPORTED),
    "reserved-7f": (SNAPPY_IDENTIFIER + chunk(0x7F, b"a"), UNSUPPORTED),
    "checksum-plain": (SNAPPY_IDENTIFIER + chunk(0x01, b"NOP\n", b"nop\n"), CORRUPT),
    "checksum-block": (SNAPPY_IDENTIFIER + chunk(0x00, block(bytes(64))[8:], bytes(63)), CORRUPT),
    "checksum-missing": (SNAPPY_IDENTIFIER + chunk(0x01, b"abc"), CORRUPT),
    "block-missing": (SNAPPY_IDENTIFIER + chunk(0x00, b"abcd"), CORRUPT),
    "block-cut": (SNAPPY_IDENTIFIER + chunk(0x00, block(bytes(64))[8:-1], bytes(64)), CORRUPT),
    "65537-plain": (SNAPPY_IDENTIFIER + plain_chunk(bytes(SNAPPY_BLOCK + 1)), CORRUPT),
    "65537-block": (SNAPPY_IDENTIFIER + block(bytes(SNAPPY_BLOCK + 1)), CORRUPT),
    "4-gib-block": (SNAPPY_IDENTIFIER + chunk(0x00, b"\xff\xff\xff\xff\x0f" + block(bytes(64))[9:], b""), CORRUPT),
    "header-too-long": (SNAPPY_IDENTIFIER + b"\x00\xcf\x2a\x01", UNSUPPORTED),
    "endless-identifier": (SNAPPY_IDENTIFIER + b"\xff\xff\xff\xff", "snappy: "),
}
BAD_DEFLATE = {
    "no-deflate": (b"PUB test\n\0\0\0\1a", "flate: corrupt input"),
    "zlib-header": (zlib.compress(PUB), "flate: corrupt input"),
    "gzip-header": (zlib.compress(PUB, wbits=31), "flate: corrupt input"),
    "reserved-block": (b"\x07", "flate: corrupt input"),
    "back-before-the-beginning": (bytes.fromhex("4b 04 e2 ff"), "flate: corrupt input"),
}
BAD_STREAMS = [pytest.param("snappy", *row, id=f"snappy-{name}") for name, row in BAD_SNAPPY.items()]
BAD_STREAMS += [pytest.param("deflate", *row, id=f"deflate-{name}") for name, row in BAD_DEFLATE.items()]


@pytest.mark.parametrize("tls", [{}, {"tls_v1": True}], ids=["plain", "tls"])
@pytest.mark.parametrize(("compression", "raw", "why"), BAD_STREAMS)
def test_broken_stream_closes_its_connection_without_a_word(
    nsqd: Instance, compression: str, raw: bytes, why: str, tls: dict[str, bool]
) -> None:
    with UpgradedClient(nsqd.tcp_address, tls_client_context(), **{compression: True}, **tls) as client:
        host, port = client.sock.getsockname()
        send_raw(client, raw)
        assert client.recv_until_closed() == b""
    line = f"ERROR: client({host}:{port}) - failed to read command - {why}"
    eventually(lambda: line in nsqd.log(), line)


@pytest.mark.parametrize(("compression", "raw"), [("snappy", BAD_SNAPPY["reserved-02"][0][10:]), ("deflate", b"\x07")])
def test_stream_that_breaks_inside_a_body_is_reported(nsqd: Instance, compression: str, raw: bytes) -> None:
    with UpgradedClient(nsqd.tcp_address, None, **{compression: True}) as client:
        client.send(b"PUB streams#ephemeral\n\0\0\0\x05abc")
        assert client.nothing_arrives(0.05)
        client.sock.sendall(raw)
        expected = [Frame(ERROR, b"E_BAD_MESSAGE PUB failed to read message body")]
        assert split_frames(client.recv_until_closed()) == expected


def test_last_block_of_deflate_ends_the_connection(nsqd: Instance) -> None:
    compress = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    raw = compress.compress(PUB) + compress.flush()
    with UpgradedClient(nsqd.tcp_address, deflate=True) as client:
        client.sock.sendall(raw)
        assert split_frames(client.recv_until_closed()) == [Frame(RESPONSE, b"OK")]


# Bombs


def deflate_zeros() -> bytes:
    """Returns 1 GiB, in blocks of which none needs another."""
    compress = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return (compress.compress(bytes(1 << 20)) + compress.flush(zlib.Z_FULL_FLUSH)) * 1024


def snappy_zeros() -> bytes:
    """Returns 128 MiB, which is as much as snappy makes of 6."""
    return block(bytes(SNAPPY_BLOCK)) * 2048


ZEROS = {"deflate": deflate_zeros, "snappy": snappy_zeros}
MIB = struct.pack(">i", 1 << 20)

# What goes before the zeros, and the answers.
BOMBS = [
    (b"", []),
    (b"PUB bomb\n" + MIB, [b"OK"]),
    (b"PUB bomb\n" + struct.pack(">i", 2**31 - 1), [b"E_BAD_MESSAGE PUB message too big 2147483647 > 1048576"]),
    (b"MPUB bomb\n" + MIB + struct.pack(">i", 1000), [b"E_BAD_MESSAGE MPUB invalid message(0) body size 0"]),
    (b"IDENTIFY\n" + struct.pack(">i", 1 << 15), [b"E_BAD_BODY IDENTIFY failed to decode JSON body"]),
]


def test_identify_may_be_repeated_without_end_and_costs_no_memory(gnsqd_factory: DaemonFactory) -> None:
    gnsqd = gnsqd_factory()
    assert gnsqd.http("PUT", "/config/log_level", b"error")[0] == 200
    with NSQClient(gnsqd.tcp_address) as client:
        before = resident_bytes(gnsqd, "VmHWM")
        for number in range(1000):
            client.identify(feature_negotiation=True, user_agent=f"{number}".ljust(16000), hostname="h" * 16000)
    assert resident_bytes(gnsqd, "VmHWM") < before + (8 << 20), "what is kept of each would be 32 MB"


@pytest.mark.parametrize("compression", ZEROS)
def test_bomb_is_cut_off_at_the_limits(nsqd_factory: DaemonFactory, compression: str) -> None:
    daemon = nsqd_factory()
    good = GoodClients(daemon)
    before = resident_bytes(daemon, "VmHWM")
    bomb = ZEROS[compression]()
    for head, answers in BOMBS:
        with UpgradedClient(daemon.tcp_address, None, **{compression: True}) as client:
            if head:
                client.send(head)
            send_raw(client, bomb)
            frames = [data for _, data in split_frames(client.recv_until_closed())]
            assert frames in (answers, []), frames  # with input unread, the close may take the answer with it
    assert resident_bytes(daemon, "VmHWM") < before + (48 << 20)
    good.stop()
    assert good.slowest < 3
