"""Little that is much to parse: JSON in an IDENTIFY and for an option (contrib/docs/security.md). Compressed streams
are in test_broken_streams.py, bodies over HTTP in test_http_encodings.py."""

import struct

import pytest

from kit.daemons import Instance, own_command
from kit.http_api import ask, message
from kit.nsq_client import ERROR, RESPONSE, Frame, NSQClient
from kit.traffic import DaemonFactory

LARGEST = 32768  # bytes of an IDENTIFY, and of a value for /config


@pytest.fixture(scope="module")
def shared(module_factory: DaemonFactory) -> Instance:
    return module_factory()


def filled(before: bytes, filling: bytes, after: bytes) -> bytes:
    return before + filling * ((LARGEST - len(before) - len(after)) // len(filling)) + after


BAD_JSON = [Frame(ERROR, b"E_BAD_BODY IDENTIFY failed to decode JSON body")]
OK = [Frame(RESPONSE, b"OK")]
BOMBS = [
    (filled(b'{"x":', b"[", b""), BAD_JSON),
    (filled(b"", b'{"x":', b""), BAD_JSON),
    (filled(b'{"client_id":', b'{"x":', b""), BAD_JSON),
    (filled(b'{"client_id":"', b"x", b""), BAD_JSON),
    (filled(b'{"heartbeat_interval":', b"9", b"}"), BAD_JSON),
    (filled(b'{"heartbeat_interval":1e', b"9", b"}"), BAD_JSON),
    (filled(b'{"heartbeat_interval":0.', b"9", b"}"), BAD_JSON),
    (filled(b'{"x":', b"9", b"}"), OK),
    (filled(b'{"x":[', b"1,", b"1]}"), OK),
    (filled(b'{"x":[', b"{},", b"1]}"), OK),
    (filled(b"{", b'"heartbeat_interval":-7,', b'"heartbeat_interval":1000}'), OK),
    (filled(b'{"client_id":"', b"\\ud800", b'"}'), OK),
    (filled(b'{"client_id":"', b"\xff", b'"}'), OK),
]


@pytest.mark.parametrize(("body", "answer"), BOMBS, ids=[body[:30].decode("latin-1") for body, _ in BOMBS])
def test_identify_with_a_bomb_for_json_is_read_or_refused(shared: Instance, body: bytes, answer: list[Frame]) -> None:
    with NSQClient(shared.tcp_address) as client:
        client.command(b"IDENTIFY", body)
        assert [client.frame()] == answer


def test_identify_larger_than_any_is_refused_before_it_is_there(gnsqd: Instance) -> None:
    # The real daemon takes up to max-body-size, five million bytes of JSON, and has a core for each.
    with NSQClient(gnsqd.tcp_address) as client:
        client.send(b"IDENTIFY\n" + struct.pack(">i", LARGEST + 1))
        assert client.frame() == (ERROR, b"E_BAD_BODY IDENTIFY body too big 32769 > 32768")
        assert client.recv_until_closed() == b""


def test_value_for_an_option_that_is_a_bomb_is_refused(shared: Instance) -> None:
    too_large = 413 if shared.command == own_command() else 400  # the real daemon has max-msg-size for it
    for body, status in (
        (filled(b"", b"[", b""), 400),
        (filled(b"[", b"{},", b"{}]"), 400),
        (filled(b"", b"9", b""), 400),
        (b"[" * (LARGEST + 1), too_large),
        (b"[" * (1 << 20), too_large),
    ):
        answer = ask(shared, "PUT /config/nsqlookupd_tcp_addresses", body)
        assert answer == (status, message("INVALID_VALUE")), body[:30]
