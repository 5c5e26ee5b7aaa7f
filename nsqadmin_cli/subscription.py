"""One consumer's connection to one nsqd, in protocol V2 (NSQD-COMPAT section 2).

It is opened on any thread, with one deadline from the host name lookup to the answer of SUB; from then on it belongs to
one thread, never blocks, and is read when its socket is readable. A received message is finished by `finish`; only
`close` ensures that the node has received this.
"""

import json
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any

from gnsqd.errors import StorageError
from gnsqd.storage.disk.record import decode_record
from gnsqd.version import VERSION
from gnsqd.wire.codec import FRAME_TYPE_ERROR, FRAME_TYPE_RESPONSE, MAGIC_V2
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.http_client import TLS, NodeError, timed_out
from nsqadmin_cli.message import Message
from nsqadmin_cli.units import printable

_FRAME_TYPE_MESSAGE = 2
_HEAD = Struct(">iI")  # of a frame: its type counts as part of its size
_SIZE = Struct(">I")
_LARGEST = 64 * 1024 * 1024  # bytes of a frame
_PIECE = 256 * 1024  # bytes read at once
_GOODBYE = 2.0  # seconds that a node has to confirm what was finished


@dataclass(frozen=True)
class Wish:
    """Options of a subscription. `window` is the maximum number of messages in flight; `sample_rate` is 0 or the
    percentage of messages to receive."""

    channel: str
    window: int
    sample_rate: int = 0
    auth_secret: str = ""


@dataclass(frozen=True, slots=True)
class Received(Message):
    """An unfinished message of a subscription."""

    subscription: "Subscription | None" = None

    def finish(self) -> None:
        if self.subscription is not None:
            self.subscription.finish(self.id)


class Subscription:
    """Owns the socket; `in_flight` has the ids of messages received and not finished yet."""

    def __init__(self, node: Nsqd, topic: str, wish: Wish, *, timeout: float, tls: TLS) -> None:
        """Connects and subscribes within `timeout` seconds; NodeError."""
        self.node = node
        self.topic = topic
        self.in_flight: set[bytes] = set()
        self.has_finished = False
        self.too_late = 0  # messages that were finished after the node had given them to somebody else
        self._buffer = bytearray()
        self._output = bytearray()
        self._open = True
        deadline = time.monotonic() + timeout
        host, port = node.tcp_address()
        self._where = f"TCP port {port}"
        try:
            self._socket: socket.socket = socket.create_connection((host, port), _left(deadline))
        except OSError as error:
            raise self._failure(error, timeout) from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._negotiate(host, wish, tls, deadline)
            self._command(f"SUB {topic} {wish.channel}".encode(), deadline)
            self._expect_ok(deadline)
            self._send(b"RDY %d\n" % max(1, min(wish.window, self._max_rdy_count)), deadline)
            self._socket.setblocking(False)
        except (OSError, ssl.CertificateError) as error:
            self._socket.close()
            raise self._failure(error, timeout) from None
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    # Before the subscription stands

    def _negotiate(self, host: str, wish: Wish, tls: TLS, deadline: float) -> None:
        """IDENTIFY, with TLS if it is configured, and AUTH."""
        wants_tls = self.node.address.tls or tls != TLS()
        hostname = socket.gethostname()
        asked = {
            "client_id": hostname.partition(".")[0],
            "hostname": hostname,
            "user_agent": f"gnsqadmin/{VERSION}",
            "feature_negotiation": True,
            "tls_v1": wants_tls,
            "sample_rate": wish.sample_rate,
        }
        self._send(MAGIC_V2, deadline)
        self._command(b"IDENTIFY", deadline, json.dumps(asked).encode())
        answer = self._response(deadline)
        try:
            agreed: dict[str, Any] = json.loads(answer)
            self._max_rdy_count = int(agreed["max_rdy_count"])
            has_tls, wants_auth = bool(agreed.get("tls_v1")), bool(agreed.get("auth_required"))
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
            raise self._error("does not answer like nsqd") from None
        if has_tls:
            context = tls.context()
            context.sslsocket_class = ssl.SSLSocket
            self._socket.settimeout(_left(deadline))
            self._socket = context.wrap_socket(self._socket, server_hostname=host)
            self._expect_ok(deadline)
        elif wants_tls and self.node.address.tls:
            raise self._error("does not offer TLS to consumers")
        if wants_auth:
            if not wish.auth_secret:
                raise self._error("requires consumers to authenticate: give --auth-secret")
            self._command(b"AUTH", deadline, wish.auth_secret.encode("utf-8", "surrogateescape"))
            self._response(deadline)

    def _command(self, line: bytes, deadline: float, body: bytes | None = None) -> None:
        self._send(line + b"\n" + (b"" if body is None else _SIZE.pack(len(body)) + body), deadline)

    def _send(self, data: bytes, deadline: float) -> None:
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(data)

    def _expect_ok(self, deadline: float) -> None:
        answer = self._response(deadline)
        if answer != b"OK":
            raise self._error(f"answered {printable(repr(answer), 100)} instead of OK")

    def _response(self, deadline: float) -> bytes:
        while True:
            for kind, data in self._frames():
                if kind == FRAME_TYPE_ERROR:
                    raise self._error(f"refused: {_text(data)}")
                if kind == FRAME_TYPE_RESPONSE and data != b"_heartbeat_":
                    return data
            self._socket.settimeout(_left(deadline))
            self._fill(self._socket.recv(_PIECE))

    # Messages

    def receive(self) -> list[Received]:
        """Received messages; NodeError if the connection is lost. Call it when the socket is readable."""
        try:
            while True:
                data = self._socket.recv(_PIECE)
                self._fill(data)
                # TLS may hold more than the socket shows.
                if not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
                    break
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except OSError as error:
            raise self._failure(error, 0) from None
        received = []
        for kind, data in self._frames():
            if kind == _FRAME_TYPE_MESSAGE:
                received.append(self._message(data))
            elif kind == FRAME_TYPE_ERROR:
                if not data.startswith((b"E_FIN_FAILED", b"E_REQ_FAILED")):
                    raise self._error(f"ended the connection: {_text(data)}")
                self.too_late += 1
            elif data == b"_heartbeat_":
                self._output += b"NOP\n"
        self.flush()
        return received

    def _message(self, data: bytes) -> Received:
        try:
            timestamp, attempts, id, body = decode_record(data)
        except StorageError:
            raise self._error("sent an invalid message") from None
        self.in_flight.add(id)
        return Received(self.topic, timestamp, attempts, id, body, str(self.node.address), self)

    def finish(self, id: bytes) -> None:
        """Finish the message. The next `flush` sends this to the node."""
        if id in self.in_flight:
            self.in_flight.remove(id)
            self.has_finished = True
            self._output += b"FIN %b\n" % id

    def flush(self) -> None:
        """Send as much as the socket accepts, and the rest the next time; NodeError if the connection is lost."""
        try:
            while self._output:
                del self._output[: self._socket.send(self._output)]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        except OSError as error:
            raise self._failure(error, 0) from None

    def close(self) -> bool:
        """Requeue unfinished messages at once; returns whether the node has confirmed all finished ones."""
        if not self._open:
            return False
        self._open = False
        deadline = time.monotonic() + _GOODBYE
        confirmed = False
        try:
            self._send(bytes(self._output) + b"CLS\n", deadline)
            while not confirmed:
                self._socket.settimeout(_left(deadline))
                self._fill(self._socket.recv(_PIECE))
                for kind, data in self._frames():
                    if kind == _FRAME_TYPE_MESSAGE:
                        self._message(data)
                    elif kind == FRAME_TYPE_ERROR:
                        self.too_late += 1
                    confirmed = confirmed or data == b"CLOSE_WAIT"
            self._send(b"".join(b"REQ %b 0\n" % id for id in self.in_flight), deadline)
            self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(_PIECE):  # to its end, or a reset might overtake what was sent
                self._socket.settimeout(_left(deadline))
        except (OSError, NodeError):
            pass
        finally:
            self._socket.close()
        return confirmed

    def drop(self) -> None:
        """Close a lost connection."""
        self._open = False
        self._socket.close()

    # Bytes

    def _fill(self, data: bytes) -> None:
        if not data:
            raise self._error("closed the connection")
        self._buffer += data

    def _frames(self) -> Iterator[tuple[int, bytes]]:
        """The complete frames received, as type and data; NodeError for invalid ones."""
        buffer, position = self._buffer, 0
        try:
            while len(buffer) - position >= _HEAD.size:
                size, kind = _HEAD.unpack_from(buffer, position)
                if not 4 <= size <= _LARGEST or kind > _FRAME_TYPE_MESSAGE:
                    raise self._error("does not speak NSQ's protocol")
                end = position + 4 + size
                if end > len(buffer):
                    break
                data = bytes(buffer[position + _HEAD.size : end])
                position = end
                yield kind, data
        finally:
            del buffer[:position]

    def _error(self, reason: str) -> NodeError:
        return NodeError("nsqd", self.node.address, f"{reason} ({self._where})")

    def _failure(self, error: OSError | ssl.CertificateError, timeout: float) -> NodeError:
        return self._error(_reason(error, timeout))


def _text(data: bytes) -> str:
    return printable(data.decode("utf-8", "replace"), 200)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _reason(error: OSError | ssl.CertificateError, timeout: float) -> str:
    match error:
        case TimeoutError():
            return timed_out(timeout)
        case socket.gaierror():
            return f"cannot resolve the host name: {error.strerror}"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted: {printable(error.verify_message)}"
        case ssl.SSLError():
            return f"TLS failed: {printable((error.reason or str(error)).replace('_', ' ').lower())}"
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
