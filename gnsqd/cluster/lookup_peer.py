"""The connection to one nsqlookupd, and the queue of commands for it (NSQD-COMPAT section 6.1).

The first command opens the connection, and so does the next one after it broke. A connection begins with IDENTIFY and a
REGISTER of everything, so commands that cannot be sent are dropped: the queue when connecting fails, and a queue that
is too long together with its connection. The real nsqlookupd keeps an ephemeral name until an UNREGISTER of it finds no
producer left. So a new connection also sends that for names that have gone, and the last one sends the queue and an
UNREGISTER of every ephemeral name.
"""

import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

from gevent import Greenlet, Timeout

from gnsqd.gotext import Struct, decode_object, dumps, quote
from gnsqd.hub.doorbell import Doorbell
from gnsqd.log import Logger
from gnsqd.net.addresses import Socket, dial_address, reason
from gnsqd.shared.errors import NSQError
from gnsqd.shared.names import is_ephemeral

MAGIC_V1 = b"  V1"
PING_INTERVAL = 15.0  # seconds
MAX_EVENTS = 1000
CONNECT_TIMEOUT = 1.0  # seconds
IO_TIMEOUT = 1.0  # to send a command, and for its whole answer; also for all that is sent last

_SIZE = struct.Struct(">i")
_MAX_ANSWER = 16 * 1024  # bytes; it is a few words, or IDENTIFY's small JSON, and large JSON takes long to parse
_SHOWN = 200  # bytes of an answer that makes no sense
_INFO = Struct(
    "nsqd.peerInfo", {"tcp_port": "int", "http_port": "int", "version": "string", "broadcast_address": "string"}
)

Identity = Callable[[str], dict[str, object]]  # the fields of IDENTIFY, for a local IP address
Registrations = Callable[[], list[tuple[str, list[str]]]]  # topic names, each with the names of its channels


class LookupdError(NSQError):
    """A command failed, which is "" if connecting failed; `ended` is True if the peer closed the connection."""

    def __init__(self, command: str, text: str, ended: bool = False) -> None:
        super().__init__(text)
        self.command = command
        self.ended = ended


class LookupdInfo(NamedTuple):
    """An nsqlookupd's description of itself."""

    tcp_port: int = 0
    http_port: int = 0
    version: str = ""
    broadcast_address: str = ""

    def __str__(self) -> str:
        """Returns the text that the real daemon logs."""
        ports = f"TCPPort:{self.tcp_port} HTTPPort:{self.http_port}"
        return f"{{{ports} Version:{self.version} BroadcastAddress:{self.broadcast_address}}}"


class LookupPeer:
    """Owns the connection to the nsqlookupd at `address`; one greenlet at a time may use it. `identity` and
    `registrations` return what to send, `note_failure` is called when a command failed; none of them yields. `loop` is
    the greenlet of lookupLoop."""

    def __init__(
        self,
        address: str,
        identity: Identity,
        registrations: Registrations,
        note_failure: Callable[[], None],
        max_body_size: int,
        log: Logger,
    ) -> None:
        self.address = address
        self.info = LookupdInfo()  # kept when the connection breaks
        self.loop: Greenlet[..., None]
        self.connected = False  # and all that there was when the connection was made is registered
        self._identity = identity
        self._registrations = registrations
        self._note_failure = note_failure
        self._max_answer = min(max_body_size, _MAX_ANSWER)
        self._log = log
        self._socket: Socket | None = None
        self._events: deque[tuple[str, str]] = deque()
        self._doorbell = Doorbell()
        self._overrun = False
        self._is_ending = False
        self._ephemeral: set[str] = set()  # `topic`s and `topic channel`s that were registered, and not unregistered

    def queue_command(self, kind: str, command: str) -> None:
        """Queues a command about a topic or a channel, by `kind`. Never yields."""
        if len(self._events) < MAX_EVENTS:
            self._events.append((kind, command))
        else:
            self._events.clear()
            self._overrun = True
        self._doorbell.ring()

    def end(self) -> None:
        """Lets lookupLoop return: at once without a connection, otherwise after it has sent the rest. Never yields."""
        self._is_ending = True
        self._doorbell.ring()
        if self._socket is None:
            self.loop.kill(block=False)

    def lookupLoop(self) -> None:
        """Registers everything, then what changes, and sends PING, until `end`."""
        try:
            ping_at = monotonic() + PING_INTERVAL
            self._attempt()
            while not self._is_ending:
                wait = ping_at - monotonic()
                if self._overrun:
                    self._log.warn("LOOKUPD(%s): too far behind, registering everything again", self.address)
                    self._overrun = False
                    self.close()
                    self._attempt()
                elif wait <= 0:
                    self._log.debug("LOOKUPD(%s): sending heartbeat", self.address)
                    ping_at = monotonic() + PING_INTERVAL
                    self._attempt("PING")
                elif self._events:
                    kind, command = self._events.popleft()
                    self._log.info("LOOKUPD(%s): %s %s", self.address, kind, command)
                    self._attempt(command)
                else:
                    self._doorbell.wait(wait)
            if self.connected:
                self._take_leave()
        finally:
            self.close()

    def _take_leave(self) -> None:
        """Sends the queue, and UNREGISTER of all ephemeral names, at once and within IO_TIMEOUT. Yields."""
        for _, command in self._events:
            self._note(command)
        names = sorted(self._ephemeral, reverse=True)  # a channel before its topic
        self._events += [("channel" if " " in name else "topic", f"UNREGISTER {name}") for name in names]
        for kind, command in self._events:
            self._log.info("LOOKUPD(%s): %s %s", self.address, kind, command)
        assert self._socket is not None
        with suppress(OSError, EOFError, ValueError), Timeout(IO_TIMEOUT, TimeoutError()):
            self._socket.sendall("".join(f"{command}\n" for _, command in self._events).encode())
            for _ in self._events:
                self._receive_answer()

    def _attempt(self, command: str = "") -> None:
        connected = self.connected
        try:
            self.command(command)
        except LookupdError as error:
            self._log.error("LOOKUPD(%s): %s - %s", self.address, error.command or command or "connect", error)
            self._note_failure()
            if not connected:
                self._events.clear()
            elif error.ended:  # it was restarted, perhaps, and the next PING would be long in coming
                self._attempt()

    def command(self, command: str) -> None:
        """Connects and registers, unless that is done. Then sends the command, unless it is empty, and waits for its
        answer, which may be an error. Raises LookupdError. Yields."""
        if not self.connected:
            self._connect()
        if command:
            self._exchange(command)

    def _connect(self) -> None:
        self._log.info("LOOKUP connecting to %s", self.address)
        try:
            self._socket = dial_address(self.address, CONNECT_TIMEOUT)
            local_host = self._socket.getsockname()[0].removeprefix("::ffff:")
        except OSError as error:
            self.close()
            raise LookupdError("", str(error)) from error
        self._identify(local_host)
        registrations = self._registrations()
        names = [f"{topic} {channel}".rstrip() for topic, channels in registrations for channel in channels or [""]]
        gone = self._ephemeral.difference(names, [topic for topic, _ in registrations])
        for command in [*(f"REGISTER {name}" for name in names), *(f"UNREGISTER {name}" for name in gone)]:
            if self._is_ending:
                break
            self._log.info("LOOKUPD(%s): %s", self.address, command)
            self._exchange(command)
        self.connected = True

    def _identify(self, local_host: str) -> None:
        identity = dumps(dict(sorted(self._identity(local_host).items()))).encode()
        answer = self._exchange("IDENTIFY", _SIZE.pack(len(identity)) + identity, MAGIC_V1)
        try:
            info = LookupdInfo(**decode_object(answer, _INFO))
            if not str(info).isprintable():
                raise ValueError("control characters")  # would make up lines in the log
        except ValueError as error:
            self.close()
            raise LookupdError("parsing response", quote(answer[:_SHOWN])) from error
        self.info = info
        self._log.info("LOOKUPD(%s): peer info %s", self.address, info)
        if not info.broadcast_address:
            self._log.error("LOOKUPD(%s): no broadcast address", self.address)

    def _exchange(self, command: str, body: bytes = b"", magic: bytes = b"") -> bytes:
        assert self._socket is not None
        if command.startswith("REGISTER"):
            self._note(command)
        try:
            with Timeout(IO_TIMEOUT, TimeoutError()):
                self._socket.sendall(b"%b%b\n%b" % (magic, command.encode(), body))
            with Timeout(IO_TIMEOUT, TimeoutError()):
                answer = self._receive_answer()
            self._note(command)
            return answer
        except (OSError, EOFError, ValueError) as error:
            self.close()
            text = reason(error) if isinstance(error, OSError) else str(error)
            raise LookupdError(command, text, isinstance(error, (EOFError, ConnectionError))) from error

    def _receive_answer(self) -> bytes:
        """Raises OSError, EOFError, or ValueError if it is too long. Yields."""
        assert self._socket is not None
        (size,) = _SIZE.unpack(_receive(self._socket, _SIZE.size))
        if not 0 <= size <= self._max_answer:
            raise ValueError(f"response body size ({size}) is greater than limit ({self._max_answer})")
        return _receive(self._socket, size)

    def _note(self, command: str) -> None:
        """Keeps track of the ephemeral names at nsqlookupd, where a channel registers its topic too."""
        verb, _, name = command.partition(" ")
        if verb == "REGISTER":
            self._ephemeral.update(filter(is_ephemeral, (name, name.partition(" ")[0])))
        elif verb == "UNREGISTER":
            self._ephemeral.discard(name)

    def close(self) -> None:
        """Closes the connection, if there is one."""
        self.connected = False
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _receive(sock: Socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        received = sock.recv(size - len(data))
        if not received:
            raise EOFError("EOF")
        data += received
    return bytes(data)
