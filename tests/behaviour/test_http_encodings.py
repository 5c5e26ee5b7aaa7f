"""Bodies with a Content-Encoding (RFC 9110, sections 8.4 and 15.5.16), which nsqd stores as they come."""

import gzip
import itertools
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from kit.daemons import DEADLINE, Instance, open_socket, own_command
from kit.http_api import chunked, exchange, head, message, read_all, split_responses
from kit.nsq_client import mpub_body
from kit.observers import resident_bytes
from kit.traffic import create, take

try:
    from compression import zstd  # type: ignore[import-not-found]
except ImportError:
    from backports import zstd

LARGEST, LARGEST_BODY = 200_000, 400_000  # bytes of a message, and of an /mpub
OK = (200, "OK")
SMALL = b'{"id": 1}'
NOISE = random.Random(1).randbytes(LARGEST - 1000)  # large when it is compressed
BARE_DEFLATE = zlib.compress(SMALL)[2:-4]
SKIPPABLE_FRAME = struct.pack("<II", 0x184D2A50, 3) + b"abc"  # RFC 8878, section 3.1.2

compress_gzip = partial(gzip.compress, mtime=0)  # the same names of tests in each process
Compress = Callable[[bytes], bytes]
CODINGS: dict[str, Compress] = {"gzip": compress_gzip, "deflate": zlib.compress, "zstd": zstd.compress}
_numbers = itertools.count()


def with_window(log: int) -> bytes:
    """Returns a frame that does not specify its size, so its window is that of the compressor."""
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: log})
    return bytes(compressor.compress(SMALL) + compressor.flush())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    flags = (f"--max-msg-size={LARGEST}", f"--max-body-size={LARGEST_BODY}")
    with Instance(own_command(), tmp_path_factory.mktemp("encodings") / "data", *flags) as daemon:
        yield daemon


@pytest.fixture
def topic() -> str:
    return f"t{next(_numbers)}"


def post(nsqd: Instance, target: str, coding: str, body: bytes) -> tuple[int, str]:
    status, _, answer = nsqd.http("POST", target, body, {"Content-Encoding": coding})
    return status, answer.decode()


def bodies(nsqd: Instance, topic: str, count: int) -> list[bytes]:
    return [received.body for received in take(nsqd, topic, "c", count)]


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        *((coding, compress(SMALL)) for coding, compress in CODINGS.items()),
        ("GZip", compress_gzip(SMALL)),
        ("x-gzip", compress_gzip(SMALL)),
        ("identity", SMALL),
        ("UTF-8", SMALL),
        ("deflate, identity, zstd", zstd.compress(zlib.compress(SMALL))),
        ("gzip\r\nContent-Encoding: gzip", compress_gzip(compress_gzip(SMALL))),
        ("gzip", compress_gzip(SMALL[:4]) + compress_gzip(b"") + compress_gzip(SMALL[4:])),
        ("zstd", with_window(23)),
        ("zstd", zstd.compress(SMALL[:4]) + SKIPPABLE_FRAME + zstd.compress(SMALL[4:])),
    ],
)
def test_message_is_decoded(shared: Instance, topic: str, coding: str, body: bytes) -> None:
    data = head(f"POST /pub?topic={topic}", f"Content-Encoding: {coding}", f"Content-Length: {len(body)}") + body
    data += head(f"POST /pub?topic={topic}", f"Content-Encoding: {coding}", "Transfer-Encoding: chunked")
    data += chunked(body[:5], body[5:])
    assert exchange(shared, data) == [OK, OK]
    assert bodies(shared, topic, 2) == [SMALL, SMALL]


@pytest.mark.parametrize("coding", CODINGS)
def test_long_bodies_are_decoded(shared: Instance, topic: str, coding: str) -> None:
    compress = CODINGS[coding]
    assert post(shared, f"/pub?topic={topic}", coding, compress(NOISE)) == OK
    assert post(shared, f"/pub?topic={topic}", coding, compress(bytes(LARGEST))) == OK
    lines = [b"line %d" % number for number in range(20_000)]
    assert post(shared, f"/mpub?topic={topic}", coding, compress(b"\n".join(lines))) == OK
    assert post(shared, f"/mpub?topic={topic}&binary=true", coding, compress(mpub_body(b"one\n", b"two"))) == OK
    stats = shared.topic_stats(topic)
    assert stats["message_count"] == 20_004
    assert stats["message_bytes"] == len(NOISE) + LARGEST + sum(map(len, lines)) + 7


@pytest.mark.parametrize("coding", CODINGS)
def test_bomb_is_a_body_that_is_too_big(shared: Instance, topic: str, coding: str) -> None:
    compress = CODINGS[coding]
    twice = f"{coding}, {coding}"
    for path, limit, code in (("/pub", LARGEST, "MSG_TOO_BIG"), ("/mpub", LARGEST_BODY, "BODY_TOO_BIG")):
        bombs = ((coding, compress(bytes(limit + 1))), (twice, compress(compress(bytes(50_000_000)))))
        for given, body in bombs:
            for query in ("", "&binary=true"):
                assert post(shared, f"{path}?topic={topic}{query}", given, body) == (413, message(code))
        line = f"POST {path}?topic={topic}"
        data = head(line, f"Content-Encoding: {coding}", "Transfer-Encoding: chunked") + chunked(bombs[0][1])
        # One that is too big before it is decoded.
        data += head(line, f"Content-Encoding: {coding}", "Transfer-Encoding: chunked") + chunked(bytes(limit + 1))
        assert exchange(shared, data) == [(413, message(code))] * 2
    assert not shared.stats(topic)["topics"]


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_bombs_that_arrive_together_are_not_large_together(gnsqd: Instance, coding: str) -> None:
    size = 5 * 1024 * 1024  # --max-body-size; of one message, which is too big
    bomb = CODINGS[coding](bytes(size))
    headers = (f"Content-Encoding: {coding}", f"Content-Length: {len(bomb)}", "Connection: close")
    data = head("POST /mpub?topic=t", *headers) + bomb
    create(gnsqd, "t")
    before = resident_bytes(gnsqd, "VmHWM")
    with ExitStack() as stack:
        clients = [stack.enter_context(open_socket(gnsqd.http_address, DEADLINE)) for _ in range(60)]
        for client in clients:
            client.sendall(data[:-1])
        for client in clients:
            client.sendall(data[-1:])
        for client in clients:
            assert split_responses(read_all(client)) == [(413, message("MSG_TOO_BIG"))]
    assert resident_bytes(gnsqd, "VmHWM") - before < 12 * size


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        *((coding, compress(SMALL)[:-1]) for coding, compress in CODINGS.items()),
        *((coding, compress(NOISE)[:-1]) for coding, compress in CODINGS.items()),
        *((coding, compress(SMALL) + b"x") for coding, compress in CODINGS.items()),
        *((coding, b"\x01" + compress(SMALL)) for coding, compress in CODINGS.items()),
        ("gzip", compress_gzip(SMALL)[:-5] + b"\0" + compress_gzip(SMALL)[-4:]),  # another checksum
        ("deflate", BARE_DEFLATE),
        ("deflate", 2 * zlib.compress(SMALL)),  # RFC 1950 knows no members
        ("gzip, zstd", zstd.compress(SMALL)),
        ("gzip, zstd", compress_gzip(zstd.compress(SMALL))),
        ("zstd", with_window(24)),  # more than the 8 MB of RFC 9659
    ],
)
def test_what_cannot_be_decoded_is_not_published(shared: Instance, topic: str, coding: str, body: bytes) -> None:
    for target in (f"/pub?topic={topic}", f"/mpub?topic={topic}", f"/mpub?topic={topic}&binary=true"):
        assert post(shared, target, coding, body) == (400, message("INVALID_ENCODING"))
    assert not shared.stats(topic)["topics"]


@pytest.mark.parametrize(("coding", "most"), [("gzip", 1000), ("zstd", 100)])
def test_members_and_frames_are_limited(shared: Instance, topic: str, coding: str, most: int) -> None:
    body = CODINGS[coding](SMALL) + (most - 1) * CODINGS[coding](b"")
    assert post(shared, f"/pub?topic={topic}", coding, body) == OK
    assert bodies(shared, topic, 1) == [SMALL]
    refused = 400, message(f"INVALID_ENCODING: more than {most} members or frames")
    assert post(shared, f"/pub?topic={topic}", coding, body + CODINGS[coding](b"")) == refused


@pytest.mark.parametrize("path", ["/pub", "/mpub"])
@pytest.mark.parametrize("coding", ["br", "gzip, br", "gzip;q=1", "x-identity", ",".join(["gzip"] * 5)])
def test_answer_to_other_codings_lists_what_is_accepted(shared: Instance, path: str, coding: str) -> None:
    target = f"{path}?topic=never"
    status, headers, body = shared.http("POST", target, compress_gzip(SMALL), {"Content-Encoding": coding})
    assert (status, body.decode()) == (415, message("UNSUPPORTED_ENCODING"))
    assert headers["Accept-Encoding"] == "gzip, deflate, zstd"
    assert not shared.stats("never")["topics"]


def test_header_of_other_requests_is_ignored(shared: Instance, topic: str) -> None:
    assert post(shared, f"/topic/create?topic={topic}", "br", b"x") == (200, "")
    assert shared.http("GET", "/stats", None, {"Content-Encoding": "gzip"})[0] == 200
    assert shared.http("PUT", "/config/log_level", b"info", {"Content-Encoding": "br"})[0] == 200


def test_same_head_may_have_another_body(shared: Instance, topic: str) -> None:
    """Heads that are known are not parsed again."""
    body = compress_gzip(SMALL)
    with_coding = head(f"POST /pub?topic={topic}", "Content-Encoding: gzip", f"Content-Length: {len(body)}") + body
    without = head(f"POST /pub?topic={topic}", f"Content-Length: {len(body)}") + body
    for data in (with_coding, without, with_coding, without):
        assert exchange(shared, data) == [OK]
    assert sorted(bodies(shared, topic, 4)) == sorted([SMALL, body] * 2)
