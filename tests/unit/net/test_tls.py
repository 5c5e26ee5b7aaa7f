"""The TLS layer: bytes in the order and the pieces that no client chooses; the peer is pyOpenSSL on memory BIOs."""

import contextlib
import random
from pathlib import Path

import pytest
from OpenSSL import SSL

from gnsqd.net.stream import StreamError
from gnsqd.net.tls import TLSLayer, build_context
from gnsqd.options import Options
from kit.certificates import issue

OK_FRAME = b"\0\0\0\x06\0\0\0\0OK"


class TLSPair:
    """A TLS client and the layer that serves it, between which the test carries the bytes."""

    def __init__(self, directory: Path, version: int) -> None:
        cert, key = issue("server").write(directory / "server")
        context = build_context(Options(tls_cert=cert, tls_key=key))
        assert context is not None
        self.layer = TLSLayer(context)
        client = SSL.Context(SSL.TLS_CLIENT_METHOD)
        client.set_max_proto_version(version)
        self.tls = SSL.Connection(client, None)
        self.tls.set_connect_state()

    def handshake(self, step: int = 1 << 20) -> "TLSPair":
        """Gives the layer `step` bytes at a time."""
        while not self.layer.established:
            with contextlib.suppress(SSL.WantReadError):
                self.tls.do_handshake()
            raw = self.tls.bio_read(65536)
            for start in range(0, len(raw), step):
                if reply := self.layer.handshake(raw[start : start + step]):
                    self.tls.bio_write(reply)
        self.tls.do_handshake()
        self.layer.decode(b"")
        return self

    def write(self, data: bytes) -> bytes:
        self.tls.sendall(data)
        raw = b""
        with contextlib.suppress(SSL.WantReadError):
            while True:
                raw += self.tls.bio_read(65536)
        return raw


@pytest.fixture(params=[SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION], ids=["tls1.2", "tls1.3"])
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> TLSPair:
    return TLSPair(tmp_path, request.param)


def test_bytes_behind_the_handshake_are_pending(tmp_path: Path) -> None:
    peer = TLSPair(tmp_path, SSL.TLS1_3_VERSION)
    with pytest.raises(SSL.WantReadError):
        peer.tls.do_handshake()
    peer.tls.bio_write(peer.layer.handshake(peer.tls.bio_read(65536)))
    peer.tls.do_handshake()
    assert not peer.layer.pending
    peer.layer.handshake(peer.write(b"NOP\n"))  # behind the end of the handshake
    assert (peer.layer.established, peer.layer.pending) == (True, True)
    assert peer.layer.decode(b"") == b"NOP\n"
    assert not peer.layer.pending


def test_handshake_and_records_may_be_split_anywhere(peer: TLSPair) -> None:
    layer = peer.handshake(step=1).layer
    raw = peer.write(b"PUB test\n")
    for position in range(len(raw) + 1):
        assert layer.decode(raw[:position]) + layer.decode(raw[position:]) == b"PUB test\n"
        raw = peer.write(b"PUB test\n")  # records are numbered: each can be sent once
    assert layer.decode(raw) == b"PUB test\n"
    randomness = random.Random(1)
    body = randomness.randbytes(300_000)
    raw, received = peer.write(body), b""
    while raw:
        step = randomness.choice([1, 100, 16384, 65536])
        received += layer.decode(raw[:step])
        raw = raw[step:]
    assert received == body
    assert layer.encode(b"") == b""


def test_an_answer_of_tls_itself_goes_with_the_next_bytes(tmp_path: Path) -> None:
    peer = TLSPair(tmp_path, SSL.TLS1_2_VERSION).handshake()
    assert peer.tls.renegotiate()
    with pytest.raises(SSL.WantReadError):
        peer.tls.do_handshake()
    assert peer.layer.decode(peer.tls.bio_read(65536)) == b""
    peer.tls.bio_write(peer.layer.encode(b""))
    with pytest.raises(SSL.Error, match="no renegotiation"):
        peer.tls.recv(1)


def test_close_notify_is_the_end_of_the_stream(peer: TLSPair) -> None:
    layer = peer.handshake().layer
    last = peer.write(b"NOP\n")
    peer.tls.shutdown()
    assert layer.decode(last + peer.tls.bio_read(65536) + b"whatever") == b"NOP\n"
    assert layer.ended
    assert layer.decode(b"whatever") == b""


def test_damaged_record_is_a_stream_error_and_ends_both_directions(peer: TLSPair) -> None:
    layer = peer.handshake().layer
    raw = peer.write(b"NOP\n")
    with pytest.raises(StreamError, match=r"^tls: "):
        layer.decode(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(StreamError, match=r"^tls: connection has failed$"):
        layer.encode(OK_FRAME)
