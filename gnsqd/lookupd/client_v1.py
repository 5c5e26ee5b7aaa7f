"""One client of nsqlookupd: its connection, read by lines, and its registrations.

Replies have an int32 size and no type. They are collected while commands are at hand, and sent before the connection is
read again.
"""

from struct import Struct

from gnsqd.gotext import format_duration
from gnsqd.hub.cooperative import Turns
from gnsqd.log import Logger
from gnsqd.lookupd.registration_db import PeerInfo, RegistrationDB
from gnsqd.net.connection import Connection
from gnsqd.shared.errors import NSQError

MAX_LINE = 16384  # bytes, with the line feed
MAX_REPLIES = 65536  # bytes that are collected

_SIZE = Struct(">i")


class CommandRefused(NSQError):
    """A command is refused, and the connection ends; str() is the reply, `cause` follows it in the log."""

    def __init__(self, code: str, text: str, cause: Exception | None = None) -> None:
        super().__init__(f"{code} {text}")
        self.cause = cause


class StreamEnded(NSQError):
    """The stream ended; str() is Go's text."""


class ClientV1:
    """Owns a connection. str() is its remote address."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._buffer = b""
        self._position = 0
        self._replies = bytearray()

    def __str__(self) -> str:
        return self.connection.remote_address

    # Reading

    def read(self, size: int) -> bytes:
        """Reads `size` bytes; raises StreamEnded, or as `Connection.receive`."""
        while len(self._buffer) - self._position < size:
            if not self._receive():
                cut = len(self._buffer) > self._position
                raise StreamEnded("unexpected EOF" if cut else "EOF")
        return self._take(size)

    def read_size(self) -> int:
        """Reads an int32; raises as `read`."""
        size: int = _SIZE.unpack(self.read(_SIZE.size))[0]
        return size

    def read_line(self) -> bytes:
        """Reads a line with its line feed; raises CommandRefused, StreamEnded, or as `read`."""
        searched = self._position
        while (end := self._buffer.find(b"\n", searched, self._position + MAX_LINE)) < 0:
            searched = len(self._buffer)
            if searched - self._position >= MAX_LINE:
                raise CommandRefused("E_INVALID", f"command line is longer than {MAX_LINE} bytes")
            searched -= self._position
            if not self._receive():
                raise StreamEnded("EOF")
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
            self.connection.send(replies)


class Registrant:
    """Changes the database for one nsqd, and logs the lines of nsqlookupd."""

    def __init__(self, db: RegistrationDB, peer: PeerInfo, log: Logger) -> None:
        self._db = db
        self._log = log
        self.peer = peer
        db.clients[peer.id] = peer
        self._log_change("REGISTER", "client")

    def _log_change(self, what: str, category: str, topic: str = "", channel: str = "") -> None:
        line = "DB: client(%s) %s category:%s key:%s subkey:%s"
        self._log.info(line, self.peer.id, what, category, topic, channel)

    def register(self, topic: str, channel: str) -> None:
        """Registers for a topic, and for a channel of it unless that is ""; raises TooMany."""
        for registration in self._db.register(self.peer, topic, channel):
            self._log_change("REGISTER", *registration)

    def unregister(self, topic: str, channel: str) -> None:
        """Removes a registration; a topic goes with its channels. May yield without a channel."""
        if channel:
            if self._db.unregister_channel(self.peer, topic, channel):
                self._log_change("UNREGISTER", "channel", topic, channel)
            return
        for name in Turns().over(self._db.channel_names(topic)):
            if self._db.remove_from_channel(self.peer, topic, name):
                line = "client(%s) unexpected UNREGISTER category:channel key:%s subkey:%s"
                self._log.warn(line, self.peer.id, topic, name)
        self.unregister_topic(topic)

    def unregister_topic(self, topic: str) -> None:
        """Removes the registration for a topic, and not for channels that it may still have."""
        if self._db.unregister_topic(self.peer, topic):
            self._log_change("UNREGISTER", "topic", topic)

    def ping(self) -> None:
        """Reports that the nsqd is alive."""
        self._log.info("CLIENT(%s): pinged (last ping %s)", self.peer.id, format_duration(self.peer.note_update()))

    def disconnect(self) -> None:
        """Removes the nsqd. May yield."""
        for registration in Turns().over(self._db.disconnect(self.peer)):
            self._log_change("UNREGISTER", *registration)
