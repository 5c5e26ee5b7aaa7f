"""What `--durability` promises: no kill, full disk or failing fsync costs a message that was acknowledged and is not
finished. Ours alone; `python -m faults.ledger` does the same for as long as one likes."""

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from cli.gnsqadmin import gnsqadmin
from faults import ledger
from kit.daemons import Daemon, StartFailed, eventually, own_command
from kit.faulty_gnsqd import Faults
from kit.http_api import ask
from kit.nsq_client import Client, Message, parse_message, sized
from kit.small_disk import SmallDisk

DaemonFactory = Callable[..., Daemon]
MINUTE = b"60000"  # ms


@pytest.mark.parametrize(
    "flags",
    [
        ("--durability=process",),
        ("--durability=process", "--mem-queue-size=10", "--max-bytes-per-file=20000"),
        ("--durability=disk", "--mem-queue-size=100"),
    ],
    ids=["process", "small files", "disk"],
)
def test_nothing_acknowledged_is_lost_by_kills(flags: tuple[str, ...], tmp_path: Path) -> None:
    outcome = ledger.run(own_command(), tmp_path, 3, 5, *flags)
    assert outcome.acknowledged
    assert outcome.lost() == []
    assert outcome.early == []


def test_kills_while_a_channel_is_rewound_lose_nothing_and_bring_nothing_older(tmp_path: Path) -> None:
    flags = ("--durability=process", f"--retention-bytes={ledger.RETENTION_BYTES}", "--max-bytes-per-file=200000")
    outcome = ledger.run(own_command(), tmp_path, 5, 5, *flags, rewinds=True)
    assert [rewind for rewind in outcome.rewinds if rewind.answered]
    assert outcome.past.count
    assert outcome.past.wrong == []
    assert outcome.lost() == []
    assert outcome.missing() == []
    assert outcome.duplicated() == 0


def kill_and_restart(nsqd: Daemon, *flags: str) -> None:
    nsqd.kill()
    nsqd.restart(*flags)


def take(nsqd: Daemon, count: int, channel: str = "c", finish: bool = True) -> list[Message]:
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t", channel, count)
        messages = [client.message() for _ in range(count)]
        if finish:
            client.command(b"RDY 0")
            for message in messages:
                client.command(b"FIN " + message.id)
            in_flight(nsqd, 0, channel)
    return messages


def in_flight(nsqd: Daemon, count: int, channel: str = "c") -> None:
    eventually(lambda: nsqd.channel_stats("t", channel)["in_flight_count"] == count)


def journal_files(nsqd: Daemon) -> list[str]:
    return sorted(path.name for path in nsqd.data_path.glob("*.journal.*"))


def test_everything_about_messages_survives_a_kill(gnsqd_factory: DaemonFactory) -> None:
    """In flight, deferred, attempts, due times, pauses."""
    nsqd = gnsqd_factory("--durability=process")
    for what in ("topic/create", "channel/create", "channel/pause"):
        assert ask(nsqd, f"POST /{what}?topic=t&channel=paused")[0] == 200
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t", "c", 10)
        client.publish("t", b"finished", b"in flight", b"deferred")
        client.command(b"DPUB t " + MINUTE, b"later")
        found: dict[bytes, Message] = {}
        ok = False
        while len(found) < 3 or not ok:
            frame = client.frame()
            if frame.data == b"OK":
                ok = True
            else:
                message = parse_message(frame.data)
                found[message.body] = message
        client.command(b"FIN " + found[b"finished"].id)
        client.command(b"REQ " + found[b"deferred"].id + b" " + MINUTE)
        eventually(lambda: nsqd.channel_stats("t", "c")["deferred_count"] == 2)
        in_flight(nsqd, 1)
        client.publish("t", b"last")
        kill_and_restart(nsqd)
    stats = nsqd.channel_stats("t", "c")
    assert (stats["depth"], stats["in_flight_count"], stats["deferred_count"]) == (2, 0, 2)
    paused = nsqd.channel_stats("t", "paused")
    assert (paused["paused"], paused["depth"], paused["deferred_count"]) == (True, 4, 1)
    messages = {message.body: message for message in take(nsqd, 2)}
    assert set(messages) == {b"in flight", b"last"}
    assert messages[b"in flight"].attempts == 2
    assert messages[b"in flight"][:1] == found[b"in flight"][:1]
    assert messages[b"in flight"].id == found[b"in flight"].id


def test_finished_messages_leave_no_trace(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--durability=process", "--max-bytes-per-file=5000")
    assert ask(nsqd, "POST /topic/create?topic=t")[0] == 200
    assert ask(nsqd, "POST /channel/create?topic=t&channel=c")[0] == 200
    with Client(nsqd.tcp_address) as publisher:
        for _ in range(5):
            publisher.publish("t", *[b"x" * 100] * 40)
            take(nsqd, 40)
        publisher.publish("t", b"last")  # with it the FINs before it are kept
    eventually(lambda: len(journal_files(nsqd)) == 1)
    kill_and_restart(nsqd)
    assert [message.body for message in take(nsqd, 1)] == [b"last"]
    assert nsqd.channel_stats("t", "c")["depth"] == 0


def test_clean_exit_writes_next_to_nothing(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--durability=process")
    for channel in "abcd":
        for what in ("topic", "channel"):
            assert ask(nsqd, f"POST /{what}/create?topic=t&channel={channel}")[0] == 200
    with Client(nsqd.tcp_address) as client:
        for _ in range(20):
            client.publish("t", *[b"x" * 200] * 1000)
    eventually(lambda: nsqd.channel_stats("t", "d")["depth"] == 20_000)

    def size() -> int:
        return sum(path.stat().st_size for path in nsqd.data_path.iterdir())

    before = size()
    assert nsqd.terminate() == 0
    assert before <= size() <= 1.05 * before
    nsqd.restart()
    assert nsqd.channel_stats("t", "a")["depth"] == nsqd.channel_stats("t", "d")["depth"] == 20_000


@pytest.mark.peer
def test_real_nsqd_takes_over_after_a_conversion_and_back(
    gnsqd_factory: DaemonFactory, peer_binary: Callable[[str], Path]
) -> None:
    nsqd = gnsqd_factory("--durability=process", "--mem-queue-size=5")
    bodies = [b"%d" % number for number in range(20)]
    for channel in "cd":
        for what in ("topic", "channel"):
            assert ask(nsqd, f"POST /{what}/create?topic=t&channel={channel}")[0] == 200
    with Client(nsqd.tcp_address) as client:
        client.publish("t", *bodies)
    eventually(lambda: nsqd.channel_stats("t", "c")["depth"] == 20)
    finished = take(nsqd, 4)
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t", "c", 3)
        held = [client.message() for _ in range(3)]
    assert nsqd.terminate() == 0
    assert (
        f"INFO: NSQ: 20 messages are in journals, which only gnsqd reads; `gnsqadmin data convert {nsqd.data_path}`"
        in (nsqd.log())
    )
    assert gnsqadmin("data", "convert", str(nsqd.data_path)).code == 0
    assert journal_files(nsqd) == []
    ours = nsqd.command
    nsqd.command = [str(peer_binary("nsqd"))]
    nsqd.restart("--mem-queue-size=5")
    found = take(nsqd, 16)
    assert Counter(message.body for message in [*finished, *found]) == Counter(bodies)
    attempts = {message.id: message.attempts for message in found}
    assert [attempts[message.id] for message in held] == [2, 2, 2]
    nsqd.command = ours
    nsqd.restart("--durability=process", "--mem-queue-size=5")
    kill_and_restart(nsqd)
    assert Counter(message.body for message in take(nsqd, 20, "d")) == Counter(bodies)


def test_kill_while_a_dead_letter_is_written_leaves_its_message(tmp_path: Path) -> None:
    faults = Faults(tmp_path / "faults", own_command())
    nsqd = Daemon(faults.command, tmp_path / "data", "--durability=process", "--max-attempts=1")
    with nsqd:
        assert ask(nsqd, "POST /pub?topic=t", b"x")[0] == 200
        with Client(nsqd.tcp_address) as client:
            client.subscribe("t", "c", 1)
            message = client.message()
            faults.set({"call": "pwrite", "name": "t.c.dead.journal.*", "kill": True})
            client.command(b"REQ %b 0" % message.id)
            client.recv_until_closed()
        nsqd.wait()
        faults.set()
        nsqd.restart()
        assert [(found.id, found.body) for found in take(nsqd, 1)] == [(message.id, b"x")]


def test_journal_is_ignored_by_nobody_of_ours(gnsqd_factory: DaemonFactory) -> None:
    """Without durability the messages of a journal go to the disk queues, once."""
    nsqd = gnsqd_factory("--durability=process")
    for what in ("topic", "channel"):
        assert ask(nsqd, f"POST /{what}/create?topic=t&channel=c")[0] == 200
    with Client(nsqd.tcp_address) as client:
        client.publish("t", b"0", b"1", b"2")
        client.publish("alone", b"x")
    take(nsqd, 1)
    with Client(nsqd.tcp_address) as client:
        client.publish("t", b"3")  # with it the FIN is kept
    nsqd.kill()
    (nsqd.data_path / "nsqd.dat").unlink()
    nsqd.restart("--durability=none")
    assert journal_files(nsqd) == []
    assert {message.body for message in take(nsqd, 3)} == {b"1", b"2", b"3"}
    assert nsqd.stats("alone")["topics"][0]["depth"] == 1


def test_kill_while_a_journal_is_converted_costs_nothing(tmp_path: Path) -> None:
    faults = Faults(tmp_path / "faults", own_command())
    nsqd = Daemon(faults.command, tmp_path / "data", "--durability=process", "--mem-queue-size=100")
    bodies = [b"%d" % number for number in range(5000)]
    with nsqd:
        for what in ("topic", "channel"):
            assert ask(nsqd, f"POST /{what}/create?topic=t&channel=c")[0] == 200
        with Client(nsqd.tcp_address) as client:
            client.publish("t", *bodies)
        eventually(lambda: nsqd.channel_stats("t", "c")["depth"] == len(bodies))  # none is left to the topic
        assert nsqd.terminate() == 0
        nsqd.flags = ("--durability=none",)
        for size in (10_000, 50_000):
            faults.set({"call": "pwrite", "name": "t:c.diskqueue.*", "kill": True, "after": size})
            with pytest.raises(StartFailed):
                nsqd.start()
            assert list(nsqd.data_path.glob("t:c.diskqueue.0*"))
        faults.set()
        nsqd.flags = ("--durability=process",)
        nsqd.start()
        assert Counter(message.body for message in take_all(nsqd, 5000)) == Counter(bodies)
        assert nsqd.channel_stats("t", "c")["depth"] == 0


def backlog_in_disk_queues(nsqd: Daemon, count: int) -> None:
    """Messages of 100 bytes that a clean exit without durability leaves in the disk queue of topic `t`."""
    with Client(nsqd.tcp_address) as client:
        for first in range(0, count, 1000):
            client.publish("t", *[b"%0100d" % number for number in range(first, first + 1000)])
    assert nsqd.terminate() == 0


def test_kills_while_disk_queues_move_to_a_journal_multiply_nothing(tmp_path: Path) -> None:
    """Each costs a batch of 1000 that comes twice, at most."""
    faults = Faults(tmp_path / "faults", own_command())
    nsqd = Daemon(faults.command, tmp_path / "data", "--max-bytes-per-file=300000")
    with nsqd:
        backlog_in_disk_queues(nsqd, 20_000)
        nsqd.flags = (*nsqd.flags, "--durability=process")
        for _ in range(3):
            faults.set({"call": "pwrite", "name": "t.journal.*", "kill": True, "after": 700_000})
            with pytest.raises(StartFailed):
                nsqd.start()
            assert "ERROR" not in nsqd.log()
        faults.set()
        nsqd.start()
        assert "ERROR" not in nsqd.log()
        assert 20_000 <= nsqd.stats("t")["topics"][0]["depth"] <= 23_000


def test_exit_is_heard_while_disk_queues_move_to_a_journal(tmp_path: Path) -> None:
    """The next start goes on with the rest."""
    faults = Faults(tmp_path / "faults", own_command())
    nsqd = Daemon(faults.command, tmp_path / "data")
    with nsqd:
        backlog_in_disk_queues(nsqd, 20_000)
        nsqd.flags = ("--durability=process",)
        faults.set({"call": "rename", "name": "t.diskqueue.meta.dat.*.tmp", "hold": True, "after": 2})

        def terminate() -> None:
            eventually(faults.hits)
            nsqd.send_signal(signal.SIGTERM)
            faults.set()

        thread = Thread(target=terminate)
        thread.start()
        with pytest.raises(StartFailed):
            nsqd.start()
        thread.join()
        assert nsqd.wait() == 1
        assert "FATAL: failed to load metadata - asked to exit while messages move" in nsqd.log()
        moved = int((nsqd.data_path / "t.diskqueue.meta.dat").read_text().split()[0])
        assert 0 < moved < 20_000
        assert journal_files(nsqd)
        nsqd.start()
        assert f"JOURNAL(t): moving {moved} messages" in nsqd.log()
        assert nsqd.stats("t")["topics"][0]["depth"] == 20_000


def take_all(nsqd: Daemon, count: int) -> list[Message]:
    messages = []
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t", "c", 500)
        for _ in range(count):
            messages.append(client.message())
            client.command(b"FIN " + messages[-1].id)
    return messages


def test_failing_fsync_is_never_answered_by_ok(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    faults = Faults(tmp_path / "faults", own_command())
    nsqd = Daemon(faults.command, tmp_path / "data", "--durability=disk")
    with nsqd:
        with Client(nsqd.tcp_address) as client:
            client.publish("t", b"before")
            faults.set({"call": "fdatasync", "name": "t.journal.*", "error": "EIO"})
            client.command(b"PUB t", b"unsure")
            assert client.error().startswith(b"E_PUB_FAILED PUB failed sync ")
            client.recv_until_closed()
        assert ask(nsqd, "POST /pub?topic=t", b"unsure, too")[0] == 503
        assert ask(nsqd, "GET /ping")[0] == 500
        faults.set()
        eventually(lambda: ask(nsqd, "GET /ping") == (200, "OK"))
        eventually(lambda: ask(nsqd, "POST /pub?topic=t", b"after")[0] == 200)
        kill_and_restart(nsqd)
        assert {message.body for message in take(nsqd, 3)} == {b"before", b"unsure", b"after"}


def test_consumers_come_in_while_a_journal_cannot_be_written(tmp_path: Path) -> None:
    """As with a full disk without one: a channel is made, and publishers are refused."""
    faults = Faults(tmp_path / "faults", own_command())
    nsqd = Daemon(faults.command, tmp_path / "data", "--durability=process")
    with nsqd:
        with Client(nsqd.tcp_address) as client:
            client.publish("t", b"before")
        faults.set({"call": "pwrite", "name": "t.journal.*", "error": "EIO"})
        with Client(nsqd.tcp_address) as consumer:
            consumer.subscribe("t", "c", rdy=1)
            assert consumer.message().body == b"before"
            with Client(nsqd.tcp_address) as client:
                client.command(b"PUB t", b"unsure")
                assert client.error().startswith(b"E_PUB_FAILED PUB failed write ")
            with Client(nsqd.tcp_address) as client:
                client.send(b"PUB t\n" + sized(b"unsure") + b"SUB t other\n")
                assert client.error().startswith(b"E_PUB_FAILED PUB failed write ")
                assert client.recv_until_closed() == b""
        faults.set()
        with Client(nsqd.tcp_address) as client:
            client.publish("t", b"after")
        kill_and_restart(nsqd)
        with Client(nsqd.tcp_address) as consumer:
            consumer.subscribe("t", "c", rdy=10)
            bodies: set[bytes] = set()
            while not {b"before", b"after"} <= bodies:
                bodies.add(consumer.message().body)


def test_short_write_is_refused_and_leaves_the_journal_readable(tmp_path: Path) -> None:
    faults = Faults(tmp_path / "faults", own_command())
    nsqd = Daemon(faults.command, tmp_path / "data", "--durability=process")
    with nsqd:
        with Client(nsqd.tcp_address) as client:
            client.publish("t", b"before")
            faults.set({"call": "pwrite", "name": "t.journal.*", "error": "ENOSPC", "after": 20})
            client.command(b"PUB t", b"unsure")
            assert client.error().startswith(b"E_PUB_FAILED PUB failed write ")
        faults.set({"call": "pwrite", "name": "t.journal.*", "kill": True, "after": 20})
        with Client(nsqd.tcp_address) as client:
            client.command(b"PUB t", b"killed")
            client.recv_until_closed()
        nsqd.wait()
        faults.set()
        nsqd.restart()
        with Client(nsqd.tcp_address) as client:
            client.publish("t", b"after")
        bodies = {message.body for message in take(nsqd, 2)}
        assert bodies == {b"before", b"after"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "small", size=1 << 20, inodes=100)
    yield disk
    disk.close()


def test_full_disk_refuses_what_it_cannot_keep(disk: SmallDisk) -> None:
    flags = ("--durability=process", "--max-msg-size=20000", "--max-bytes-per-file=100000")
    nsqd = Daemon(disk.inside(own_command()), disk.path, *flags)
    nsqd.start()
    reserve = disk.files / "reserve"  # a daemon that starts has to write nsqd.dat
    reserve.write_bytes(bytes(50_000))
    acknowledged = []
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t", "c")
        for number in range(1000):
            body = b"%d" % number * 1000
            client.command(b"PUB t", body)
            frame = client.frame()
            if frame.data != b"OK":
                assert frame.data.startswith(b"E_PUB_FAILED PUB failed ")
                break
            acknowledged.append(body)
        else:
            raise AssertionError("never full")
    assert len(acknowledged) > 100
    assert ask(nsqd, "GET /ping")[0] == 500
    nsqd.kill()
    reserve.unlink()
    nsqd.restart()
    with suppress(OSError), reserve.open("wb", buffering=0) as file:
        while file.write(bytes(1000)):
            pass
    found = take_all(nsqd, len(acknowledged))  # though there is no room to write what is finished
    assert {message.body for message in found} >= set(acknowledged)
    eventually(lambda: ask(nsqd, "POST /pub?topic=t", bytes(10_000))[0] == 200)
    nsqd.kill()
