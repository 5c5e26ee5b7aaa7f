"""The TCP server of protocol V1, which nsqds use to register: PING, IDENTIFY, REGISTER, UNREGISTER (NSQD-COMPAT 6.2).

Each client has a greenlet of its own. A command is a line of words, after IDENTIFY with an int32 size and that many
bytes of JSON. Every error ends the connection, after it was sent as a reply.
"""

import socket
from contextlib import suppress
from functools import partial
from struct import Struct as Format
from time import monotonic

from gevent import Greenlet

from gnsqd.gotext import Struct, decode_object, dumps, format_duration
from gnsqd.hub.cooperative import Spawn, Turns
from gnsqd.log import Logger
from gnsqd.lookupd.registration_db import PeerInfo, RegistrationDB
from gnsqd.net.connection import Connection
from gnsqd.net.listener import HTTP_MAGICS, Listener
from gnsqd.options import SECOND, LookupdOptions
from gnsqd.shared.errors import NSQError
from gnsqd.shared.names import TooMany, is_valid_name
from gnsqd.shared.record import Record
from gnsqd.shared.version import NSQD_VERSION

MAGIC_V1 = b"  V1"
MAX_LINE = 16384  # bytes, with the line feed
MAX_REPLIES = 65536  # bytes that are collected
MAX_BODY = 16384  # bytes of IDENTIFY's JSON
SEND_TIMEOUT = 60.0  # seconds

_SIZE = Format(">i")
_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))  # Go's
_PEER_INFO = Struct(
    "nsqlookupd.PeerInfo",
    {
        "remote_address": "string",
        "hostname": "string",
        "broadcast_address": "string",
        "tcp_port": "int",
        "http_port": "int",
        "version": "string",
    },
)
# Unknown to v1.3.0, which therefore accepts any type.
_TOPOLOGY = [Struct(_PEER_INFO.name, {name: "string"}) for name in ("topology_zone", "topology_region")]
_REQUIRED = ("broadcast_address", "tcp_port", "http_port", "version")


class CommandRefused(NSQError):
    """A command is refused, and the connection ends; str() is the reply, `cause` follows it in the log."""

    def __init__(self, code: str, text: str, cause: Exception | None = None) -> None:
        super().__init__(f"{code} {text}")
        self.cause = cause


class ClientV1:
    """Owns a connection, which is read by lines; str() is its remote address. Replies have an int32 size and no type.
    They are collected while commands are at hand, and sent before the connection is read again."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._buffer = b""
        self._position = 0
        self._replies = bytearray()

    def __str__(self) -> str:
        return self.connection.remote_address

    # Reading

    def read(self, size: int) -> bytes:
        """Reads `size` bytes; raises EOFError with Go's text, or as `Connection.receive`."""
        while len(self._buffer) - self._position < size:
            if not self._receive():
                raise EOFError("unexpected EOF" if len(self._buffer) > self._position else "EOF")
        return self._take(size)

    def read_line(self) -> bytes:
        """Reads a line with its line feed; raises CommandRefused, EOFError, or as `read`."""
        searched = self._position
        while (end := self._buffer.find(b"\n", searched, self._position + MAX_LINE)) < 0:
            searched = len(self._buffer)
            if searched - self._position >= MAX_LINE:
                raise CommandRefused("E_INVALID", f"command line is longer than {MAX_LINE} bytes")
            searched -= self._position
            if not self._receive():
                raise EOFError("EOF")
        return self._take(end + 1 - self._position)

    def _take(self, size: int) -> bytes:
        start = self._position
        self._position += size
        return self._buffer[start : self._position]

    def _receive(self) -> bool:
        """Sends the replies and reads more; returns False at the end of the stream. Sets the position to 0."""
        self.flush()
        data = self.connection.receive()
        self._buffer = self._buffer[self._position :] + data
        self._position = 0
        return bool(data)

    # Writing

    def reply(self, data: bytes) -> None:
        """Queues a reply. May send; then raises as `Connection.send`."""
        self._replies += _SIZE.pack(len(data)) + data
        if len(self._replies) >= MAX_REPLIES:
            self.flush()

    def flush(self) -> None:
        """Sends the replies; raises as `Connection.send`."""
        if self._replies:
            replies, self._replies = bytes(self._replies), bytearray()
            self.connection.send([replies])


class LookupTCPServer(Record):
    """Owns the clients of one listener; `http_port` is for answers to IDENTIFY."""

    listener: Listener
    _http_port: int
    _db: RegistrationDB
    _options: LookupdOptions
    _log: Logger
    _spawn: Spawn

    def __post_init__(self) -> None:
        self._clients: set[ClientV1] = set()

    def serve(self) -> None:
        """Accepts clients until `close`; raises ListenerBroken if the listener breaks."""
        self.listener.serve("TCP", self._log, self._spawn_client, self._options.max_tcp_connections)

    def shutdown(self, at_once: bool) -> None:
        """Ends all clients as `Server` specifies, at once in any case."""
        self.listener.close()
        for client in list(self._clients):
            client.connection.shutdown()

    def _spawn_client(self, sock: socket.socket, address: str) -> "Greenlet[..., None]":
        client = ClientV1(Connection(sock, address))
        client.connection.write_timeout = SEND_TIMEOUT
        self._clients.add(client)
        return self._spawn(f"IOLoop:{address}", partial(self._handle, client))

    def _handle(self, client: ClientV1) -> None:
        self._log.info("TCP: new client(%s)", client)
        try:
            if self._read_magic(client):
                self.IOLoop(client)
        except (EOFError, OSError, CommandRefused) as error:
            self._log.error("client(%s) - %s", client, error)
        finally:
            self._clients.discard(client)
            client.connection.close()

    def _read_magic(self, client: ClientV1) -> bool:
        if self._options.magic_timeout > 0:
            client.connection.read_deadline = monotonic() + self._options.magic_timeout / SECOND
        try:
            magic = client.read(len(MAGIC_V1))
        except (EOFError, OSError) as error:
            self._log.error("failed to read protocol version - %s", error)
            return False
        client.connection.read_deadline = 0.0
        shown = magic.decode("utf-8", "backslashreplace")
        self._log.info("CLIENT(%s): desired protocol magic '%s'", client, shown)
        if magic == MAGIC_V1:
            return True
        client.reply(b"E_BAD_PROTOCOL")
        client.flush()
        self._log.error("client(%s) bad protocol magic '%s'", client, shown)
        if magic in HTTP_MAGICS:
            self.listener.hint(self._log, "TCP", str(client), "HTTP")
        return False

    def IOLoop(self, client: ClientV1) -> None:
        """Executes commands until the client is gone or in error; raises OSError, EOFError or CommandRefused."""
        peer: PeerInfo | None = None
        turns = Turns()
        try:
            while True:
                line = client.read_line().decode("utf-8", "surrogateescape").strip(_SPACES)
                command, *parameters = line.split(" ")
                match command:
                    case "PING":
                        if peer is not None:
                            elapsed = format_duration(peer.note_update())
                            self._log.info("CLIENT(%s): pinged (last ping %s)", client, elapsed)
                        client.reply(b"OK")
                    case "IDENTIFY":
                        if peer is not None:
                            raise CommandRefused("E_INVALID", "cannot IDENTIFY again")
                        peer = self._identify(client)
                        row: dict[str, object] = {"broadcast_address": self._options.broadcast_address}
                        row |= {"hostname": socket.gethostname(), "http_port": self._http_port}
                        row |= {"tcp_port": self.listener.port, "version": NSQD_VERSION}
                        client.reply(dumps(row).encode())
                    case "REGISTER" | "UNREGISTER":
                        self._change(peer, command, parameters)
                        client.reply(b"OK")
                    case _:
                        raise CommandRefused("E_INVALID", f"invalid command {command}")
                turns.give()
        except CommandRefused as error:
            self._log.error("[%s] - %s%s", client, error, "" if error.cause is None else f" - {error.cause}")
            client.reply(str(error).encode("utf-8", "surrogateescape"))
            client.flush()
            raise
        finally:
            self._log.info("PROTOCOL(V1): [%s] exiting ioloop", client)
            if peer is not None:
                for _ in Turns().over(self._db.disconnect(peer)):
                    pass

    def _identify(self, client: ClientV1) -> PeerInfo:
        step = "read body size"
        try:
            (size,) = _SIZE.unpack(client.read(_SIZE.size))
            step = "read body"
            if not 0 <= size <= MAX_BODY:
                raise ValueError(f"size {size} is not in [0,{MAX_BODY}]")
            body = client.read(size)
            step = "decode JSON body"
            fields = decode_object(body, _PEER_INFO)
        except (EOFError, OSError, ValueError) as error:
            raise CommandRefused("E_BAD_BODY", f"IDENTIFY failed to {step}", error) from error
        if not all(fields.get(name) for name in _REQUIRED):
            raise CommandRefused("E_BAD_BODY", "IDENTIFY missing fields")
        fields.pop("remote_address", None)
        for struct in _TOPOLOGY:
            with suppress(ValueError):
                fields |= decode_object(body, struct)
        peer = PeerInfo(str(client), **fields)
        described = (peer.broadcast_address, peer.tcp_port, peer.http_port, peer.version)
        self._log.info("CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s", client, *described)
        self._db.connect(peer)
        return peer

    def _change(self, peer: PeerInfo | None, command: str, parameters: list[str]) -> None:
        if peer is None:
            raise CommandRefused("E_INVALID", "client must IDENTIFY")
        if not parameters:
            raise CommandRefused("E_INVALID", f"{command} insufficient number of params")
        topic, channel = parameters[0], "".join(parameters[1:2])
        if not is_valid_name(topic):
            raise CommandRefused("E_BAD_TOPIC", f"{command} topic name '{topic}' is not valid")
        if channel and not is_valid_name(channel):
            raise CommandRefused("E_BAD_CHANNEL", f"{command} channel name '{channel}' is not valid")
        change = self._db.register if command == "REGISTER" else self._db.unregister
        try:
            change(peer, topic, channel)
        except TooMany as error:
            raise CommandRefused("E_REGISTER_FAILED", f"REGISTER failed {error}") from error
