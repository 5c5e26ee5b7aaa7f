"""A client that cuts, holds back and damages what it sends, and stalls where it should read."""

import json
import random
import re
import socket
import ssl
import struct
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple
from zlib import crc32

from gnsqd.net.stream import DeflateLayer
from gnsqd.shared.errors import NSQError
from kit.nsq_client import HEARTBEAT, MESSAGE, parse_message, sized
from kit.upgraded_client import tls_client_context

ANSWERS = (b"REQ ID 0\n", b"TOUCH ID\nFIN ID\n", b"FIN ID\nTOUCH ID\n", b"FIN ID\n")  # to a message, by its CRC
GOODBYE = b""  # among commands: the end of our direction of TLS


class TLSClient:
    """The client's end of TLS, as a layer, which may have to send something after each `decode`."""

    pending = False

    def __init__(self, version: str) -> None:
        self._input, self._output = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls_client_context(version).wrap_bio(self._input, self._output)

    def decode(self, data: bytes) -> bytes:
        self._input.write(data)
        plain = b""
        with suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while piece := self._tls.read(1 << 17):  # and shakes hands
                plain += piece
        return plain

    def encode(self, data: bytes) -> bytes:
        if data:
            self._tls.write(data)
        return self._output.read()

    def end(self) -> bytes:
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        return self._output.read()


class Script(NamedTuple):
    """The acts of a client, however they are cut: it puts `layers` on, sends `commands`, answers messages if it waits
    for `deliveries`, and ends its direction."""

    magic: bytes
    layers: list[str]
    commands: list[bytes]
    deliveries: int = 0


class FuzzClient:
    """`chance` cuts and stalls; `pieces` are numbers of bytes to send or receive at once."""

    def __init__(self, sock: socket.socket, script: Script, chance: random.Random, pieces: tuple[int, ...]) -> None:
        self.sock, self.script, self._chance, self._pieces = sock, script, chance, pieces
        self.frames: list[tuple[int, bytes]] = []  # without ids
        self.deliveries: list[tuple[bytes, int, int]] = []  # the beginnings and CRCs of bodies, and attempts
        self.ended = False
        self.active_at = monotonic()
        self.tls: TLSClient | None = None
        self._layers: list[Any] = []
        self._commands = iter(script.commands)
        layers = {name.replace("tls1.2", "tls_v1").replace("tls1.3", "tls_v1"): True for name in script.layers}
        body = json.dumps({"feature_negotiation": True, "output_buffer_timeout": 25, **layers}).encode()
        self._unsent, self._unread = bytearray(script.magic + b"IDENTIFY\n" + sized(body)), b""
        self._sends = True
        sock.setblocking(False)

    def step(self) -> None:
        """Sends some, and receives some."""
        try:
            if self._sends:
                self._send()
        except OSError as error:  # what was sent before can still be received
            self._sends = isinstance(error, BlockingIOError)
        try:
            if self._chance.random() < 0.8:
                data = self.sock.recv(self._chance.choice(self._pieces))
                self.active_at = monotonic()
                self._take(data)
                if not data:
                    self.end()
        except BlockingIOError:
            pass
        except (OSError, NSQError):  # SSLError is an OSError
            self.end()

    def _send(self) -> None:
        if not self._unsent and (not self.script.layers or len(self.frames) > len(self.script.layers)):
            command = next(self._commands, None)
            if command == GOODBYE and self.tls:
                self._unsent += self.tls.end()
                self._commands = iter(())
            elif command is not None:
                self._write(command)
            elif len(self.deliveries) >= self.script.deliveries:
                self._sends = False
                self.sock.shutdown(socket.SHUT_WR)
        if self._unsent:
            del self._unsent[: self.sock.send(self._unsent[: self._chance.choice(self._pieces)])]
            self.active_at = monotonic()

    def _write(self, data: bytes) -> None:
        for layer in reversed(self._layers):
            data = layer.encode(data)
        self._unsent += data

    def _take(self, data: bytes, first: int = 0) -> None:
        for layer in self._layers[first:]:
            data = layer.decode(data)
            while layer.pending:
                data += layer.decode(b"")
            if isinstance(layer, TLSClient):
                self._unsent += layer.encode(b"")
        self._unread += data
        while len(self._unread) >= 8:
            size, kind = struct.unpack_from(">ii", self._unread)
            if not 4 <= size <= len(self._unread) - 4:
                break
            data, self._unread = self._unread[8 : 4 + size], self._unread[4 + size :]
            self._take_frame(kind, data)

    def _take_frame(self, kind: int, data: bytes) -> None:
        if kind == MESSAGE:
            message = parse_message(data)
            self.deliveries.append((message.body[:6], crc32(message.body), message.attempts))
            if self.script.deliveries:
                self._write(ANSWERS[crc32(message.body) % 4 if message.attempts == 1 else 3].replace(b"ID", message.id))
        elif data != HEARTBEAT:
            self.frames.append((kind, re.sub(b"[0-9a-f]{16}", b"ID", data)))
            if len(self.frames) <= len(self.script.layers):
                name = self.script.layers[len(self._layers)]
                if name != "deflate":
                    self.tls = TLSClient(name)
                self._layers.append(self.tls if name != "deflate" else DeflateLayer(6))
                data, self._unread = self._unread, b""
                self._take(data, len(self._layers) - 1)

    def damage(self) -> None:
        """Changes, removes, repeats or inserts bytes of what is to be sent."""
        start, size = self._chance.randrange(len(self._unsent) or 1), self._chance.choice((1, 5, 40, 20_000))
        piece = bytes(self._unsent[start : start + size])
        changed = (bytes(byte ^ 64 for byte in piece), b"", piece * 2, self._chance.randbytes(size) + piece)
        self._unsent[start : start + size] = self._chance.choice(changed)

    def end(self) -> None:
        self.ended = True
        self.sock.close()
