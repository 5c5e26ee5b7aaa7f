"""A deferred message keeps its due time where the real nsqd forgets it: on disk and over a restart (NSQD-COMPAT 0.1,
item 10)."""

import time
from pathlib import Path

import pytest

from kit.daemons import Instance, eventually
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, all_done, create, finish, post, publish, take, wait_for

LONG = 3600 * 1000  # ms


def hold_back(daemon: Instance) -> None:
    create(daemon, "t", "c")
    post(daemon, f"/pub?topic=t&defer={LONG}", b"x")
    wait_for(daemon, "t", "c", deferred_count=1)


def wait_until_read(meta: Path, data: Path) -> None:
    eventually(lambda: meta.read_text().startswith(f"0\n0,{data.stat().st_size}\n"))


@pytest.mark.parametrize("mem_queue_size", [0, 1, 10000])
def test_delay_survives_overflow_and_restart(gnsqd_factory: DaemonFactory, mem_queue_size: int) -> None:
    daemon = gnsqd_factory(f"--mem-queue-size={mem_queue_size}")
    create(daemon, "t", "c")
    create(daemon, "bare")
    publish(daemon, "t", b"requeued")
    with NSQClient(daemon.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=1)
        published = time.monotonic()
        consumer.send(b"RDY 0\nREQ %b 1100\n" % consumer.message().id)
        assert not all_done(consumer)
    for topic in ("t", "bare"):
        for body, delay in ((b"long", LONG), (b"first", 1000), (b"second", 1200)):
            post(daemon, f"/pub?topic={topic}&defer={delay}", body)
    for _ in range(2):
        daemon.restart()
    for topic in ("t", "bare"):
        with NSQClient(daemon.tcp_address) as consumer:
            consumer.subscribe(topic, "c", rdy=10)
            earliest = {b"first": 0.9, b"second": 1.1}  # s; the wall clock may run a little faster
            if topic == "t":
                earliest[b"requeued"] = 1.0
            while earliest:
                (message,) = finish(consumer, 1)
                assert time.monotonic() - published >= earliest.pop(message.body)
                assert message.attempts == (2 if message.body == b"requeued" else 1)
            wait_for(daemon, topic, "c", deferred_count=1, depth=0, in_flight_count=0)
            assert not all_done(consumer)


def test_message_that_was_read_back_to_wait_survives_kills(gnsqd_factory: DaemonFactory) -> None:
    # It was safe on disk; the real nsqd would have delivered it, an hour early.
    daemon = gnsqd_factory("--sync-timeout=10ms")
    meta = daemon.data_path / "t:c.diskqueue.meta.dat"
    hold_back(daemon)
    daemon.restart()
    for _ in range(2):
        assert daemon.channel_stats("t", "c")["depth"] == 1
        with NSQClient(daemon.tcp_address) as consumer:
            consumer.subscribe("t", "c", rdy=10)
            wait_for(daemon, "t", "c", deferred_count=1)
            eventually(lambda: meta.read_text().startswith("0\n"))  # the disk knows that it was read
        daemon.kill()
        daemon.start()
    with NSQClient(daemon.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=10)
        wait_for(daemon, "t", "c", deferred_count=1)
        assert consumer.nothing_arrives(0.3)


def test_message_that_left_the_disk_of_its_topic_to_wait_survives_a_kill(gnsqd_factory: DaemonFactory) -> None:
    daemon = gnsqd_factory("--mem-queue-size=0", "--sync-every=1", "--sync-timeout=1h")
    hold_back(daemon)
    wait_until_read(daemon.data_path / "t.diskqueue.meta.dat", daemon.data_path / "t.diskqueue.000000.dat")
    daemon.kill()
    daemon.start()
    with NSQClient(daemon.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=10)
        wait_for(daemon, "t", "c", deferred_count=1, depth=0)


def test_finished_message_does_not_come_back_from_the_side_file(gnsqd_factory: DaemonFactory) -> None:
    daemon = gnsqd_factory("--mem-queue-size=0", "--sync-timeout=10ms")
    with NSQClient(daemon.tcp_address) as client:
        client.subscribe("t", "c", rdy=10)
        client.command(b"DPUB t 500", b"x")
        assert client.response() == b"OK"
        message = client.message()
        client.command(b"FIN " + message.id)
        wait_for(daemon, "t", "c", in_flight_count=0)
        for queue in ("t", "t:c"):
            meta = daemon.data_path / f"{queue}.diskqueue.meta.dat"
            data = daemon.data_path / f"{queue}.diskqueue.000000.dat"
            wait_until_read(meta, data)
    daemon.kill()
    daemon.start()
    with NSQClient(daemon.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=10)
        assert consumer.nothing_arrives(0.3)
    stats = daemon.channel_stats("t", "c")
    assert (stats["depth"], stats["deferred_count"]) == (0, 0)


def test_no_side_file_stays_when_nothing_is_held_back(gnsqd: Instance) -> None:
    side_file = gnsqd.data_path / "t:c.diskqueue.due_times.dat"
    hold_back(gnsqd)
    gnsqd.restart()
    assert side_file.exists()
    post(gnsqd, "/channel/empty?topic=t&channel=c")
    assert not side_file.exists()
    gnsqd.restart()
    assert not side_file.exists()
    assert gnsqd.channel_stats("t", "c")["depth"] == 0


def test_side_file_that_is_damaged_is_named_and_holds_nothing_up(gnsqd: Instance) -> None:
    hold_back(gnsqd)
    gnsqd.terminate()
    side_file = gnsqd.data_path / "t:c.diskqueue.due_times.dat"
    side_file.write_bytes(side_file.read_bytes()[:-1])
    gnsqd.start()
    line = f"ERROR: DISKQUEUE(t:c) deferred messages may come early or be missing - {side_file} ends in the middle"
    assert line in gnsqd.log()
    assert take(gnsqd, "t", "c", 1)[0].body == b"x"
