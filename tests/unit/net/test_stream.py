"""The compressing layers and their stack. References: zlib itself, vectors by hand, NSQD-COMPAT 2.6, the real nsqd."""

import random
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsqd.net.stream import MAX_CHUNK, DeflateLayer, Layer, SnappyLayer, Stack, StreamError
from kit.upgraded_client import SNAPPY_IDENTIFIER as IDENTIFIER
from kit.upgraded_client import chunk

OK_FRAME = bytes.fromhex("00 00 00 06 00 00 00 00 4f 4b")
DEFLATED_OK = bytes.fromhex("62 60 60 60 63 60 60 60 f0 f7 06 00 00 00 ff ff 00 00 00 ff ff")
FRAMED_OK = IDENTIFIER + bytes.fromhex("01 0e 00 00 26 98 2b cf") + OK_FRAME

# By hand from the format description: 64 bytes, literal "a", copy of 63 bytes from 1 back.
A64 = bytes.fromhex("40 00 61 fa 01 00")


def plain_chunk(data: bytes) -> bytes:
    return chunk(0x01, data, data)


def drain(layer: Layer, data: bytes) -> bytes:
    pieces = [layer.decode(data)]
    while layer.pending:
        pieces.append(layer.decode(b""))
    return b"".join(pieces)


def raw_deflate(*parts: bytes, finish: bool = False) -> bytes:
    compress = zlib.compressobj(6, zlib.DEFLATED, -15)
    flushed = b"".join(compress.compress(part) + compress.flush(zlib.Z_SYNC_FLUSH) for part in parts)
    return flushed + (compress.flush() if finish else b"")


LAYERS: list[Callable[[], Layer]] = [lambda: DeflateLayer(6), SnappyLayer]
layers = pytest.mark.parametrize("make_layer", LAYERS, ids=["deflate", "snappy"])


def test_the_upper_layer_is_nearer_to_the_codec() -> None:
    stack = Stack(DeflateLayer(1), SnappyLayer())
    assert zlib.decompressobj(-15).decompress(stack.encode(OK_FRAME)) == FRAMED_OK
    assert stack.decode(raw_deflate(FRAMED_OK)) == OK_FRAME


@pytest.mark.parametrize("ended", [0, 1])
def test_a_stack_has_ended_when_one_of_its_layers_has(ended: int) -> None:
    layers = DeflateLayer(1), DeflateLayer(1)
    stack = Stack(*layers)
    assert not stack.ended
    layers[ended].decode(raw_deflate(b"x", finish=True))
    assert stack.ended


def test_a_stack_is_pending_while_one_of_its_layers_is() -> None:
    many = IDENTIFIER + plain_chunk(b"x") + chunk(0x01, b"y" * 1000, b"y" * 1000) * 2000
    assert drain(Stack(DeflateLayer(1), SnappyLayer()), raw_deflate(many)) == b"x" + b"y" * 2_000_000


def test_snappy_of_the_first_frame_is_byte_for_byte_nsqds() -> None:
    assert SnappyLayer().encode(OK_FRAME) == FRAMED_OK


def test_snappy_identifier_is_sent_once() -> None:
    layer = SnappyLayer()
    assert layer.encode(OK_FRAME) + layer.encode(OK_FRAME) == FRAMED_OK + FRAMED_OK[len(IDENTIFIER) :]


def test_snappy_chunks_hold_at_most_64_kib() -> None:
    data = random.Random(1).randbytes(65536 * 2 + 1)
    rest = SnappyLayer().encode(data)[len(IDENTIFIER) :]
    sizes = []
    while rest:
        assert rest[0] == 0x01, "random bytes do not compress"
        length = int.from_bytes(rest[1:4], "little")
        sizes.append(length - 4)
        rest = rest[4 + length :]
    assert sizes == [65536, 65536, 1]


@pytest.mark.parametrize("level", [1, 6, 9])
def test_each_deflate_flush_is_readable_at_once(level: int) -> None:
    layer, inflate = DeflateLayer(level), zlib.decompressobj(-15)
    for data in (OK_FRAME, b"a", b"body" * 50_000, OK_FRAME):
        raw = layer.encode(data)
        assert raw.endswith(b"\0\0\xff\xff")
        assert inflate.decompress(raw) == data


def test_deflate_keeps_its_dictionary_across_flushes() -> None:
    layer, body = DeflateLayer(6), random.Random(2).randbytes(1000)
    assert len(layer.encode(body)) > 1000 > 10 * len(layer.encode(body))


def test_deflate_level_is_used() -> None:
    text = b" ".join(random.Random(5).choices([b"topic", b"channel", b"requeue", b"depth"], k=5000))
    sizes = {level: len(DeflateLayer(level).encode(text)) for level in (1, 6, 9)}
    for level, size in sizes.items():
        compress = zlib.compressobj(level, zlib.DEFLATED, -15)
        assert size == len(compress.compress(text) + compress.flush(zlib.Z_SYNC_FLUSH))
    assert len(set(sizes.values())) == 3


@layers
def test_encoding_nothing_sends_nothing(make_layer: Callable[[], Layer]) -> None:
    assert make_layer().encode(b"") == b""


@pytest.mark.parametrize(
    ("make_layer", "raw", "plain"),
    [
        pytest.param(LAYERS[0], DEFLATED_OK, OK_FRAME, id="nsqd-deflate"),
        pytest.param(
            LAYERS[0], raw_deflate(b"PUB t\n", b"", b"x" * 700, b"y"), b"PUB t\n" + b"x" * 700 + b"y", id="deflate"
        ),
        pytest.param(SnappyLayer, FRAMED_OK, OK_FRAME, id="nsqd-snappy"),
        pytest.param(
            SnappyLayer,
            IDENTIFIER
            + plain_chunk(b"PUB t\n")
            + chunk(0x80, b"later version")
            + chunk(0x00, A64, b"a" * 64)
            + chunk(0xFE, b"\0" * 9)
            + chunk(0xFE, b"")
            + plain_chunk(b"")
            + plain_chunk(b"z"),
            b"PUB t\n" + b"a" * 64 + b"z",
            id="snappy",
        ),
        pytest.param(SnappyLayer, FRAMED_OK + FRAMED_OK, OK_FRAME * 2, id="identifier-each-time-as-pynsq"),
    ],
)
def test_bytes_may_be_split_anywhere(make_layer: Callable[[], Layer], raw: bytes, plain: bytes) -> None:
    for position in range(len(raw) + 1):
        layer = make_layer()
        assert drain(layer, raw[:position]) + drain(layer, raw[position:]) == plain, position
    layer = make_layer()
    assert b"".join(drain(layer, raw[i : i + 1]) for i in range(len(raw))) == plain


def test_deflate_gives_all_there_is_where_a_full_chunk_meets_the_end_of_input() -> None:
    raw = raw_deflate(bytes(MAX_CHUNK + 600))
    for end in range(len(raw) - 20, len(raw) + 1):
        expected = zlib.decompressobj(-15).decompress(raw[:end])
        assert len(drain(DeflateLayer(6), raw[:end])) == len(expected), end


bodies = st.lists(st.binary(max_size=300) | st.integers(1, 200_000).map(lambda n: b"ab" * n), min_size=1, max_size=5)


@layers
@settings(max_examples=50, deadline=None)
@given(bodies=bodies, seed=st.integers(0, 2**32))
def test_what_was_encoded_so_far_is_decoded_whatever_the_split(
    make_layer: Callable[[], Layer], bodies: list[bytes], seed: int
) -> None:
    sender, receiver = make_layer(), make_layer()
    randomness = random.Random(seed)
    for body in bodies:
        raw = sender.encode(body)
        received = []
        while raw:
            size = randomness.choice([1, 3, 100, 5000, 70_000])
            received.append(drain(receiver, raw[:size]))
            raw = raw[size:]
        assert b"".join(received) == body


def test_deflate_ends_with_the_last_block() -> None:
    layer = DeflateLayer(6)
    assert layer.decode(raw_deflate(b"NOP\n", finish=True) + b"whatever") == b"NOP\n"
    assert layer.ended
    assert not layer.pending
    assert layer.decode(b"whatever") == b""


CORRUPT, UNSUPPORTED = "snappy: corrupt input", "snappy: unsupported input"
SNAPPY_GARBAGE = {
    "no-snappy": (b"PUB test\n", CORRUPT),
    "no-identifier": (plain_chunk(b"a"), CORRUPT),
    "padding-first": (chunk(0xFE, b"a"), CORRUPT),
    "other-identifier": (chunk(0xFF, b"sNaPpX"), CORRUPT),
    "reserved-02": (IDENTIFIER + chunk(0x02, b"a"), UNSUPPORTED),
    "reserved-7f": (IDENTIFIER + chunk(0x7F, b"a"), UNSUPPORTED),
    "checksum-plain": (IDENTIFIER + chunk(0x01, b"a", b"b"), CORRUPT),
    "checksum-block": (IDENTIFIER + chunk(0x00, A64, b"b"), CORRUPT),
    "no-checksum": (IDENTIFIER + chunk(0x01, b"abc"), CORRUPT),
    "no-block": (IDENTIFIER + chunk(0x00, b"abcd"), CORRUPT),
    "cut-block": (IDENTIFIER + chunk(0x00, A64[:-1], b"a" * 64), CORRUPT),
    "65537-plain": (IDENTIFIER + chunk(0x01, b"a" * 65537, b"a" * 65537), CORRUPT),
    "65537-block": (IDENTIFIER + chunk(0x00, b"\x81\x80\x04" + A64[1:], b""), CORRUPT),
    "4-gib-block": (IDENTIFIER + chunk(0x00, b"\xff\xff\xff\xff\x0f" + A64[1:], b""), CORRUPT),
    "too-long-by-its-header": (IDENTIFIER + b"\x00\xcf\x2a\x01", UNSUPPORTED),
    "endless-identifier": (IDENTIFIER + b"\xff\xff\xff\xff", UNSUPPORTED),
}


@pytest.mark.parametrize(("raw", "text"), SNAPPY_GARBAGE.values(), ids=SNAPPY_GARBAGE)
def test_snappy_refuses_garbage(raw: bytes, text: str) -> None:
    with pytest.raises(StreamError, match=f"^{text}"):
        SnappyLayer().decode(raw)


@pytest.mark.parametrize("raw", [b"PUB test\n\0\0\0\1a", raw_deflate(b"a") + b"\x07"], ids=["plain", "reserved-block"])
def test_deflate_refuses_garbage(raw: bytes) -> None:
    with pytest.raises(StreamError, match=r"^flate: corrupt input$"):
        DeflateLayer(6).decode(raw)


@layers
def test_damaged_streams_raise_nothing_but_stream_errors(make_layer: Callable[[], Layer]) -> None:
    raw = make_layer().encode(b"".join(b'{"id": %d}' % number for number in range(2000)))
    randomness = random.Random(7)
    failures = 0
    for _ in range(300):
        damaged = bytearray(raw)
        for _ in range(randomness.choice([1, 1, 5, 50])):
            damaged[randomness.randrange(len(damaged))] = randomness.randrange(256)
        try:
            drain(make_layer(), bytes(damaged))
        except StreamError:
            failures += 1
    assert failures > 100


@pytest.mark.parametrize("empty", [chunk(0x80, b""), IDENTIFIER, plain_chunk(b"")], ids=["skippable", "id", "plain"])
def test_flood_of_empty_chunks_is_looked_at_in_pieces(empty: bytes) -> None:
    layer = SnappyLayer()
    assert layer.decode(IDENTIFIER + empty * 10_000) == b""
    pieces = 1
    while layer.pending:
        assert layer.decode(b"") == b""
        pieces += 1
    assert pieces > 2
    assert layer.decode(plain_chunk(b"NOP\n")) == b"NOP\n"


def test_padding_of_any_length_is_dropped_not_buffered() -> None:
    layer = SnappyLayer()
    layer.decode(IDENTIFIER + b"\xfe\xff\xff\xff")
    tracemalloc.start()
    try:
        left = 0xFFFFFF
        while left:
            size = min(left, 60_000)
            assert layer.decode(b"\0" * size) == b""
            left -= size
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert layer.decode(plain_chunk(b"NOP\n")) == b"NOP\n"


def snappy_bomb() -> bytes:
    zeros = bytes.fromhex("80 80 04 00 00") + bytes.fromhex("fe 01 00") * 1023 + bytes.fromhex("fa 01 00")
    return IDENTIFIER + chunk(0x00, zeros, bytes(65536)) * 400


@pytest.mark.parametrize(
    ("make_layer", "bomb", "size"),
    [
        pytest.param(LAYERS[0], lambda: raw_deflate(bytes(1 << 26)), 1 << 26, id="deflate"),
        pytest.param(SnappyLayer, snappy_bomb, 400 * 65536, id="snappy"),
    ],
)
def test_a_bomb_unfolds_in_bounded_pieces(
    make_layer: Callable[[], Layer], bomb: Callable[[], bytes], size: int
) -> None:
    raw = bomb()
    assert len(raw) * 20 < size
    layer = make_layer()
    total = 0
    tracemalloc.start()
    try:
        for start in range(0, len(raw), 65536):
            total += len(layer.decode(raw[start : start + 65536]))
            while layer.pending:
                piece = layer.decode(b"")
                assert len(piece) <= MAX_CHUNK
                total += len(piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == size
    assert peak < 4 * MAX_CHUNK
