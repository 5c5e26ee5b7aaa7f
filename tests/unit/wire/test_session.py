"""What of the protocol's greenlets no client can bring about at will; the rest is in behaviour/."""

import gc
import socket
from pathlib import Path

import pytest
from gevent import sleep, spawn

import gnsqd.wire.session
from gnsqd.broker.topic import Topic
from gnsqd.options import Options
from gnsqd.storage.syncer import Syncer
from gnsqd.wire.client_v2 import ClientV2
from gnsqd.wire.commands import Commands
from gnsqd.wire.session import ProtocolV2
from kit.daemons import is_readable
from unit.broker.fakes import MINUTE, FakeConsumer, Fakes, backend_of, eventually, settle


def test_client_that_ends_while_its_heartbeat_waits_for_room_takes_no_more_messages(tmp_path: Path) -> None:
    around = Fakes(tmp_path, Options(), Syncer())
    channel = around.channel()
    channel.put_messages(around.messages(b"x"))
    ours, theirs = socket.socketpair()
    with theirs:
        client = ClientV2(1, ours, "127.0.0.1:1", around.options)
        client.delivers_from = channel
        client.ready_count = 1
        fill(ours)
        client.heartbeat_due = True
        pump = spawn(session(around).messagePump, client)
        settle()
        assert not pump.dead
        client.exiting = True
        drain(theirs)
        pump.join(10)
        client.stop_tickers()
        client.connection.close()
        assert pump.dead
    assert (channel.depth, channel.in_flight_count) == (1, 0)
    backend_of(channel).close()
    around.syncer.stop()


def test_client_that_reads_nothing_is_woken_for_no_message_while_it_is_sent_some(tmp_path: Path) -> None:
    around = Fakes(tmp_path, Options(output_buffer_timeout=1), Syncer())
    channel = around.channel()
    channel.put_messages(around.messages(b"x"))
    ours, theirs = socket.socketpair()
    with theirs:
        client = ClientV2(1, ours, "127.0.0.1:1", around.options)
        client.start_tickers()
        client.delivers_from = channel
        client.ready_count = 10
        fill(ours)
        pump = spawn(session(around).messagePump, client)
        settle()
        assert (channel.depth, channel.in_flight_count, pump.dead) == (0, 1, False)
        other = FakeConsumer(2)
        assert channel.take(other, 10, MINUTE, 0) == []
        channel.put_messages(around.messages(b"y"))
        assert other.woken == 1
        client.close()
        drain(theirs)
        pump.join(10)
        client.stop_tickers()
        client.connection.close()
        assert pump.dead
    backend_of(channel).close()
    around.syncer.stop()


@pytest.mark.parametrize("woken", [False, True])
def test_client_that_reads_nothing_is_woken_for_no_message_while_it_is_sent_a_heartbeat(
    tmp_path: Path, woken: bool
) -> None:
    around = Fakes(tmp_path, Options(), Syncer())
    channel = around.channel()
    ours, theirs = socket.socketpair()
    with theirs:
        client = ClientV2(1, ours, "127.0.0.1:1", around.options)
        client.delivers_from = channel
        client.ready_count = 10
        pump = spawn(session(around).messagePump, client)
        settle()
        other = FakeConsumer(2)
        assert channel.take(other, 10, MINUTE, 0) == []
        fill(ours)
        client.heartbeat_due = True
        if woken:
            channel.put_messages(around.messages(b"x"))
            settle()
        else:
            client.doorbell.ring()
            settle()
            channel.put_messages(around.messages(b"x"))
        assert other.woken == 1
        assert len(channel.take(other, 10, MINUTE, 0)) == 1
        assert not pump.dead
        client.close()
        drain(theirs)
        pump.join(10)
        client.connection.close()
        assert pump.dead
    backend_of(channel).close()
    around.syncer.stop()


def test_client_does_not_keep_a_deleted_topic_to_which_it_published(tmp_path: Path) -> None:
    around = Fakes(tmp_path, Options(), Syncer())
    ours, theirs = socket.socketpair()
    with theirs:
        client = ClientV2(1, ours, "127.0.0.1:1", around.options)
        serving = spawn(session(around).IOLoop, client)
        for _ in range(2):
            theirs.sendall(b"PUB deleted\n\0\0\0\1xPUB deleted\n\0\0\0\1x")
            eventually(lambda: around.registry.topics and around.registry.topics["deleted"].message_count == 2)
            settle()
            around.registry.delete_existing_topic("deleted")
        around.greenlets.clear()
        around.notified.clear()
        gc.collect()
        left = [thing for thing in gc.get_objects() if isinstance(thing, Topic) and thing.name == "deleted"]
        published = dict(client.pub_counts)
        client.close()
        serving.join(10)
        client.connection.close()
        assert serving.dead
    around.syncer.stop()
    assert (left, published) == ([], {"deleted": 4})


def test_client_that_sends_very_much_at_once_lets_others_have_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gnsqd.wire.session, "TURN_SECONDS", 1e-6)
    around = Fakes(tmp_path, Options(), Syncer())
    ours, theirs = socket.socketpair()
    seen = set()

    def watch() -> None:
        while True:
            seen.add(client.decoder.buffered)
            sleep(0)

    with theirs:
        client = ClientV2(1, ours, "127.0.0.1:1", around.options)
        client.decoder.feed(b"NOP\n" * 6400 + b"PUB t\n\0\0\0\1x")
        serving = spawn(session(around).IOLoop, client)
        watching = spawn(watch)
        theirs.settimeout(10)
        while not is_readable(theirs, 0):
            sleep(0.001)
        watching.kill()
        theirs.shutdown(socket.SHUT_WR)
        serving.join(10)
        client.stop_tickers()
        client.connection.close()
    assert len(seen) >= 6400 // 64 - 2
    for topic in around.registry.topics.values():
        topic.close()
    around.syncer.stop()


def session(around: Fakes) -> ProtocolV2:
    return ProtocolV2(Commands(around.registry, around.options, around.logger, None), around.logger, around.spawn)


def fill(sock: socket.socket) -> None:
    try:
        while True:
            sock.send(bytes(65536))
    except BlockingIOError:
        pass


def drain(sock: socket.socket) -> None:
    sock.setblocking(False)
    try:
        while sock.recv(65536):
            pass
    except BlockingIOError:
        pass
