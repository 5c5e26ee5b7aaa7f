"""A client of one nsqd in protocol V2 (NSQD-COMPAT section 2), on a blocking thread of a task.

Frames are taken apart in batches: `receive` reads once what is there and returns every message that is complete;
`finish` sends FIN for many at once. Sending never waits without reading, so that a daemon that waits for us to read
cannot block us for good. There is no thread for heartbeats: they are answered by whatever method is called, so one
has to be called well within a minute.
"""

import json
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterable, Sequence
from struct import Struct
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self

from gnsqd.wire.codec import FRAME_TYPE_ERROR, FRAME_TYPE_RESPONSE, MAGIC_V2
from pyspark_nsq.errors import ConnectionLost, NotAgreed, Refused
from pyspark_nsq.settings import Address, ConnectionSettings
from pyspark_nsq.tls import reason, tls_context

_FRAME_TYPE_MESSAGE = 2
_HEAD = Struct(">Ii")  # of a frame: its type counts as part of its size
_MESSAGE_HEAD = Struct(">IiqH16s")
_MESSAGE_SIZE = 30  # of a frame with an empty message
_SIZE = Struct(">I")
_LARGEST = 1 << 30  # bytes of a frame
_PIECE = 1 << 18  # bytes read at once
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_NOT_FATAL = ("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED")


class Message(NamedTuple):
    """One message as an nsqd pushed it; `id` is 16 ASCII characters."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


class Client:
    """Owns the connection. Every method may raise ConnectionLost and Refused, after which it is of no more use.

    `max_rdy_count` is the most that `ready` may ask for; `unfinished` has the ids whose FIN was refused so far, since
    they had timed out: other consumers get them again.
    """

    def __init__(self, sock: socket.socket, name: str, read_timeout: float) -> None:
        """Of a connected socket; `connect` is what one calls."""
        self.max_rdy_count = 2500
        self.unfinished: set[bytes] = set()
        self._socket = sock
        self._name = name
        self._read_timeout = read_timeout
        self._tls = False
        self._poll = select.poll()
        self._heard = time.monotonic()
        self._buffer = b""
        self._pieces: list[bytes] = []  # what came behind the buffer
        self._missing = 0  # bytes to come until the next frame is complete
        self._messages: list[Message] = []  # that came while something else was waited for
        self._responses: deque[bytes] = deque()
        self._use(sock)

    @classmethod
    def connect(cls, address: Address, settings: ConnectionSettings, *, msg_timeout_ms: int | None = None) -> Self:
        """Connect, IDENTIFY, TLS and AUTH within `settings.connect_timeout`; NotAgreed besides the usual errors."""
        host, port = address
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        deadline = time.monotonic() + settings.connect_timeout
        try:
            sock = socket.create_connection(address, settings.connect_timeout)
        except (OSError, UnicodeError) as error:
            raise ConnectionLost(f"cannot connect to nsqd {name}: {reason(error)}") from None
        client = cls(sock, name, settings.read_timeout)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client._negotiate(host, settings, msg_timeout_ms, deadline)
        except BaseException:
            client.close()
            raise
        return client

    def _use(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._poll.register(sock, select.POLLIN)

    def _negotiate(self, host: str, settings: ConnectionSettings, msg_timeout_ms: int | None, deadline: float) -> None:
        hostname = socket.gethostname()
        asked: dict[str, object] = {
            "client_id": settings.client_id or hostname.partition(".")[0],
            "hostname": hostname,
            "user_agent": settings.user_agent,
            "feature_negotiation": True,
            "tls_v1": settings.tls,
        }
        if msg_timeout_ms is not None:
            asked["msg_timeout"] = msg_timeout_ms
        body = json.dumps(asked).encode()
        self._send(MAGIC_V2 + b"IDENTIFY\n" + _SIZE.pack(len(body)) + body)
        answer = self._response(deadline)
        try:
            agreed: dict[str, Any] = json.loads(answer)
            self.max_rdy_count = int(agreed["max_rdy_count"])
            has_tls, wants_auth = bool(agreed.get("tls_v1")), bool(agreed.get("auth_required"))
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
            self._lost("does not answer IDENTIFY as nsqd does")
        if settings.tls:
            if not has_tls:
                raise NotAgreed(f"nsqd {self._name} offers no TLS, which the options ask for")
            self._start_tls(host, settings, deadline)
        if wants_auth:
            if not settings.auth_secret:
                raise NotAgreed(f"nsqd {self._name} requires authorization, but there is no option 'nsq.auth.secret'")
            secret = settings.auth_secret.encode()
            self._send(b"AUTH\n" + _SIZE.pack(len(secret)) + secret)
            self._response(deadline)

    def _start_tls(self, host: str, settings: ConnectionSettings, deadline: float) -> None:
        context = tls_context(settings)
        self._poll.unregister(self._socket)
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            self._use(context.wrap_socket(self._socket, server_hostname=settings.tls_server_name or host))
            self._tls = True
            self._expect(b"OK", deadline)
        except ssl.SSLError as error:
            raise NotAgreed(f"TLS with nsqd {self._name} failed: {reason(error)}") from None
        except OSError as error:
            self._lost(f"went away in the TLS handshake: {reason(error)}")
        except ConnectionLost as error:
            # With TLS 1.3 the first read shows that the daemon does not take our certificate.
            if isinstance(error.__context__, ssl.SSLError):
                raise NotAgreed(f"TLS with nsqd {self._name} failed: {reason(error.__context__)}") from None
            raise

    # Consuming

    def subscribe(self, topic: str, channel: str) -> None:
        """SUB, which makes the topic and the channel if they don't exist."""
        self._send(f"SUB {topic} {channel}\n".encode())
        self._expect(b"OK")

    def ready(self, count: int) -> None:
        """How many messages may be in flight to us: RDY, of at most `max_rdy_count`."""
        self._send(b"RDY %d\n" % min(count, self.max_rdy_count))

    def receive(self, timeout: float) -> list[Message]:
        """All messages that are here, after waiting up to `timeout` seconds for the first; [] if none came."""
        deadline = time.monotonic() + timeout
        if not self._messages:
            self._read()
        while not self._messages:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._poll.poll(left * 1000)
            if not self._read() and time.monotonic() - self._heard > self._read_timeout:
                self._lost(f"was silent for {self._read_timeout:g} s")
        messages, self._messages = self._messages, []
        return messages

    def poll(self) -> None:
        """Answer heartbeats, without waiting; messages that have come are for the next `receive`."""
        self._read()

    def finish(self, ids: Iterable[bytes]) -> None:
        """FIN all of them, in one send."""
        self._send(b"".join([b"FIN %b\n" % id for id in ids]))

    def requeue(self, ids: Iterable[bytes], delay_ms: int = 0) -> None:
        """REQ all of them, in one send."""
        self._send(b"".join([b"REQ %b %d\n" % (id, delay_ms) for id in ids]))

    def touch(self, ids: Iterable[bytes]) -> None:
        """TOUCH all of them, in one send."""
        self._send(b"".join([b"TOUCH %b\n" % id for id in ids]))

    def finish_confirmed(self, ids: Iterable[bytes]) -> set[bytes]:
        """FIN all of them and close; on return the daemon has processed every FIN of this connection.

        What else is on its way to us goes back to the queue at once. Returns `unfinished`. If this raises, FINs may
        have been processed or not.
        """
        held = {message.id for message in self._messages}
        self._messages.clear()
        self._send(b"".join([b"FIN %b\n" % id for id in ids]) + b"RDY 0\nCLS\n")
        self._expect(b"CLOSE_WAIT")  # commands are processed in order
        held.update(message.id for message in self._messages)
        self._messages.clear()
        try:
            if held:
                self.requeue(held)
            self._socket.shutdown(socket.SHUT_WR)
            deadline = time.monotonic() + 1.0
            # To the end of the stream: a reset for unread input might overtake the last REQ.
            while self._fill() or (self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000)):
                self._pieces.clear()
        except (ConnectionLost, OSError):
            pass
        self.close()
        return self.unfinished

    # Publishing

    def publish(self, topic: str, bodies: Sequence[bytes], defer_ms: int = 0) -> None:
        """PUB one or MPUB several, and wait for the OK; with `defer_ms` a row of DPUBs.

        A Refused MPUB has published nothing but after a disk error; of DPUBs any number may have been published.
        """
        if defer_ms:
            line = f"DPUB {topic} {defer_ms}\n".encode()
            self._send(b"".join([b"%b%b%b" % (line, _SIZE.pack(len(body)), body) for body in bodies]))
            for _ in bodies:
                self._expect(b"OK")
            return
        if len(bodies) == 1:
            head = f"PUB {topic}\n".encode() + _SIZE.pack(len(bodies[0]))
            self._send(head + bodies[0])
        else:
            pack = _SIZE.pack
            parts = [part for body in bodies for part in (pack(len(body)), body)]
            size = 4 + 4 * len(bodies) + sum(map(len, bodies))
            head = f"MPUB {topic}\n".encode() + pack(size) + pack(len(bodies))
            self._send(b"".join([head, *parts]))
        self._expect(b"OK")

    def close(self) -> None:
        """Close at once; what is in flight goes to other consumers when it has timed out."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # Frames

    def _expect(self, wanted: bytes, deadline: float | None = None) -> None:
        answer = self._response(deadline)
        if answer != wanted:
            self._lost(f"answered {answer[:100]!r} in place of {wanted.decode()}")

    def _response(self, deadline: float | None = None) -> bytes:
        """The next answer; messages that come before it are kept."""
        if deadline is None:
            deadline = time.monotonic() + self._read_timeout
        while not self._responses:
            left = deadline - time.monotonic()
            if left <= 0:
                self._lost("does not answer")
            self._poll.poll(left * 1000)
            self._read()
        return self._responses.popleft()

    def _read(self) -> bool:
        """Receive and take apart what is here; False if nothing is."""
        came = self._fill()
        self._take_frames()
        return came

    def _fill(self) -> bool:
        """Receive what is here, without waiting; False if nothing is."""
        size = 0
        try:
            while True:
                data = self._socket.recv(_PIECE)
                if not data:
                    break
                self._pieces.append(data)
                size += len(data)
                if not self._tls:  # which gives one record at a time, and may keep from `poll` what it has decrypted
                    break
        except _WOULD_BLOCK:
            if not size:
                return False
        except OSError as error:
            if not size:
                self._take_frames()  # the daemon may have sent the reason
                self._lost(f"went away: {reason(error)}")
        if not size:
            self._take_frames()
            self._lost("closed the connection")
        self._missing -= size
        self._heard = time.monotonic()
        return True

    def _take_frames(self) -> None:
        """All frames that are complete: messages and responses are kept, heartbeats answered, errors raised."""
        if self._missing > 0 or not self._pieces:
            return
        buffer = b"".join([self._buffer, *self._pieces])
        self._pieces.clear()
        unpack, make, append = _MESSAGE_HEAD.unpack_from, tuple.__new__, self._messages.append
        length = len(buffer)
        last = length - _MESSAGE_HEAD.size
        position = 0
        heartbeats = 0
        while True:
            if position <= last:
                size, kind, timestamp, attempts, id = unpack(buffer, position)
                end = position + 4 + size
                if end <= length and kind == _FRAME_TYPE_MESSAGE and size >= _MESSAGE_SIZE:
                    append(make(Message, (timestamp, attempts, id, buffer[position + 34 : end])))
                    position = end
                    continue
            elif length - position < _HEAD.size:
                self._missing = _HEAD.size - (length - position)
                break
            else:
                size, kind = _HEAD.unpack_from(buffer, position)
                end = position + 4 + size
            if not 4 <= size <= _LARGEST or not 0 <= kind <= _FRAME_TYPE_MESSAGE:
                self._lost("does not speak NSQ's protocol")
            if end > length:
                self._missing = end - length
                break
            data = buffer[position + _HEAD.size : end]
            position = end
            if kind == FRAME_TYPE_ERROR:
                self._error(data)
            elif kind == FRAME_TYPE_RESPONSE and data == b"_heartbeat_":
                heartbeats += 1
            elif kind == FRAME_TYPE_RESPONSE:
                self._responses.append(data)
            else:
                self._lost("sent a message that is none")
        self._buffer = buffer[position:]
        if heartbeats:
            self._send(b"NOP\n")

    def _error(self, data: bytes) -> None:
        """Note the FIN that was refused; raise what is fatal."""
        code, _, reason = data.decode("utf-8", "replace").partition(" ")
        if code not in _NOT_FATAL:
            raise Refused(code, reason, self._name)
        if code == "E_FIN_FAILED":
            self.unfinished.add(data[17:33])  # E_FIN_FAILED FIN {id} failed {why}

    # Bytes

    def _send(self, data: bytes) -> None:
        """Send everything, reading meanwhile what comes."""
        try:
            sent = self._socket.send(data) if data else 0
        except _WOULD_BLOCK:
            sent = 0
        except OSError as error:
            self._explain(error)
        if sent < len(data):
            self._send_slowly(memoryview(data)[sent:])

    def _send_slowly(self, data: memoryview) -> None:
        deadline = time.monotonic() + self._read_timeout
        self._poll.modify(self._socket, select.POLLIN | select.POLLOUT)
        try:
            while data:
                left = deadline - time.monotonic()
                if left <= 0:
                    self._lost("does not read what it is sent")
                self._poll.poll(left * 1000)
                self._fill()
                try:
                    data = data[self._socket.send(data) :]
                    deadline = time.monotonic() + self._read_timeout
                except _WOULD_BLOCK:
                    pass
                except OSError as error:
                    self._explain(error)
        finally:
            self._poll.modify(self._socket, select.POLLIN)
        self._take_frames()

    def _explain(self, error: OSError) -> NoReturn:
        """Sending failed; before it closed, the daemon may have sent the reason."""
        while self._read():
            pass
        self._lost(f"went away: {reason(error)}")

    def _lost(self, what: str) -> NoReturn:
        raise ConnectionLost(f"nsqd {self._name} {what}") from None
