"""Promises of `--durability` where a disk fails or a kill comes at a certain step. Ours alone; test_table.py has kills
at random moments and losses of power, unit/queues/journal kills during a conversion."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from kit.account import drain
from kit.daemons import Instance, NotStarted, eventually, own_command, wait_until_stopped
from kit.faulty_gnsqd import Faults, Rule
from kit.http_api import ask
from kit.nsq_client import NSQClient, parse_message, sized
from kit.traffic import DaemonFactory, create, post, publish, take, wait_for


@pytest.fixture
def faulty(faults: Faults, tmp_path: Path) -> Iterator[Instance]:
    with Instance(faults.command, tmp_path / "data", "--durability=disk", "--mem-queue-size=100") as nsqd:
        yield nsqd


def test_everything_about_messages_survives_a_kill(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--durability=process")
    create(nsqd, "t", "paused")
    post(nsqd, "/channel/pause?topic=t&channel=paused")
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", 10)
        client.publish("t", b"finished", b"in flight", b"deferred")
        client.command(b"DPUB t 60000", b"later")
        frames = [client.frame() for _ in range(4)]
        assert sum(frame.data == b"OK" for frame in frames) == 1
        messages = [parse_message(frame.data) for frame in frames if frame.data != b"OK"]
        ids = {message.body: message.id for message in messages}
        client.command(b"FIN " + ids[b"finished"])
        client.command(b"REQ %b 60000" % ids[b"deferred"])
        wait_for(nsqd, "t", "c", deferred_count=2, in_flight_count=1)
        client.publish("t", b"last")
        nsqd.kill()
        nsqd.restart()
    wait_for(nsqd, "t", "c", depth=2, in_flight_count=0, deferred_count=2)
    wait_for(nsqd, "t", "paused", paused=True, depth=4, deferred_count=1)
    again = {message.body: message for message in take(nsqd, "t", "c", 2)}
    assert again.keys() == {b"in flight", b"last"}
    assert (again[b"in flight"].attempts, again[b"in flight"].id) == (2, ids[b"in flight"])


def test_a_copy_of_a_held_daemon_has_what_was_acknowledged(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    flags = ["--durability=process", "--max-bytes-per-file=20000"]
    nsqd = gnsqd_factory(*flags)
    acknowledged: list[bytes] = []
    finished: set[bytes] = set()

    def publish_and_finish() -> None:
        with NSQClient(nsqd.tcp_address) as publisher, NSQClient(nsqd.tcp_address) as consumer:
            consumer.subscribe("t", "c", rdy=1)
            while not (tmp_path / "copy" / "nsqd.dat").exists():
                bodies = [b"%d" % number + bytes(100) for number in range(len(acknowledged), len(acknowledged) + 10)]
                publisher.publish("t", *bodies)
                acknowledged.extend(bodies)
                for _ in range(5):  # so that there are segments to delete
                    message = consumer.message()
                    finished.add(message.body)
                    consumer.command(b"FIN " + message.id)

    thread = Thread(target=publish_and_finish)
    thread.start()
    eventually(lambda: len(acknowledged) >= 2000)
    nsqd.send_signal(signal.SIGSTOP)
    wait_until_stopped(nsqd.pid)
    before = set(acknowledged)
    shutil.copytree(nsqd.data_path, tmp_path / "copy")
    nsqd.send_signal(signal.SIGCONT)
    thread.join()
    with Instance(own_command(), tmp_path / "copy", *flags) as copy:
        assert "ERROR" not in copy.log()
        assert before - finished <= set(drain(copy, "t"))


def test_clean_exit_writes_next_to_nothing(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--durability=process")
    create(nsqd, "t", *"abcd")
    for _ in range(20):
        publish(nsqd, "t", *[b"x" * 200] * 1000)
    wait_for(nsqd, "t", "d", depth=20_000)

    def size() -> int:
        return sum(path.stat().st_size for path in nsqd.data_path.iterdir())

    before = size()
    assert nsqd.terminate() == 0
    text = "NSQ: 20000 messages are in journals, which only gnsqd reads; `gnsqadmin data convert {}` moves them"
    assert text.format(nsqd.data_path) in nsqd.log()
    assert before <= size() <= 1.05 * before
    nsqd.restart()
    for channel in "ad":
        wait_for(nsqd, "t", channel, depth=20_000)


def test_exit_is_heard_while_disk_queues_move_to_a_journal(faults: Faults, faulty: Instance) -> None:
    faulty.restart("--durability=none")
    for _ in range(20):
        publish(faulty, "t", *[bytes(100)] * 1000)
    assert faulty.terminate() == 0
    faulty.flags = ("--durability=process",)
    faults.set({"call": "rename", "name": "t.diskqueue.meta.dat.*.tmp", "hold": True, "after": 2})

    def terminate() -> None:
        eventually(faults.hits)
        faulty.send_signal(signal.SIGTERM)
        faults.set()

    thread = Thread(target=terminate)
    thread.start()
    with pytest.raises(NotStarted):
        faulty.start()
    thread.join()
    assert faulty.wait() == 1
    assert "FATAL: failed to load metadata - asked to exit while messages move" in faulty.log()
    moved = int((faulty.data_path / "t.diskqueue.meta.dat").read_text().split()[0])
    assert 0 < moved < 20_000
    assert list(faulty.data_path.glob("t.journal.*"))
    faulty.start()
    assert f"JOURNAL(t): moving {moved} messages" in faulty.log()
    assert faulty.stats("t")["topics"][0]["depth"] == 20_000


@pytest.mark.parametrize(
    "rule, error",
    [
        (Rule(call="fdatasync", error="EIO"), b"sync"),
        (Rule(call="pwrite", error="EIO"), b"write"),
        (Rule(call="pwrite", error="ENOSPC", after=20), b"write"),
    ],
    ids=["sync", "write", "short write"],
)
def test_what_a_failing_disk_may_not_keep_is_never_answered_by_ok(
    faults: Faults, faulty: Instance, rule: Rule, error: bytes
) -> None:
    publish(faulty, "t", b"before")
    (journal,) = faulty.data_path.glob("t.journal.*.dat")
    size = journal.stat().st_size
    faults.set(Rule(name="t.journal.*", **rule))
    with NSQClient(faulty.tcp_address) as consumer:  # one that comes meanwhile
        consumer.subscribe("t", "c", rdy=1)
        assert consumer.message().body == b"before"
        with NSQClient(faulty.tcp_address) as client:
            client.send(b"PUB t\n" + sized(b"unsure") + b"SUB t other\n")
            assert client.error().startswith(b"E_PUB_FAILED PUB failed %b " % error)
            assert client.recv_until_closed() == b""
    assert ask(faulty, "POST /pub?topic=t", b"unsure, too")[0] == 503
    assert ask(faulty, "GET /ping")[0] == 500
    assert error == b"sync" or journal.stat().st_size == size  # nothing torn
    faults.set()
    eventually(lambda: ask(faulty, "GET /ping") == (200, "OK"))
    eventually(lambda: ask(faulty, "POST /pub?topic=t", b"after")[0] == 200)
    faults.set(Rule(name="t.journal.*", call="pwrite", kill=True, after=20))
    with NSQClient(faulty.tcp_address) as client:
        client.command(b"PUB t", b"killed")
        client.recv_until_closed()
    assert faulty.wait() == -signal.SIGKILL
    faults.set()
    faulty.restart()
    assert set(drain(faulty, "t")) - {b"unsure"} == {b"before", b"after"}


def test_what_is_dropped_is_answered_when_a_loss_of_power_does_not_bring_it_back(
    faults: Faults, faulty: Instance
) -> None:
    create(faulty, "t", "c", "d")
    publish(faulty, "t", b"1", b"2")
    wait_for(faulty, "t", "c", depth=2)
    post(faulty, "/topic/pause?topic=t")
    publish(faulty, "t", b"3")
    for path, call, name in (
        ("/channel/empty?topic=t&channel=c", "fdatasync", "t.journal.*"),
        ("/topic/empty?topic=t", "fdatasync", "t.journal.*"),
        ("/channel/delete?topic=t&channel=d", "fdatasync", "t.journal.*"),
        ("/topic/delete?topic=t", "fsync", faulty.data_path.name),
    ):
        faults.set(Rule(call=call, name=name, error="EIO"))
        assert ask(faulty, f"POST {path}")[0] == 500, path
        assert faults.hits(), path
        faults.set()
        eventually(lambda: ask(faulty, "GET /ping") == (200, "OK"))
    assert not list(faulty.data_path.glob("t.*"))
