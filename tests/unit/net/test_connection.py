"""A client's socket: deadlines (NSQD-COMPAT 2.1), layers, and errors in Go's words."""

import gc
import random
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic
from typing import Any
from unittest.mock import Mock

import pytest
from gevent import get_hub, joinall, sleep, spawn

import gnsqd.net.connection
from gnsqd.net.connection import Connection, Receiver
from gnsqd.net.plain import Endpoint
from gnsqd.net.stream import DeflateLayer, StreamError

Ends = tuple[Connection, socket.socket]


@pytest.fixture(autouse=True, params=dict.fromkeys((Endpoint, gnsqd.net.connection._new_endpoint)))
def _endpoint(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs these tests also without the endpoint in C, where modules are compiled."""
    monkeypatch.setattr(gnsqd.net.connection, "_new_endpoint", request.param)


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Yields a connection, and its other end."""
    ours, theirs = socket.socketpair()
    connection = Connection(ours, "peer")
    with theirs:
        yield connection, theirs
        connection.close()


def test_read_deadline_that_passes_while_nobody_reads_counts_no_more_once_it_is_moved(ends: Ends) -> None:
    connection, theirs = ends
    connection.read_deadline = monotonic() + 0.05
    theirs.send(b"one")
    assert connection.receive() == b"one"
    sleep(0.1)  # a batch that waits for a slow disk
    connection.read_deadline = monotonic() + 30
    theirs.send(b"two")
    assert connection.receive() == b"two"


def test_closed_connection_is_freed_at_once() -> None:
    def count() -> int:
        return sum(isinstance(each, Connection) for each in gc.get_objects())

    ours, theirs = socket.socketpair()
    with theirs:
        before = count()
        gc.disable()
        Connection(ours, "peer").close()
        after = count()
        gc.enable()
    assert after == before


def test_failed_send_is_worded_as_in_go() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, (host, port) = server.accept()
        own_host, own_port = ours.getsockname()
    connection = Connection(ours, f"{host}:{port}")
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    theirs.close()
    expected = rf"^write tcp {own_host}:{own_port}->{host}:{port}: write: (broken pipe|connection reset by peer)$"
    with pytest.raises(OSError, match=expected):
        connection.send([b"x"])
    connection.close()


def test_reader_that_takes_a_little_now_and_then_is_given_up(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    connection, theirs = ends
    connection.write_timeout = 2.0  # at least, as a busy machine may stop this process, and so the reader, for a while
    theirs.setblocking(False)

    def sip() -> None:
        while True:
            with suppress(BlockingIOError):
                theirs.recv(65536)
            sleep(0.05)

    sipping = spawn(sip)
    started = monotonic()
    connection.send([bytes(4 << 20)])  # at 1.3 MB a second at most
    assert monotonic() - started > connection.write_timeout
    monkeypatch.setattr(gnsqd.net.connection, "SLOWEST_READER", 1 << 30)
    with pytest.raises(TimeoutError, match="^write unix .*: i/o timeout$"):
        connection.send([bytes(4 << 20)])
    sipping.kill()


def test_sender_that_waited_for_the_socket_goes_on_after_the_end_of_the_turn() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    connection = Connection(ours, "peer")
    loop = get_hub().loop
    input, end_of_turn = loop.io(ours.fileno(), 1), loop.prepare(priority=loop.MAXPRI)
    steps: list[str] = []

    def send() -> None:
        with suppress(BlockingIOError):
            while True:
                ours.send(bytes(65536))
        connection.send([b"x"])
        steps.append("sent")

    def on_input() -> None:
        input.stop()
        end_of_turn.start(on_end_of_turn)

    def on_end_of_turn() -> None:
        end_of_turn.stop()
        steps.append("written")

    sender = spawn(send)
    sleep(0)
    input.start(on_input)
    with suppress(BlockingIOError):
        while theirs.recv(65536):
            pass
    theirs.send(b"x")
    sender.join()
    assert steps == ["written", "sent"]
    for watcher in (input, end_of_turn):
        watcher.close()
    connection.close()
    theirs.close()


class Recorder:
    """A layer that makes little of much, and notes how much that was."""

    pending = ended = False
    cut_off = ""

    def __init__(self) -> None:
        self.encoded: list[int] = []

    def decode(self, data: bytes) -> bytes:
        return data

    def encode(self, data: bytes) -> bytes:
        self.encoded.append(len(data))
        return data[:1]


def test_much_is_wrapped_in_slices_between_which_others_have_their_turn(ends: Ends) -> None:
    connection, theirs = ends
    layer = Recorder()
    connection.push(layer)
    seen = set()

    def watch() -> None:
        while True:
            seen.add(len(layer.encoded))
            sleep(0)

    watcher = spawn(watch)
    connection.send([bytes(1 << 20)])
    watcher.kill()
    assert layer.encoded == [65536] * 16
    assert len(seen) > 10
    assert theirs.recv(100) == bytes(16)


def test_nothing_is_sent_after_what_a_layer_failed_to_wrap(ends: Ends) -> None:
    connection, theirs = ends
    layer = Mock(Recorder, encode=Mock(side_effect=[StreamError("broken"), b"x"]))
    connection.push(layer)
    assert not connection.send_at_once([b"one"])
    with pytest.raises(OSError, match="^broken$"):
        connection.send([b"two"])
    connection.shutdown()
    assert theirs.recv(100) == b""


def receive_all(sock: socket.socket) -> bytes:
    """Returns what comes until the end of the stream. Yields."""
    received = bytearray()
    while True:
        with suppress(BlockingIOError):
            if not (data := sock.recv(65536)):
                return bytes(received)
            received += data
        sleep(0)


@pytest.mark.parametrize("has_layer", [False, True])
def test_who_sends_while_the_socket_is_full_comes_after_who_waits(ends: Ends, has_layer: bool) -> None:
    connection, theirs = ends
    if has_layer:
        connection.push(DeflateLayer(1))
    theirs.setblocking(False)
    first = random.Random(1).randbytes(4 << 20)
    waiting = spawn(connection.send, [first])
    sleep(0)
    begin = theirs.recv(65536)  # now there is room
    receiving = spawn(receive_all, theirs)
    assert not waiting.ready()
    connection.send([b"second"])
    waiting.get()
    connection.shutdown()
    sent = begin + receiving.get(timeout=30)
    assert (zlib.decompressobj(-zlib.MAX_WBITS).decompress(sent) if has_layer else sent) == first + b"second"


class Greeting(Recorder):
    """TLS, as far as a connection sees it: one message of each side, and records."""

    established = False

    def handshake(self, data: bytes) -> bytes:
        self.established = data == b"hello"
        return b"welcome" if self.established else b""

    def encode(self, data: bytes) -> bytes:
        return b"<%b>" % data


def test_who_waits_behind_the_answer_to_identify_sends_through_the_layer(ends: Ends) -> None:
    connection, theirs = ends
    theirs.setblocking(False)
    theirs.send(b"hello")
    answer = bytes(4 << 20)
    layer: Any = Greeting()

    def upgrade() -> None:
        connection.send([answer])
        connection.handshake(layer, b"")

    upgrading = spawn(upgrade)
    sleep(0)
    heartbeat = spawn(connection.send, [b"heartbeat"])
    sleep(0)
    receiving = spawn(receive_all, theirs)
    joinall((upgrading, heartbeat), 30, raise_error=True)
    connection.shutdown()
    assert receiving.get(timeout=30) == answer + b"welcome<heartbeat>"


class Taking(Receiver):
    """Has a function take what comes."""

    def __init__(self, take: Callable[[bytes], bool]) -> None:
        self._take = take

    def receive_data(self, data: bytes) -> bool:
        return self._take(data)


class Bomb(Recorder):
    """A layer that has ever more."""

    pending = True


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_stream_that_decodes_without_end_ends_with_the_connection(ends: Ends, seconds: float) -> None:
    connection, theirs = ends
    connection.push(Bomb())
    reading = spawn(connection.feed, Taking(lambda data: True))
    theirs.send(b"x")
    sleep(0.01)
    assert not reading.ready()
    connection.shutdown(seconds)
    with pytest.raises(OSError, match="use of closed network connection$"):
        reading.get(timeout=30)


def test_what_has_arrived_before_a_shutdown_is_taken_and_answered(ends: Ends) -> None:
    connection, theirs = ends
    taken = []

    def take(data: bytes) -> bool:
        taken.append(len(data))
        return connection.send_at_once([b"%d " % len(data)])

    reading = spawn(connection.feed, Taking(take))
    sleep(0)
    theirs.sendall(bytes(150_000))
    connection.shutdown(30)
    with pytest.raises(OSError, match="use of closed network connection$"):
        reading.get(timeout=10)
    assert sum(taken) == 150_000
    assert sum(map(int, theirs.recv(1000).split())) == 150_000
    assert theirs.recv(1) == b""


def test_client_that_does_not_take_what_it_is_sent_is_shut_down_at_once(ends: Ends) -> None:
    connection, _ = ends
    sending = spawn(connection.send, [bytes(4 << 20)])
    sleep(0)
    connection.shutdown(30)
    with pytest.raises(OSError, match="broken pipe$"):
        sending.get(timeout=10)
