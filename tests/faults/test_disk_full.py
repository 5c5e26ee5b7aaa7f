"""A disk that gets full, or read-only, under a daemon: ours and the real one on a small file system of their own.

Whatever is refused and in whatever words is judged on both by the same lines; where ours keeps what the real one
loses, the test says so.
"""

import re
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kit.account import VERBS, Account, drain
from kit.daemons import Daemon, StartFailed, eventually, own_command
from kit.http_api import ask, topic_stats
from kit.nsq_client import ERROR, Client
from kit.small_disk import SmallDisk

DaemonFactory = Callable[..., Daemon]

# The probe by which ours finds that the disk is well again is of this size.
MAX_SIZE = "--max-msg-size=20000"

only_gnsqd = pytest.mark.parametrize("daemon_command", ["gnsqd"], indirect=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "small", size=1 << 20, inodes=100)
    yield disk
    disk.close()


@pytest.fixture(params=["gnsqd", pytest.param("nsqd", marks=pytest.mark.peer)])
def daemon_command(request: pytest.FixtureRequest, disk: SmallDisk, peer_binary: Callable[[str], Path]) -> list[str]:
    return disk.inside(own_command() if request.param == "gnsqd" else [str(peer_binary("nsqd"))])


@pytest.fixture
def start(nsqd_factory: DaemonFactory, disk: SmallDisk) -> Callable[..., Daemon]:
    """Start a daemon on the small disk."""
    return lambda *flags: nsqd_factory(*flags, MAX_SIZE, data_path=disk.path)


def is_ours(nsqd: Daemon) -> bool:
    return "(built w/gnsqd" in nsqd.log()


def health(nsqd: Daemon) -> str:
    """What all sources report; AssertionError if they differ."""
    text: str = nsqd.stats()["health"]
    healthy = text == "OK"
    assert ask(nsqd, "GET /ping") == (200 if healthy else 500, text)
    assert f"\nHealth: {text}\n" in ask(nsqd, "GET /stats")[1]
    return text


def gets_well(nsqd: Daemon) -> None:
    """Ours by itself; the real one only with a publisher's help."""
    if is_ours(nsqd):
        eventually(lambda: nsqd.stats()["health"] == "OK")
    assert (health(nsqd) == "OK") == is_ours(nsqd)


def errors(nsqd: Daemon) -> list[str]:
    """The ERROR lines so far, without their time; except those about a stale meta file that promised too few."""
    return re.findall(r"ERROR: (?!DISKQUEUE.* negative depth at tail)(.*)", nsqd.log())


def no_trace(nsqd: Daemon, disk: SmallDisk) -> None:
    """Ours leaves nothing bad and nothing temporary."""
    assert not [name for name in disk.names() if name.endswith((".bad", ".tmp"))] or not is_ours(nsqd)


def test_publishers_get_errors_and_it_recovers(disk: SmallDisk, start: DaemonFactory) -> None:
    nsqd = start("--mem-queue-size=1")
    account = Account(nsqd, "t")
    assert account.publish("PUB", 10, 100)  # the first is in memory
    disk.fill()
    expected = f"write {disk.path}/t.diskqueue.000000.dat: no space left on device"
    for verb in VERBS:
        assert not account.publish(verb, 6000)
        assert account.error == expected
    assert health(nsqd) == f"NOK - {expected}"
    in_memory = Account(nsqd, "m")
    assert in_memory.publish("PUB", 10)
    assert health(nsqd) == f"NOK - {expected}"

    disk.free()
    gets_well(nsqd)
    for verb in VERBS:
        assert account.publish(verb, 6000)
    assert health(nsqd) == "OK"
    account.settle()
    in_memory.settle()
    assert nsqd.terminate() == 0
    no_trace(nsqd, disk)


def test_what_was_acknowledged_comes_whatever_was_refused(disk: SmallDisk, start: DaemonFactory) -> None:
    nsqd = start("--mem-queue-size=2", "--max-bytes-per-file=30000")
    # The real nsqd is slow to look for deferred messages in a new channel (NSQD-COMPAT 0.1 item 1).
    delay = int(is_ours(nsqd))
    accounts = {verb: Account(nsqd, f"t{number}", delay=delay) for number, verb in enumerate(VERBS)}
    sizes = [(10,), (700, 700, 700), (9000, 10), (100, 15000, 50)]

    def publish() -> None:
        for sizes_at_once in sizes:
            for verb, account in accounts.items():
                account.publish(verb, *sizes_at_once)

    publish()
    assert not any(account.refused for account in accounts.values())
    disk.fill(leave=12)
    for _ in range(4):
        publish()
    assert all(len(account.refused) > 3 for account in accounts.values())
    disk.free()
    publish()
    for account in accounts.values():
        account.settle()
    assert nsqd.terminate() == 0
    no_trace(nsqd, disk)


def in_memory(stats: dict[str, Any]) -> int:
    count: int = stats["depth"] - stats["backend_depth"]
    return count


@only_gnsqd
@pytest.mark.parametrize("relief", ["space", "consumers"])
def test_nothing_is_lost_when_channels_overflow(disk: SmallDisk, start: DaemonFactory, relief: str) -> None:
    """The real nsqd drops what a channel can't write, though the publishers received OK."""
    nsqd = start("--mem-queue-size=5", "--max-bytes-per-file=30000")
    account = Account(nsqd, "t")
    for channel in "cd":
        assert ask(nsqd, "POST /topic/create?topic=t") == (200, "")
        assert ask(nsqd, f"POST /channel/create?topic=t&channel={channel}") == (200, "")
    disk.fill(leave=20)
    for sizes in [(3000,), (300, 6000, 3000)]:
        for verb in VERBS:
            while account.publish(verb, *sizes):
                assert len(account.acknowledged) < 300
    assert health(nsqd).endswith(": no space left on device")
    if relief == "space":
        disk.free()
        eventually(lambda: nsqd.stats()["health"] == "OK")
        eventually(lambda: max(in_memory(nsqd.channel_stats("t", channel)) for channel in "cd") <= 5)
        assert account.publish("MPUB", 3000, 3000, 3000)
    others = drain(nsqd, "t", "d")
    account.settle()
    assert set(account.acknowledged) <= set(others)
    if relief == "consumers":
        disk.free()
    for verb in VERBS:
        assert account.publish(verb, 10)
    assert sorted(drain(nsqd, "t")) == sorted(account.acknowledged[-len(VERBS) :])
    assert nsqd.terminate() == 0
    no_trace(nsqd, disk)


@only_gnsqd
@pytest.mark.parametrize("end", [Daemon.terminate, Daemon.kill])
def test_what_is_on_a_full_disk_survives(disk: SmallDisk, start: DaemonFactory, end: Callable[[Daemon], int]) -> None:
    """The real nsqd, which can't write its meta files then, starts with empty queues."""
    nsqd = start("--mem-queue-size=0", "--max-bytes-per-file=10000")
    accounts = {verb: Account(nsqd, topic) for verb, topic in [("PUB", "a"), ("MPUB", "b"), ("/pub", "c")]}
    fresh = Account(nsqd, "fresh")

    def publish(count: int) -> None:
        for number in range(count):
            for verb, account in accounts.items():
                account.publish(verb, 10, 700 + 13 * number, 5000)

    publish(1)
    disk.fill(leave=16)
    assert fresh.publish("MPUB", *[10] * 20)  # a queue that never had a meta file
    publish(8)
    assert all(len(account.refused) > 3 for account in accounts.values())
    assert end(nsqd) == (1 if end is Daemon.terminate else None)  # meta files could not be written
    for account in [*accounts.values(), fresh]:
        account.disconnect()
    disk.free()
    nsqd.start()
    publish(1)
    for account in [*accounts.values(), fresh]:
        account.settle()
    assert errors(nsqd) == []
    assert nsqd.terminate() == 0
    no_trace(nsqd, disk)


def records(path: Path) -> list[bytes]:
    """The bodies of the whole records in a data file."""
    data, bodies = path.read_bytes(), []
    while len(data) >= 4 and len(data) >= 4 + (size := struct.unpack_from(">i", data)[0]) >= 30:
        bodies.append(data[30 : 4 + size])
        data = data[4 + size :]
    return bodies


def test_exit_keeps_what_fits_and_names_the_rest(disk: SmallDisk, start: DaemonFactory) -> None:
    nsqd = start()
    account = Account(nsqd, "t")
    for _ in range(30):
        assert account.publish("MPUB", 10, 5000)
    assert account.publish("DPUB", *[4000] * 5)
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=3)
        for _ in range(3):
            client.message()
        disk.fill(leave=12)
        code = nsqd.terminate()
    kept = records(disk.files / "t:c.diskqueue.000000.dat")
    assert set(kept) < set(account.acknowledged)
    first_lost = min(account.acknowledged.index(body) for body in set(account.acknowledged) - set(kept))
    assert max(map(account.acknowledged.index, kept)) > first_lost  # a short one behind a long one
    lines = re.findall(r"failed to write (?:(\d+) )?messages? to backend.* - write .*: no space left on", nsqd.log())
    lost = sum(int(count or 1) for count in lines)
    assert len(kept) + lost == len(account.acknowledged)
    if is_ours(nsqd):
        assert code == 1
        disk.free()
        nsqd.start()
        account.settle(lost=lost)
        assert errors(nsqd) == []
        assert nsqd.terminate() == 0
        no_trace(nsqd, disk)
    else:
        assert code == 0


@pytest.fixture(params=["full", "read-only"])
def spoil(request: pytest.FixtureRequest, disk: SmallDisk) -> Callable[[], Callable[[], object]]:
    """Lets nothing be written any more; returns what lets it again."""

    def fill() -> Callable[[], object]:
        disk.fill()
        return disk.free

    def remount() -> Callable[[], object]:
        assert disk.remount("ro")
        return partial(disk.remount, "rw")

    return {"full": fill, "read-only": remount}[request.param]


@only_gnsqd
@pytest.mark.parametrize(
    "durability, end", [("none", Daemon.terminate), ("none", Daemon.kill), ("process", Daemon.kill)]
)
def test_consumers_drain_such_a_disk_after_a_start(
    start: DaemonFactory,
    spoil: Callable[[], Callable[[], object]],
    durability: str,
    end: Callable[[Daemon], object],
    disk: SmallDisk,
) -> None:
    """The real nsqd does not start there."""
    nsqd = start("--mem-queue-size=0", f"--durability={durability}")
    account = Account(nsqd, "t")
    assert ask(nsqd, "POST /topic/create?topic=t") == (200, "")
    assert ask(nsqd, "POST /channel/create?topic=t&channel=c") == (200, "")
    assert account.publish("PUB", *range(1000, 1010))
    assert ask(nsqd, "POST /channel/rules?topic=t&channel=c&rate=1000")[0] == 200
    end(nsqd)
    account.disconnect()
    restore = spoil()
    nsqd.start()
    assert "persist" not in "".join(errors(nsqd))
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=5)
        received = [client.message() for _ in range(5)]
        client.command(b"RDY 0\nREQ " + received[0].id + b" 0")
        client.command(b"\n".join(b"FIN " + message.id for message in received[1:]))
        eventually(lambda: nsqd.channel_stats("t", "c")["in_flight_count"] == 0)
        bodies = {message.body for message in received}
        assert not account.publish("PUB", 6000)
        assert re.search(": (no space left on device|read-only file system)$", account.error)
    restore()
    gets_well(nsqd)
    assert account.publish("PUB", 100)
    account.disconnect()
    bodies |= set(drain(nsqd, "t"))
    assert bodies >= set(account.acknowledged)
    assert nsqd.terminate() == 0
    no_trace(nsqd, disk)


@only_gnsqd
def test_metadata_that_has_to_change_is_written_when_the_disk_allows(
    disk: SmallDisk, start: DaemonFactory, spoil: Callable[[], Callable[[], object]]
) -> None:
    nsqd = start()
    assert ask(nsqd, "POST /topic/create?topic=t") == (200, "")
    nsqd.terminate()
    path = disk.files / "nsqd.dat"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"1.3.0", b"1.2.1"))
    restore = spoil()
    nsqd.start()
    (line,) = errors(nsqd)
    assert line.startswith("failed to persist metadata - ")
    assert topic_stats(nsqd, "t")["depth"] == 0
    restore()
    eventually(lambda: path.read_bytes() == content)
    eventually(lambda: f"metadata could be persisted to {disk.path}/nsqd.dat at last" in nsqd.log())
    assert len(errors(nsqd)) == 1


def test_a_first_start_needs_a_disk_that_can_be_written_to(
    disk: SmallDisk, start: DaemonFactory, spoil: Callable[[], Callable[[], object]]
) -> None:
    spoil()
    with pytest.raises(StartFailed, match="exited with 1:") as failed:
        start()
    file = rf"{re.escape(str(disk.path))}/nsqd\.dat\.\d+\.tmp"
    why = "(write FILE: no space left on device|open FILE: read-only file system)".replace("FILE", file)
    assert re.search(rf"FATAL: failed to persist metadata - {why}$", str(failed.value), re.MULTILINE)


def test_no_new_files_on_a_disk_without_inodes(disk: SmallDisk, start: DaemonFactory) -> None:
    nsqd = start("--mem-queue-size=0", "--max-bytes-per-file=1000")
    rolling, new = Account(nsqd, "t"), Account(nsqd, "new")
    assert rolling.publish("PUB", 100)
    disk.use_up_inodes()
    while rolling.publish("PUB", 100):
        assert len(rolling.acknowledged) < 10
    assert rolling.error == f"open {disk.path}/t.diskqueue.000001.dat: no space left on device"
    assert not rolling.publish("MPUB", 100, 100)
    assert not new.publish("PUB", 100)
    assert new.error == f"open {disk.path}/new.diskqueue.000000.dat: no space left on device"
    assert health(nsqd) == f"NOK - {new.error}"
    disk.free()
    gets_well(nsqd)
    for account in (rolling, new):
        for _ in range(5):
            assert account.publish("MPUB", 100, 300, 600)
        account.settle()
    assert nsqd.terminate() == 0
    no_trace(nsqd, disk)


def test_disk_becomes_read_only(disk: SmallDisk, start: DaemonFactory) -> None:
    nsqd = start("--mem-queue-size=0")
    account = Account(nsqd, "t")
    assert ask(nsqd, "POST /topic/create?topic=t") == (200, "")
    eventually(lambda: disk.remount("ro"))
    for verb in VERBS:
        assert not account.publish(verb, 100)
        assert account.error == f"open {disk.path}/t.diskqueue.000000.dat: read-only file system"
    assert health(nsqd) == f"NOK - {account.error}"
    assert ask(nsqd, "POST /topic/create?topic=late") == (200, "")
    assert ask(nsqd, "POST /topic/pause?topic=late") == (200, "")
    eventually(lambda: [line for line in errors(nsqd) if line.startswith("failed to persist metadata - open ")])
    assert disk.remount("rw")
    gets_well(nsqd)
    for verb in VERBS:
        assert account.publish(verb, 100)
    account.disconnect()
    assert topic_stats(nsqd.restart(), "late")["paused"]
    account.settle()
    assert nsqd.terminate() == 0
    no_trace(nsqd, disk)


@only_gnsqd
@pytest.mark.parametrize("durability", ["none", "process"])
def test_publishers_are_refused_before_the_disk_is_full(disk: SmallDisk, start: DaemonFactory, durability: str) -> None:
    least = 400_000
    flags = ["--mem-queue-size=1", "--max-bytes-per-file=100000", f"--durability={durability}"]
    nsqd = start(*flags, f"--min-free-disk={least}")
    count = 0
    with Client(nsqd.tcp_address) as client:
        while True:
            client.command(b"PUB t", bytes(5000))
            if (frame := client.frame()).type == ERROR:
                break
            count += 1
    assert frame.data == b"E_PUB_FAILED PUB failed less than %d bytes of disk are free (--min-free-disk)" % least
    assert 50 < count < 200
    assert health(nsqd) == "OK"
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        for _ in range(count):
            client.command(b"FIN " + client.message().id)
    eventually(lambda: ask(nsqd, "POST /pub?topic=t", b"x") == (200, "OK"))
    assert "publishers are refused below" in nsqd.log()
    assert "publishers are no longer refused" in nsqd.log()
    no_trace(nsqd, disk)
