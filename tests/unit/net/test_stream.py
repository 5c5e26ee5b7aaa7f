"""The compressing layers and their stack: any split, bounded pieces, damage. What a client can see of them is in
behaviour/test_upgrades.py and test_broken_streams.py. Vectors are by hand, from NSQD-COMPAT 2.6 and the real nsqd."""

import random
import tracemalloc
import zlib
from collections.abc import Callable

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsqd.net.stream import MAX_CHUNK, DeflateLayer, Layer, SnappyLayer, Stack, StreamError
from kit.upgraded_client import SNAPPY_BLOCK, chunk
from kit.upgraded_client import SNAPPY_IDENTIFIER as IDENTIFIER

OK_FRAME = bytes.fromhex("00 00 00 06 00 00 00 00 4f 4b")
DEFLATED_OK = bytes.fromhex("62 60 60 60 63 60 60 60 f0 f7 06 00 00 00 ff ff 00 00 00 ff ff")
FRAMED_OK = IDENTIFIER + bytes.fromhex("01 0e 00 00 26 98 2b cf") + OK_FRAME

# By hand from the format description: 64 bytes, literal "a", copy of 63 bytes from 1 back.
A64 = bytes.fromhex("40 00 61 fa 01 00")


def plain_chunk(data: bytes) -> bytes:
    return chunk(0x01, data, data)


def pieces(layer: Layer, data: bytes) -> list[bytes]:
    found = [layer.decode(data)]
    while layer.pending:
        found.append(layer.decode(b""))
    return found


def drain(layer: Layer, data: bytes) -> bytes:
    return b"".join(pieces(layer, data))


def raw_deflate(*parts: bytes, finish: bool = False) -> bytes:
    compress = zlib.compressobj(6, zlib.DEFLATED, -15)
    flushed = b"".join(compress.compress(part) + compress.flush(zlib.Z_SYNC_FLUSH) for part in parts)
    return flushed + (compress.flush() if finish else b"")


def deflate() -> Layer:
    return DeflateLayer(6)


layers = pytest.mark.parametrize("make_layer", [deflate, SnappyLayer])


def test_stack_is_pending_or_ended_with_any_of_its_layers() -> None:
    # The upper layer is nearer to the codec.
    stack = Stack(deflate(), SnappyLayer())
    assert zlib.decompressobj(-15).decompress(stack.encode(OK_FRAME)) == FRAMED_OK
    many = IDENTIFIER + plain_chunk(b"x") + plain_chunk(b"y" * 1000) * 2000
    assert drain(stack, raw_deflate(many)) == b"x" + b"y" * 2_000_000
    for plain, lower_ends in ((b"x", True), (raw_deflate(b"x", finish=True), False)):
        stack = Stack(deflate(), deflate())
        assert not stack.ended
        stack.decode(raw_deflate(plain, finish=lower_ends))
        assert stack.ended


def test_no_deflate_level_sends_more_than_zlib_of_a_batch_and_the_dictionary_is_kept() -> None:
    randomness = random.Random(5)
    rows = [b'{"id":"%016x","status":%d}' % (randomness.getrandbits(64), randomness.randrange(600)) for _ in range(400)]
    batch = b"".join(rows)
    sizes = {}
    for level in range(1, 10):
        compress, decompress = zlib.compressobj(level, zlib.DEFLATED, -15), zlib.decompressobj(-15)
        layer = DeflateLayer(level)
        raw = layer.encode(batch)
        sizes[level] = len(raw)
        assert sizes[level] <= len(compress.compress(batch) + compress.flush(zlib.Z_SYNC_FLUSH))
        again = layer.encode(batch)
        assert len(again) < len(raw) / 10
        assert decompress.decompress(raw + again) == batch * 2
    assert sizes[1] > sizes[6] > sizes[9]


def test_snappy_chunks_are_those_of_the_library() -> None:
    randomness = random.Random(5)
    for size in (1, 16, 17, 18, 300, 5000, SNAPPY_BLOCK, SNAPPY_BLOCK + 1, 200_000):
        for shrinks in (0, 0.12, 0.13, 0.5, 1):  # chunks that are not an eighth shorter stay as they are
            zeros = bytes(int(size * shrinks))
            body = randomness.randbytes(size - len(zeros)) + zeros
            assert SnappyLayer().encode(body) == bytes(cramjam.snappy.compress(body)), (size, shrinks)


def test_snappy_fault_is_named() -> None:
    with pytest.raises(StreamError, match=r"^snappy: corrupt input \(bad checksum; expected: \d+, got: \d+\)$"):
        SnappyLayer().decode(IDENTIFIER + plain_chunk(b"NOP\n") + chunk(0x01, b"NOP\n", b"nop\n"))


PUBS = b"PUB t\n" + b"x" * 700 + b"y"
SNAPPY_CHUNKS = [
    plain_chunk(b"PUB t\n"), chunk(0x80, b"later version"), chunk(0x00, A64, b"a" * 64), chunk(0xFE, b"\0" * 9),
    chunk(0xFE, b""), plain_chunk(b""), plain_chunk(b"z"),
]  # fmt: skip
SPLIT = {
    "nsqd-deflate": (deflate, DEFLATED_OK, OK_FRAME),
    "deflate": (deflate, raw_deflate(b"PUB t\n", b"", b"x" * 700, b"y"), PUBS),
    "nsqd-snappy": (SnappyLayer, FRAMED_OK, OK_FRAME),
    "snappy": (SnappyLayer, IDENTIFIER + b"".join(SNAPPY_CHUNKS), b"PUB t\n" + b"a" * 64 + b"z"),
    "identifier-each-time-as-pynsq": (SnappyLayer, FRAMED_OK + FRAMED_OK, OK_FRAME * 2),
}


@pytest.mark.parametrize(("make_layer", "raw", "plain"), SPLIT.values(), ids=SPLIT)
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
        assert len(drain(deflate(), raw[:end])) == len(expected), end


bodies = st.lists(st.binary(max_size=300) | st.integers(1, 200_000).map(lambda n: b"ab" * n), min_size=1, max_size=5)


@layers
@settings(max_examples=50, deadline=None)
@given(bodies=bodies, seed=st.integers(0, 2**32))
def test_what_is_encoded_so_far_is_decoded(make_layer: Callable[[], Layer], bodies: list[bytes], seed: int) -> None:
    sender, receiver = make_layer(), make_layer()
    randomness = random.Random(seed)
    assert sender.encode(b"") == b""
    for body in bodies:
        raw = sender.encode(body)
        received = []
        while raw:
            size = randomness.choice([1, 3, 100, 5000, 70_000])
            received.append(drain(receiver, raw[:size]))
            raw = raw[size:]
        assert b"".join(received) == body


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
    found = pieces(layer, IDENTIFIER + empty * 10_000)
    assert set(found) == {b""}
    assert len(found) > 2
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
