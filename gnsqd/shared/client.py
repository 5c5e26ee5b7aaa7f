"""A client of one nsqd in protocol V2 (NSQD-COMPAT section 2), on a blocking thread, without gevent.

gnsqadmin, the Spark side and --demo share it. Frames are parsed in batches: `receive` reads once and returns every
complete message, and `receive_frames` the same as bytes; `finish` finishes many in one send. Sending never waits
without reading, so a daemon that waits until its client reads cannot block the client for good. There is no thread for
heartbeats: every method answers them, so one of them must be called well within a minute.
"""

import json
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from struct import Struct
from typing import Any, NamedTuple, NoReturn, Self

from gnsqd.shared.errors import reason_of
from gnsqd.shared.protocol import FRAME_TYPE_ERROR, FRAME_TYPE_MESSAGE, FRAME_TYPE_RESPONSE, MAGIC_V2

_HEAD = Struct(">Ii")  # of a frame: its type counts as part of its size
_MESSAGE_HEAD = Struct(">IiqH16s")
_MESSAGE_SIZE = 30  # of a frame with an empty message
FRAME_HEAD = _MESSAGE_HEAD.size  # bytes of a frame before the body
_ID = slice(18, 34)  # in the head of a message
_FIN = b"FIN %b\n" % bytes(16)
_TOUCH = b"TOUCH %b\n" % bytes(16)
_SIZE = Struct(">I")
_PIECE = 1 << 18  # bytes read at once
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_NOT_FATAL = ("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED")


class PushedMessage(NamedTuple):
    """One message as an nsqd pushed it; `id` is 16 ASCII characters."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


class Frames(NamedTuple):
    """Frames of messages, one behind the other in `data`: `edges` has the beginning of each, and the end of the last.
    A frame is int32 size, int32 type, int64 timestamp, uint16 attempts, 16 bytes id, and the body."""

    data: bytes
    edges: list[int]

    def __len__(self) -> int:
        return len(self.edges) - 1

    @property
    def body_bytes(self) -> int:
        return self.edges[-1] - self.edges[0] - FRAME_HEAD * len(self)

    def ids(self) -> list[bytes]:
        return [self.data[at + _ID.start : at + _ID.stop] for at in self.edges[:-1]]

    def messages(self) -> list[PushedMessage]:
        data, unpack, make, head = self.data, _MESSAGE_HEAD.unpack_from, tuple.__new__, FRAME_HEAD
        spans = pairwise(self.edges)
        return [make(PushedMessage, (*unpack(data, at)[2:], data[at + head : end])) for at, end in spans]


class Upgrade(NamedTuple):
    """The TLS that a client requests. If `is_required`, a connection without TLS is an error."""

    context: Callable[[], ssl.SSLContext]
    server_name: str
    is_required: bool = True


class Client:
    """Owns the connection. Any method may raise by one of the last four methods, which subclasses define; the
    connection cannot be used any more then. `max_rdy_count` is the most that `ready` may ask for, `msg_timeout` the
    seconds after which a message times out; `unfinished` has the ids whose FIN was refused because they had timed out:
    other consumers get them again. `hangs` is True once it was lost because the daemon did nothing for too long."""

    largest_frame = 1 << 30  # bytes
    secret_option = ""  # where a missing secret for AUTH can be given
    poller: Callable[[], Any] = select.poll  # or that of gevent

    def __init__(self, sock: socket.socket, name: str, read_timeout: float) -> None:
        """Uses a connected socket; `negotiate` comes first."""
        self.max_rdy_count = 2500
        self.msg_timeout = 60.0
        self.unfinished: set[bytes] = set()
        self.hangs = False
        self.name = name
        self._read_timeout = read_timeout
        self._tls = False
        self._is_upgrading = False
        self._poll = self.poller()
        self._heard = time.monotonic()
        self._buffer = b""
        self._pieces: list[bytes] = []  # what came behind the buffer
        self._missing = 0  # bytes to come until the next frame is complete
        self._frames: list[Frames] = []  # messages that came while something else was waited for
        self._responses: deque[bytes] = deque()
        self._use(sock)

    def _use(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._poll.register(sock, select.POLLIN)

    def negotiate(
        self, identity: Mapping[str, object], deadline: float, *, tls: Upgrade | None = None, secret: str | None = None
    ) -> None:
        """Does IDENTIFY with these keys and the host's name, TLS and AUTH, until `deadline` (time.monotonic())."""
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hostname = socket.gethostname()
        asked: dict[str, object] = {"client_id": hostname.partition(".")[0], "hostname": hostname}
        asked |= {"feature_negotiation": True, "tls_v1": tls is not None, **identity}
        body = json.dumps(asked).encode()
        self._send(MAGIC_V2 + b"IDENTIFY\n" + _SIZE.pack(len(body)) + body)
        answer = self._response(deadline)
        try:
            agreed: dict[str, Any] = json.loads(answer)
            self.max_rdy_count = int(agreed["max_rdy_count"])
            self.msg_timeout = int(agreed.get("msg_timeout", 60_000)) / 1000
            has_tls, needs_auth = bool(agreed.get("tls_v1")), bool(agreed.get("auth_required"))
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
            self._lost("does not answer like nsqd")
        if tls is not None and has_tls:
            self._start_tls(tls, deadline)
        elif tls is not None and tls.is_required:
            self._not_agreed("offers no TLS")
        if needs_auth:
            if not secret:
                self._not_agreed(f"requires AUTH: give {self.secret_option}")
            data = secret.encode("utf-8", "surrogateescape")
            self._send(b"AUTH\n" + _SIZE.pack(len(data)) + data)
            self._response(deadline)

    def _start_tls(self, tls: Upgrade, deadline: float) -> None:
        context = tls.context()
        self._poll.unregister(self._socket)
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        self._is_upgrading = True
        try:
            self._use(context.wrap_socket(self._socket, server_hostname=tls.server_name))
        except ssl.SSLError as error:
            self._not_agreed(f"TLS failed: {reason(error)}")
        except TimeoutError:
            self._late()
        except OSError as error:
            self._lost(f"went away in the TLS handshake: {reason(error)}")
        self._tls = True
        self._expect(b"OK", deadline)
        self._is_upgrading = False

    # Consuming

    @property
    def has_messages(self) -> bool:
        """True if messages came while an answer was waited for."""
        return bool(self._frames)

    def fileno(self) -> int:
        return self._socket.fileno()

    def subscribe(self, topic: str, channel: str, deadline: float | None = None) -> None:
        """Sends SUB, which creates the topic and the channel if they do not exist."""
        self._send(f"SUB {topic} {channel}\n".encode())
        self._expect(b"OK", deadline)

    def ready(self, count: int) -> None:
        """Sends RDY: up to `count` messages may be in flight to this client, at most `max_rdy_count`."""
        self._send(b"RDY %d\n" % min(count, self.max_rdy_count))

    def receive(self, timeout: float) -> list[PushedMessage]:
        """Returns all messages received; waits up to `timeout` seconds for the first."""
        return [message for frames in self.receive_frames(timeout) for message in frames.messages()]

    def receive_frames(self, timeout: float) -> list[Frames]:
        """Receives as `receive`, without an object for each message."""
        left, deadline = timeout, time.monotonic() + timeout
        if not self._frames:
            self.listen()
        while not self._frames and left > 0:  # the last read is after the deadline, even if this process was stopped
            left = deadline - time.monotonic()
            self._poll.poll(max(0.0, left) * 1000)
            self.listen()
        frames, self._frames = self._frames, []
        return frames

    def listen(self) -> None:
        """Reads as `poll`; raises an error if nothing has come for too long."""
        if not self.poll() and time.monotonic() - self._heard > self._read_timeout:
            self.hangs = True
            self._lost(f"was silent for {self._read_timeout:g} s")

    def finish(self, ids: Iterable[bytes]) -> None:
        """Sends FIN for all of them, in one send."""
        self._send(b"".join([b"FIN %b\n" % id for id in ids]))

    def finish_joined(self, ids: bytes, *, within: float) -> None:
        """Sends FIN for ids that are one behind the other. `within` is how many seconds the daemon may read nothing."""
        self._send_joined(_FIN, ids, within)

    def touch_joined(self, ids: bytes, *, within: float) -> None:
        """Sends TOUCH for ids that are one behind the other: they time out as if they had just come. `within` as
        for FIN."""
        self._send_joined(_TOUCH, ids, within)

    def _send_joined(self, command: bytes, ids: bytes, within: float) -> None:
        """Sends a command whose last bytes before the newline stand for an id, for each of the ids."""
        commands = bytearray(command * (len(ids) // 16))
        for place in range(16):
            commands[len(command) - 17 + place :: len(command)] = ids[place::16]
        self._send(bytes(commands), within)

    def requeue(self, ids: Iterable[bytes], delay_ms: int = 0) -> None:
        """Sends REQ for all of them, in one send."""
        self._send(b"".join([b"REQ %b %d\n" % (id, delay_ms) for id in ids]))

    def finish_confirmed(self, *, requeue: Iterable[bytes] = (), within: float | None = None) -> set[bytes]:
        """Closes the connection when the daemon has processed every FIN of it; returns `unfinished`. `requeue`, and
        other messages on their way here, go back to the queue at once. If this raises, FINs may have been processed or
        not: after `within` seconds, by default those of every answer."""
        deadline = None if within is None else time.monotonic() + within
        self._send(b"RDY 0\nCLS\n")
        self._expect(b"CLOSE_WAIT", deadline)  # commands are processed in order
        held = {id for frames in self._frames for id in frames.ids()}.union(requeue)
        self._frames.clear()
        try:
            if held:
                self.requeue(held)
            self._socket.shutdown(socket.SHUT_WR)
            deadline = time.monotonic() + 1.0
            # To the end of the stream: a reset for unread input might overtake the last REQ.
            while self._fill() or (self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000)):
                self._pieces.clear()
        except Exception:
            pass  # every FIN is confirmed: nothing is lost any more
        self.close()
        return self.unfinished

    # Publishing

    def publish(self, topic: str, bodies: Sequence[bytes], defer_ms: int = 0) -> None:
        """Sends PUB for one message or MPUB for several, with `defer_ms` DPUBs, and waits for the answers. A refused
        MPUB has published nothing but after a disk error; of DPUBs any number may have been published."""
        self.publish_joined(topic, b"".join([_SIZE.pack(len(body)) + body for body in bodies]), len(bodies), defer_ms)

    def publish_joined(self, topic: str, data: bytes | memoryview, count: int, defer_ms: int) -> None:
        """Publishes as `publish`: `data` has `count` bodies, each behind its size of 4 bytes."""
        if defer_ms:
            self._send(b"".join(_deferred(topic, memoryview(data), defer_ms)))
        elif count == 1:
            self._send(b"".join([f"PUB {topic}\n".encode(), data]))
        else:
            head = f"MPUB {topic}\n".encode() + _SIZE.pack(_SIZE.size + len(data)) + _SIZE.pack(count)
            self._send(b"".join([head, data]))
        for _ in range(count if defer_ms else 1):
            self._expect(b"OK")

    def close(self) -> None:
        """Closes at once; messages in flight go to other consumers when they have timed out."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Frames

    def _expect(self, expected: bytes, deadline: float | None = None) -> None:
        answer = self._response(deadline)
        if answer != expected:
            self._lost(f"answered {answer[:100]!r} in place of {expected.decode()}")

    def _response(self, deadline: float | None) -> bytes:
        """Returns the next answer; messages that come before it are kept."""
        if deadline is None:
            deadline = time.monotonic() + self._read_timeout
        while not self._responses:
            left = deadline - time.monotonic()
            if left <= 0:
                self.hangs = True
                self._late()
            self._poll.poll(left * 1000)
            self.poll()
        return self._responses.popleft()

    def poll(self) -> bool:
        """Receives available bytes without waiting, and answers heartbeats; messages are kept for the next `receive`.
        Returns False if there are no bytes."""
        came = self._fill()
        self._take_frames()
        return came

    def _fill(self) -> bool:
        """Receives available bytes, without waiting; returns False if there are none."""
        size = 0
        try:
            while data := self._socket.recv(_PIECE):
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
                if self._is_upgrading and isinstance(error, ssl.SSLError):
                    # With TLS 1.3 the first read shows that the daemon does not take our certificate.
                    self._not_agreed(f"TLS failed: {reason(error)}")
                self._lost(f"went away: {reason(error)}")
        if not size:
            self._take_frames()
            self._lost("closed the connection")
        self._missing -= size
        self._heard = time.monotonic()
        return True

    def _take_frames(self) -> None:
        """Handles all complete frames: messages and responses are kept, heartbeats answered, errors raised."""
        if self._missing > 0 or not self._pieces:
            return
        buffer = b"".join([self._buffer, *self._pieces])
        self._pieces.clear()
        unpack = _HEAD.unpack_from
        length = len(buffer)
        last = length - _HEAD.size
        position = 0
        heartbeats = 0
        edges: list[int] = []
        while position <= last:
            size, kind = unpack(buffer, position)
            end = position + 4 + size
            if kind == FRAME_TYPE_MESSAGE and size >= _MESSAGE_SIZE and end <= length:
                edges.append(position)
                position = end
                continue
            self._keep(buffer, edges, position)
            if not 4 <= size <= self.largest_frame or not 0 <= kind <= FRAME_TYPE_MESSAGE:
                is_http = buffer.startswith(b"HTTP/", position)
                self._lost("answers HTTP: expected its TCP port" if is_http else "does not speak NSQ's protocol")
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
                self._lost("sent an invalid message")
        else:
            self._keep(buffer, edges, position)
            self._missing = _HEAD.size - (length - position)
        self._buffer = buffer[position:]
        if heartbeats:
            self._send(b"NOP\n")

    def _keep(self, data: bytes, edges: list[int], end: int) -> None:
        """Stores the messages that begin at `edges`, the last of which ends at `end`, and clears `edges`."""
        if edges:
            self._frames.append(Frames(data, [*edges, end]))
            edges.clear()

    def _error(self, data: bytes) -> None:
        """Records a refused FIN; raises fatal errors."""
        code, _, reason = data.decode("utf-8", "replace").partition(" ")
        if code not in _NOT_FATAL:
            self._refused(code, reason)
        if code == "E_FIN_FAILED":
            self.unfinished.add(data[17:33])  # E_FIN_FAILED FIN {id} failed {why}

    # Bytes

    def _send(self, data: bytes, within: float | None = None) -> None:
        """Sends everything, and reads meanwhile; an error if nothing could be sent `within` seconds."""
        try:
            sent = self._socket.send(data) if data else 0
        except _WOULD_BLOCK:
            sent = 0
        except OSError as error:
            self._explain(error)
        if sent < len(data):
            self._send_slowly(memoryview(data)[sent:], within or self._read_timeout)

    def _send_slowly(self, data: memoryview, within: float) -> None:
        deadline = time.monotonic() + within
        self._poll.modify(self._socket, select.POLLIN | select.POLLOUT)
        try:
            while data:
                left = deadline - time.monotonic()
                if left <= 0:
                    self.hangs = True
                    self._lost("does not read what it is sent")
                self._poll.poll(left * 1000)
                self._fill()
                try:
                    data = data[self._socket.send(data) :]
                    deadline = time.monotonic() + within
                except _WOULD_BLOCK:
                    pass
                except OSError as error:
                    self._explain(error)
        finally:
            self._poll.modify(self._socket, select.POLLIN)
        self._take_frames()

    def _explain(self, error: OSError) -> NoReturn:
        """Raises the error for a failed send; before it closed, the daemon may have sent the reason."""
        while self.poll():
            pass
        self._lost(f"went away: {reason(error)}")

    # Errors, which subclasses define

    def _lost(self, what: str) -> NoReturn:
        """Raises the error for a connection that is lost; `what` is a text such as "closed the connection"."""
        raise NotImplementedError

    def _late(self) -> NoReturn:
        """Raises the error for an answer that did not come in time."""
        self._lost("does not answer")

    def _not_agreed(self, what: str) -> NoReturn:
        """Raises the error for a daemon that does not agree on TLS or authorization."""
        self._lost(what)

    def _refused(self, code: str, reason: str) -> NoReturn:
        """Raises the error for an answer that ends the connection."""
        raise NotImplementedError


def _deferred(topic: str, data: memoryview, defer_ms: int) -> Iterator[bytes | memoryview]:
    """Yields the pieces of a DPUB for each message."""
    while data:
        end = _SIZE.size + _SIZE.unpack_from(data)[0]
        yield f"DPUB {topic} {defer_ms}\n".encode()
        yield data[:end]
        data = data[end:]


def tls_context(ca: str | None, certificate: str | None, key: str | None, is_verifying: bool) -> ssl.SSLContext:
    """Returns TLS by PEM files: trusts the authorities in `ca`, or else the system's. `certificate` may have its key.
    Raises OSError with a text that names the file, or certificate and key."""
    files = ca
    try:
        context = ssl.create_default_context(cafile=ca or None)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # of Python 3.13: openssl makes authorities without key usage
        files = " and ".join(file for file in (certificate, key) if file)  # Python does not report which of them it is
        if certificate:
            context.load_cert_chain(certificate, key or None, password="")  # an encrypted key must not ask
    except OSError as error:
        is_explained = not isinstance(error, ssl.SSLError) or error.reason
        why = reason(error) if is_explained else "is not a certificate in PEM format"
        raise OSError(f"cannot use {files} for TLS: {why}") from None
    if not is_verifying:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def reason(error: BaseException) -> str:
    """Returns in words why a connection failed."""
    match error:
        case TimeoutError():
            return "timed out"
        case socket.gaierror():
            return f"cannot resolve the host name: {error.strerror}"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted: {error.verify_message}"
        case ssl.SSLError():
            return (error.reason or str(error)).replace("_", " ").lower()
        case OSError():
            return reason_of(error)
    return str(error)
