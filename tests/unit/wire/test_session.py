"""Turns of the protocol's greenlets that no client can bring about at will; the rest is in behaviour/."""

import errno
import gc
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import Mock

import pytest
from gevent import get_hub, joinall, sleep, spawn

import gnsqd.wire.commands
import gnsqd.wire.session
from gnsqd.broker.channel import Channel
from gnsqd.broker.topic import Topic
from gnsqd.log import Level
from gnsqd.options import SECOND, Options
from gnsqd.queues.store import Context, Store
from gnsqd.shared.errors import StorageError
from gnsqd.shared.protocol import FRAME_TYPE_ERROR, FRAME_TYPE_RESPONSE
from gnsqd.storage.syncer import Syncer
from gnsqd.wire.client_v2 import STATE_CLOSING, STATE_SUBSCRIBED, ClientV2
from gnsqd.wire.codec import ClientError, frame
from gnsqd.wire.commands import Authenticate, Commands
from gnsqd.wire.session import Session
from kit.daemons import is_readable
from unit.broker.fakes import MINUTE, FakeConsumer, Fakes, eventually, publish, settle


class Served:
    """One client, the other end of its connection, and what is around it. The test starts one of its greenlets."""

    def __init__(self, around: Fakes, authenticate: Authenticate | None = None) -> None:
        self.around = around
        self.ours, self.theirs = socket.socketpair()
        self.client = ClientV2(1, self.ours, "127.0.0.1:1", around.options)
        commands = Commands(around.registry, around.options, around.logger, None, authenticate)
        self.session = Session(self.client, commands, around.logger, around.spawn)
        self._channel: Channel | None = None
        self._greenlets: list[Any] = []

    def start(self, name: str) -> Any:
        """Starts a greenlet in `IOLoop` or `messagePump`, which has to end with the client."""
        self._greenlets.append(spawn(getattr(self.session, name)))
        return self._greenlets[-1]

    def channel(self, *bodies: bytes, rdy: int) -> Channel:
        """Returns a channel with these messages, of which the client takes."""
        self._channel = channel = self.around.channel()
        channel.put_messages(self.around.messages(*bodies))
        self.client.delivering = channel
        self.client.ready_count = rdy
        return channel

    def fill(self) -> None:
        """Fills the socket, as a client that reads nothing does."""
        try:
            while True:
                self.ours.send(bytes(65536))
        except BlockingIOError:
            pass

    def drain(self) -> None:
        self.theirs.setblocking(False)
        try:
            while self.theirs.recv(65536):
                pass
        except BlockingIOError:
            pass

    def stop(self) -> None:
        self.client.close()
        self.drain()
        self.client.stop_tickers()
        joinall(self._greenlets, 10)
        assert all(greenlet.dead for greenlet in self._greenlets)
        self.client.connection.close()
        self.theirs.close()
        for topic in self.around.registry.topics.values():
            topic.close()
        self.around.registry.topics.clear()  # another client may share them
        if self._channel is not None:
            self._channel.close()
        self.around.syncer.stop()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    running = []

    def start(
        options: Options | None = None, authenticate: Authenticate | None = None, around: Fakes | None = None
    ) -> Served:
        running.append(Served(around or Fakes(tmp_path, options or Options(), Syncer()), authenticate))
        return running[-1]

    yield start
    for served in running:
        served.stop()


def test_client_that_ends_while_its_heartbeat_waits_takes_no_message(serve: Callable[..., Served]) -> None:
    served = serve()
    channel = served.channel(b"x", rdy=1)
    served.fill()
    served.client.heartbeat_due = True
    pump = served.start("messagePump")
    settle()
    assert not pump.dead
    served.client.exiting = True
    served.drain()
    pump.join(10)
    assert pump.dead
    assert (channel.depth, len(channel.in_flight)) == (1, 0)


def test_client_that_reads_nothing_is_woken_for_no_message_while_it_is_sent_some(serve: Callable[..., Served]) -> None:
    served = serve(Options(output_buffer_timeout=1))
    served.client.start_tickers()
    channel = served.channel(b"x", rdy=10)
    served.fill()
    pump = served.start("messagePump")
    settle()
    assert (channel.depth, len(channel.in_flight), pump.dead) == (0, 1, False)
    other = FakeConsumer(2)
    assert channel.take(other, 10, MINUTE, 0) == []
    channel.put_messages(served.around.messages(b"y"))
    assert other.woken == 1


@pytest.mark.parametrize("woken", [False, True])
def test_client_that_reads_nothing_is_woken_for_no_message_while_it_is_sent_a_heartbeat(
    serve: Callable[..., Served], woken: bool
) -> None:
    served = serve()
    channel = served.channel(rdy=10)
    pump = served.start("messagePump")
    settle()
    other = FakeConsumer(2)
    assert channel.take(other, 10, MINUTE, 0) == []
    served.fill()
    served.client.heartbeat_due = True
    if woken:
        channel.put_messages(served.around.messages(b"x"))
        settle()
    else:
        served.client.doorbell.ring()
        settle()
        channel.put_messages(served.around.messages(b"x"))
    assert other.woken == 1
    assert len(channel.take(other, 10, MINUTE, 0)) == 1
    assert not pump.dead


def test_client_does_not_keep_a_deleted_topic_to_which_it_published(serve: Callable[..., Served]) -> None:
    served = serve()
    around = served.around
    served.start("IOLoop")
    for _ in range(2):
        served.theirs.sendall(b"PUB deleted\n\0\0\0\1xPUB deleted\n\0\0\0\1x")
        eventually(lambda: around.registry.topics and around.registry.topics["deleted"].message_count == 2)
        settle()
        around.registry.delete_existing_topic("deleted")
    around.greenlets.clear()
    around.notified.clear()
    gc.collect()
    left = [thing for thing in gc.get_objects() if isinstance(thing, Topic) and thing.name == "deleted"]
    assert left == []
    assert served.client.pub_counts == {"deleted": 4}


@pytest.mark.parametrize("data", [b"NOPE\n", b"PUB t\n\0\0\0\5x"])
def test_session_of_a_client_that_failed_is_freed_at_once(serve: Callable[..., Served], data: bytes) -> None:
    # No reference cycle, such as of an error and its traceback, keeps it until the next collection.
    served = serve()
    gc.collect()
    gc.disable()
    try:
        loop = served.start("IOLoop")
        served.theirs.sendall(data)
        settle()
        served.client.connection.shutdown()  # so that receiving fails
        loop.join(10)
        del served.session
        assert [each for each in gc.get_objects() if isinstance(each, Session)] == []
    finally:
        gc.enable()


def test_commands_at_hand_end_with_the_connection(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gnsqd.wire.session, "CLIENT_TURN_SECONDS", 1e-6)
    served = serve()
    loop = served.start("IOLoop")
    served.theirs.sendall(b"NOP\n" * 6400)
    eventually(lambda: served.session.decoder.buffered)
    served.client.close()
    loop.join(10)
    assert loop.dead
    assert served.session.decoder.buffered


# In the second case, each FIN comes after the commit of the PUB before it.
@pytest.mark.parametrize(
    ("commands", "options"),
    [
        (b"NOP\n" * 6400, {}),
        (b"PUB u\n\0\0\0\1xFIN 0123456789abcdef\n" * 200, {"durability": "process"}),
        (b"PUB u\n\0\0\0\1x" * 6400, {}),
        (b"PUB u\n\0\0\0\1x" * 6400, {"mem_queue_size": 0}),
    ],
)
def test_client_that_sends_very_much_at_once_lets_others_have_their_turn(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, commands: bytes, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(gnsqd.wire.session, "CLIENT_TURN_SECONDS", 1e-6)
    served = serve(Options(**options))
    served.around.logger.set_level(Level.INFO)  # PUBs in a row that are logged come one by one
    seen = set()

    def watch() -> None:
        while True:
            seen.add(served.session.decoder.buffered)
            sleep(0)

    served.client.channel = served.channel(rdy=0)
    served.session.decoder.feed(commands + b"PUB t\n\0\0\0\1x")
    served.start("IOLoop")
    watching = spawn(watch)
    eventually(lambda: served.session.decoder.buffered == 0)
    watching.kill()
    assert len(seen) >= 98


def test_large_pub_with_the_line_of_the_one_before_waits_for_a_greenlet(serve: Callable[..., Served]) -> None:
    served = serve(Options(max_msg_size=5_000_000))
    served.around.logger.set_level(Level.INFO)
    topic = served.around.registry.get_topic("t")
    small, large = (b"PUB t\n" + struct.pack(">i", size) + bytes(size) for size in (1, 2_000_000))
    served.session.decoder.feed(small + large + small)
    executed: list[bool] = []
    get_hub().loop.run_callback(lambda: executed.append(served.session.execute()))
    eventually(lambda: executed == [False])
    assert topic.message_count == 1
    served.start("IOLoop")
    eventually(lambda: topic.message_count == 3)


def test_command_that_waited_before_its_body_came_may_wait_again(serve: Callable[..., Served]) -> None:
    # The topic of this MPUB is made before the body is there, and then there are too many messages for one step.
    served = serve()
    served.start("IOLoop")
    body = struct.pack(">i", 3000) + 3000 * b"\0\0\0\1x"
    served.theirs.sendall(b"MPUB new\n" + struct.pack(">i", len(body)) + body[:100])
    eventually(lambda: "new" in served.around.registry.topics)
    settle()
    served.theirs.sendall(body[100:])
    eventually(lambda: served.around.registry.topics["new"].message_count == 3000)


@pytest.mark.parametrize("delivering", [False, True])
def test_answer_waits_for_room_in_the_socket(serve: Callable[..., Served], delivering: bool) -> None:
    # Also behind a message that is on its way.
    served = serve()
    topic = served.around.registry.get_topic("t")
    topic.commit()
    body = b"x" * (4 << 20)
    served.client.channel = served.channel(*[body] * delivering, rdy=1)
    served.start("IOLoop")
    settle()
    if not delivering:
        served.fill()
    served.theirs.sendall(b"PUB t\n\0\0\0\1x" * 2)
    eventually(lambda: topic.message_count == 2)
    settle()
    served.theirs.setblocking(False)
    received = bytearray()

    def is_answered() -> bool:
        with suppress(BlockingIOError):
            received.extend(served.theirs.recv(1 << 20))
        return received.endswith(2 * frame(FRAME_TYPE_RESPONSE, b"OK"))

    eventually(is_answered)
    assert (body in received) == delivering


def test_heartbeat_does_not_wait_with_messages_for_the_next_flush(serve: Callable[..., Served]) -> None:
    served = serve()
    served.around.logger.set_level(Level.INFO)  # debugging, messagePump delivers all
    served.client.output_buffer_timeout = MINUTE
    served.client.start_tickers()
    served.channel(b"x", rdy=10)
    served.start("messagePump")
    eventually(lambda: served.client.flush_timer is not None)
    settle()
    served.client.heartbeat_due = True
    served.client.doorbell.ring()
    eventually(lambda: is_readable(served.theirs, 0))


def test_very_much_output_does_not_leave_in_one_go(serve: Callable[..., Served]) -> None:
    served = serve()
    (client := served.client).output_buffer_size = 1 << 20
    client.buffer_messages(served.around.messages(b"x" * 70_000))
    assert not client.flush_at_once([b""])
    client.flush()
    assert client.flush_at_once([b""])


class Granted:
    identity = identity_url = ""
    permission_count = 1
    expired = False

    def knows(self, topic_name: str, channel_name: str) -> bool:
        return True

    def allows(self, topic_name: str, channel_name: str) -> bool:
        return True


def test_answers_leave_before_an_auth_server_takes_its_own_time(serve: Callable[..., Served]) -> None:
    received: list[bytes] = []

    def authenticate(remote_ip: str, tls: bool, common_name: str, secret: bytes) -> Granted:
        received.append(served.theirs.recv(65536))
        served.client.connection.read_deadline = monotonic()
        return Granted()

    served = serve(authenticate=authenticate)
    served.theirs.sendall(b"IDENTIFY\n\0\0\0\2{}AUTH\n\0\0\0\6secret")
    served.start("IOLoop")
    eventually(lambda: is_readable(served.theirs, 0))
    assert received == [frame(FRAME_TYPE_RESPONSE, b"OK")]
    assert served.client.connection.read_deadline > monotonic() + served.client.heartbeat_interval / SECOND


class RefusingStore(Store):
    """A store whose write-ahead log keeps nothing."""

    def __init__(self, topic: str, context: Context) -> None:
        super().__init__(topic, context)
        self.write_ahead = Mock(
            restored_channels=[], **{"write.side_effect": StorageError("disk full"), "take_back.return_value": ([], 0)}
        )


MPUB = b"MPUB t\n\0\0\0\x09\0\0\0\1\0\0\0\1x"


@pytest.mark.parametrize(
    ("published", "line", "refused"),
    [
        (b"PUB t\n\0\0\0\1x", b"", b"PUB"),
        (b"PUB t\n\0\0\0\1x" + MPUB, b"SUB t c\n", b"PUB"),
        (b"DPUB t 0\n\0\0\0\1x", b"SUB t c\n", b"DPUB"),
        (MPUB, b"FIN %b\n", b"MPUB"),
    ],
)
def test_command_behind_a_refused_publish_has_no_effect(
    serve: Callable[..., Served], published: bytes, line: bytes, refused: bytes
) -> None:
    served = serve()
    around, context = served.around, served.around.stores.context
    around.registry.attach(around.environment._replace(open_store=lambda name: RefusingStore(name, context)))
    topic = around.registry.get_topic("t")
    served.client.channel = channel = served.channel(b"y", rdy=1)
    (message,) = channel.take(served.client, 1, MINUTE, 0)
    served.theirs.sendall(published + line.replace(b"%b", message.id))
    served.start("IOLoop").join(10)
    assert served.theirs.recv(100) == frame(FRAME_TYPE_ERROR, b"E_%b_FAILED %b failed disk full" % (refused, refused))
    assert (topic.channels, len(channel.in_flight)) == ({}, 1)


def test_all_topics_are_written_before_a_client_waits_or_is_refused(serve: Callable[..., Served]) -> None:
    # So a topic that drops what it cannot write drops nothing of another client.
    served = serve()
    around, context = served.around, served.around.stores.context
    around.registry.attach(around.environment._replace(open_store=lambda name: RefusingStore(name, context)))
    logs: list[Any] = [around.registry.get_topic(name).write_ahead for name in ("t", "u", "v")]
    calls: list[str] = []
    for number, log in enumerate(logs):
        log.write.side_effect = lambda _, number=number: calls.append(f"write {number}")
        log.wait_synced.side_effect = partial(calls.append, f"wait {number}")
    published = b"PUB t\n\0\0\0\1xPUB u\n\0\0\0\1xPUB v\n\0\0\0\1x"
    served.session.decoder.feed(published)
    served.session.execute()
    served.session.commit_and_reply()
    assert calls == ["write 0", "write 1", "write 2", "wait 0", "wait 1", "wait 2"]
    for log in logs[:2]:
        log.write.side_effect = StorageError("disk full")
    served.session.decoder.feed(published)
    served.session.execute()
    with pytest.raises(ClientError, match="E_PUB_FAILED PUB failed disk full"):
        served.session.commit_and_reply()
    assert calls[6:] == ["write 2"]


def test_commands_are_executed_where_nothing_can_wait_up_to_one_that_does(serve: Callable[..., Served]) -> None:
    served = serve()
    topic = served.around.registry.get_topic("t")
    served.client.channel, served.client.state = topic.get_channel("c"), STATE_SUBSCRIBED
    in_flight = b"FIN 0123456789abcdef\nREQ 0123456789abcdef 0\nTOUCH 0123456789abcdef\n"
    published = b"PUB t\n\0\0\0\1xMPUB t\n\0\0\0\x09\0\0\0\1\0\0\0\1xDPUB t 0\n\0\0\0\1x"
    served.session.decoder.feed(b"RDY 1\n" + in_flight + b"CLS\nNOP\n" + published + b"PUB new\n\0\0\0\1x")
    executed: list[bool] = []
    get_hub().loop.run_callback(lambda: executed.append(served.session.execute()))
    eventually(lambda: executed == [False])
    assert (topic.message_count, served.client.state) == (3, STATE_CLOSING)


@pytest.mark.parametrize("ends", ["topic", "channel"])
def test_consumer_that_comes_during_a_deletion_waits_for_its_end(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    served = serve()
    registry = served.around.registry
    topic = registry.get_topic("t")
    channel = topic.get_channel("c")
    ending, known = (topic, registry.topics) if ends == "topic" else (channel, topic.channels)
    ending.exiting = True  # as while the disk is slow
    monkeypatch.setattr(gnsqd.wire.commands, "sleep", lambda _: known.clear())
    served.theirs.sendall(b"SUB t c\n")
    served.start("IOLoop")
    eventually(lambda: is_readable(served.theirs, 0))
    assert served.theirs.recv(100) == frame(FRAME_TYPE_RESPONSE, b"OK")
    new = registry.topics["t"].channels["c"]
    assert (new is channel, list(new.clients)) == (False, [1])


@pytest.mark.parametrize("durability", ["process", "disk"])
def test_publishers_of_a_turn_share_a_write_that_keeps_or_fails_all_of_them(
    serve: Callable[..., Served], durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = serve(Options(durability=durability))
    clients = [first, serve(around=first.around)]
    topic = first.around.registry.get_topic("t")
    channel = topic.get_channel("c")
    publish(topic, b"the first one, which begins a file")
    writes: list[int] = []
    pwritev = os.pwritev

    def write(descriptor: int, parts: list[bytes], position: int) -> int:
        writes.append(position)
        if refuses:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pwritev(descriptor, parts, position)

    for client in clients:
        client.start("IOLoop")
    settle()
    monkeypatch.setattr(os, "pwritev", write)
    for refuses, answer in ((False, b"OK"), (True, b"E_PUB_FAILED PUB failed write ")):
        writes.clear()
        for client in clients:
            client.theirs.sendall(b"PUB t\n\0\0\0\1x")
        eventually(lambda: all(is_readable(client.theirs, 0) for client in clients))
        for client in clients:
            assert client.theirs.recv(100)[8:].startswith(answer)
        assert refuses or len(writes) == 1
        assert channel.depth == 3
