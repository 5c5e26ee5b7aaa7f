"""Upgraded connections to Go's implementations: our layers as client of the real nsqd, and as server of to_nsq."""

import json
import random
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gnsqd.net.stream import DeflateLayer, Layer, SnappyLayer, Stack
from gnsqd.net.tls import TLSLayer, build_context
from gnsqd.options import Options
from kit.certificates import issue
from kit.daemons import DEADLINE, Daemon
from kit.nsq_client import RESPONSE
from kit.upgraded_client import Compression, UpgradedClient, tls_client_context

pytestmark = pytest.mark.peer

UPGRADES: list[dict[str, Any]] = [
    {"snappy": True},
    {"deflate": True, "deflate_level": 6},
    {"tls_v1": True},
    {"tls_v1": True, "snappy": True},
    {"tls_v1": True, "deflate": True, "deflate_level": 1},
]
upgrades = pytest.mark.parametrize(
    "upgrade", UPGRADES, ids=["+".join(name for name in names if name != "deflate_level") for names in UPGRADES]
)

OK_FRAME = b"\0\0\0\x06\0\0\0\0OK"


def compression(upgrade: dict[str, Any]) -> Layer | None:
    if upgrade.get("snappy"):
        return SnappyLayer()
    if upgrade.get("deflate"):
        return DeflateLayer(upgrade["deflate_level"])
    return None


class OurCompression:
    """One of our layers, as the client for tests needs it."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self.flushed = True
        self.encode = layer.encode

    def decode(self, raw: bytes) -> bytes:
        pieces = [self._layer.decode(raw)]
        while self._layer.pending:
            pieces.append(self._layer.decode(b""))
        return b"".join(pieces)


class OurClient(UpgradedClient):
    """The client for tests, with compression by our layers."""

    def _agreed_compression(self) -> Compression | None:
        layer = compression(self.answer)
        return None if layer is None else OurCompression(layer)


class Plain:
    """The layer of a connection without upgrades."""

    pending = ended = False
    cut_off = ""

    def encode(self, data: bytes) -> bytes:
        return data

    def decode(self, data: bytes) -> bytes:
        return data


@upgrades
def test_bodies_pass_the_real_nsqd_both_ways(
    upgrade: dict[str, Any], peer_binary: Callable[[str], Path], tmp_path: Path
) -> None:
    cert, key = issue("server").write(tmp_path / "server")
    flags = [f"--tls-cert={cert}", f"--tls-key={key}", "--https-address="]
    randomness = random.Random(3)
    bodies = [randomness.randbytes(size) for size in (1, 100, 16384, 65535, 65536, 65537, 1 << 20)]
    bodies += [b"a" * (1 << 20), b"b"]
    daemon = Daemon([str(peer_binary("nsqd"))], tmp_path / "data", *flags)
    with daemon.start(), OurClient(daemon.tcp_address, tls_client_context(), **upgrade) as client:
        for body in bodies:
            client.publish("test", body)
        client.publish("test", *bodies[:4])
        client.subscribe("test", "channel", rdy=1)
        for expected in bodies + bodies[:4]:
            message = client.message()
            assert message.body == expected
            client.command(b"FIN " + message.id)


class Server:
    """The IDENTIFY of an nsqd with one connection, then bytes through the negotiated layers; blocking."""

    sock: socket.socket

    def __init__(self, options: Options, upgrade: dict[str, Any]) -> None:
        self.options = options
        self.upgrade = upgrade
        self.layer: Layer = Plain()
        self.plain = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(DEADLINE)
        self.address = "{}:{}".format(*self._listener.getsockname())

    def accept(self) -> None:
        """Take the connection and answer IDENTIFY with every upgrade and its `OK`."""
        self.sock, _ = self._listener.accept()
        self.sock.settimeout(DEADLINE)
        assert self.read(4) == b"  V2"
        assert self.line() == b"IDENTIFY"
        wanted = json.loads(self.read(struct.unpack(">i", self.read(4))[0]))
        assert {name: wanted[name] for name in self.upgrade} == self.upgrade
        answer = json.dumps(
            {"max_rdy_count": 2500, "version": "1.3.0", "max_deflate_level": 6, **self.upgrade}
        ).encode()
        self.send(struct.pack(">ii", len(answer) + 4, RESPONSE) + answer)
        assert not self.plain
        if self.upgrade.get("tls_v1"):
            context = build_context(self.options)
            assert context is not None
            layer = TLSLayer(context)
            while not layer.established:
                self.sock.sendall(layer.handshake(self.sock.recv(65536)))
            assert layer.version == "TLS1.2"  # the client library offers no more
            self.layer = layer
            self.send(OK_FRAME)
        if (upper := compression(self.upgrade)) is not None:
            self.layer = Stack(self.layer, upper)
            self.send(OK_FRAME)

    def send(self, data: bytes) -> None:
        self.sock.sendall(self.layer.encode(data))

    def receive(self) -> None:
        if self.layer.pending:
            self.plain += self.layer.decode(b"")
        else:
            data = self.sock.recv(65536)
            assert data, "closed by the client"
            self.plain += self.layer.decode(data)

    def read(self, size: int) -> bytes:
        while len(self.plain) < size:
            self.receive()
        data, self.plain = self.plain[:size], self.plain[size:]
        return data

    def line(self) -> bytes:
        while b"\n" not in self.plain:
            self.receive()
        line, _, self.plain = self.plain.partition(b"\n")
        return line

    def close(self) -> None:
        self._listener.close()
        if hasattr(self, "sock"):
            self.sock.close()


@upgrades
def test_go_client_publishes_through_our_layers(
    upgrade: dict[str, Any], peer_binary: Callable[[str], Path], tmp_path: Path
) -> None:
    cert, key = issue("server").write(tmp_path / "server")
    server = Server(Options(tls_cert=cert, tls_key=key), upgrade)
    randomness = random.Random(4)
    bodies = [b"a", b"b" * 300_000, bytes(randomness.choices(range(0x20, 0x7F), k=200_000)), b"c"]
    settings = {**upgrade, **({"tls_insecure_skip_verify": True} if "tls_v1" in upgrade else {})}
    command = [str(peer_binary("to_nsq")), f"--nsqd-tcp-address={server.address}", "--topic=test"]
    command += [f"--producer-opt={name},{str(value).lower()}" for name, value in settings.items()]
    (tmp_path / "lines").write_bytes(b"".join(body + b"\n" for body in bodies))
    with (tmp_path / "lines").open("rb") as lines, subprocess.Popen(command, stdin=lines) as client:
        try:
            server.accept()
            for expected in bodies:
                assert server.line() == b"PUB test"
                assert server.read(struct.unpack(">i", server.read(4))[0]) == expected
                server.send(OK_FRAME)
            client.wait(DEADLINE)
        finally:
            client.kill()
            server.close()
