"""A disk that gets full, or read-only, under a daemon: ours and the real one on a small file system of their own.

Whatever is refused and in whatever words is judged on both by the same lines; where ours keeps what the real one
loses, the test says so.
"""

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.test_disk_faults import errors
from kit.account import VERBS, Account, drain
from kit.daemons import Instance, NotStarted, eventually, own_command
from kit.http_api import ask
from kit.nsq_client import NSQClient
from kit.small_disk import SmallDisk
from kit.traffic import DaemonFactory, create, post

# The probe by which ours finds that the disk is well again is of this size.
MAX_SIZE = "--max-msg-size=20000"

only_gnsqd = pytest.mark.parametrize("daemon_command", ["gnsqd"], indirect=True)


@pytest.fixture(params=["gnsqd", pytest.param("nsqd", marks=pytest.mark.peer)])
def daemon_command(request: pytest.FixtureRequest, disk: SmallDisk, peer_binary: Callable[[str], Path]) -> list[str]:
    return disk.inside(own_command() if request.param == "gnsqd" else [str(peer_binary("nsqd"))])


@pytest.fixture
def start(nsqd_factory: DaemonFactory, disk: SmallDisk) -> Callable[..., Instance]:
    return lambda *flags: nsqd_factory(*flags, MAX_SIZE, data_path=disk.path)


def is_ours(nsqd: Instance) -> bool:
    return "(built w/gnsqd" in nsqd.log()


def health(nsqd: Instance) -> str:
    """Returns what all sources report; raises AssertionError if they differ."""
    text: str = nsqd.stats()["health"]
    healthy = text == "OK"
    assert ask(nsqd, "GET /ping") == (200 if healthy else 500, text)
    assert f"\nHealth: {text}\n" in ask(nsqd, "GET /stats")[1]
    return text


def gets_well(nsqd: Instance) -> None:
    """Waits until ours gets well, which the real one does only with a publisher's help."""
    if is_ours(nsqd):
        eventually(lambda: nsqd.stats()["health"] == "OK")
    assert (health(nsqd) == "OK") == is_ours(nsqd)


def exits_without_a_trace(nsqd: Instance, disk: SmallDisk) -> None:
    """Ends the daemon and looks for bad and temporary files, of which ours leaves none."""
    assert nsqd.terminate() == 0
    assert not [name for name in disk.names() if name.endswith((".bad", ".tmp"))] or not is_ours(nsqd)


def restore(disk: SmallDisk) -> None:
    assert disk.remount("rw")
    disk.free()


FULL = ": no space left on device"
REFUSING: dict[str, tuple[Callable[[SmallDisk], object], str, str]] = {
    "full": (SmallDisk.fill, "write {}/t.diskqueue.000001.dat" + FULL, "write {}/new.diskqueue.000000.dat" + FULL),
    "no inodes": (
        SmallDisk.use_up_inodes,
        "open {}/t.diskqueue.000001.dat" + FULL,
        "open {}/new.diskqueue.000000.dat" + FULL,
    ),
    "read-only": (
        lambda disk: eventually(lambda: disk.remount("ro")),
        "open {}/t.diskqueue.000000.dat: read-only file system",
        "open {}/new.diskqueue.000000.dat: read-only file system",
    ),
}


@pytest.mark.parametrize("how", REFUSING)
def test_publishers_get_errors_and_it_recovers(disk: SmallDisk, start: DaemonFactory, how: str) -> None:
    spoil, error, error_of_new = REFUSING[how]
    nsqd = start("--mem-queue-size=1", "--max-bytes-per-file=1000")
    create(nsqd, "t")
    account, new, in_memory = Account(nsqd, "t"), Account(nsqd, "new"), Account(nsqd, "m")
    # The first is in memory; a file that is open for writing would keep the disk from becoming read-only.
    assert account.publish("PUB", *[10] * (1 if how == "read-only" else 2))
    assert new.publish("PUB", 10)
    spoil(disk)
    if how == "no inodes":
        while account.publish("PUB", 100):
            assert len(account.acknowledged) < 15
    for verb in VERBS:
        assert not account.publish(verb, 6000)
        assert account.error == error.format(disk.path)
        assert health(nsqd) == f"NOK - {account.error}"
    assert in_memory.publish("PUB", 10)
    assert health(nsqd) == f"NOK - {account.error}"
    assert not new.publish("MPUB", 6000, 6000)
    assert new.error == error_of_new.format(disk.path)
    # Topics are made all the same, and paused.
    create(nsqd, "late")
    post(nsqd, "/topic/pause?topic=late")
    if how == "read-only":
        eventually(lambda: [line for line in errors(nsqd) if line.startswith("failed to persist metadata - open ")])
    restore(disk)
    gets_well(nsqd)
    for verb in VERBS:
        assert account.publish(verb, 6000)
        assert new.publish(verb, 100)
    assert health(nsqd) == "OK"
    for each in (account, new, in_memory):
        each.disconnect()
    assert nsqd.restart().topic_stats("late")["paused"]
    for each in (account, new, in_memory):
        each.settle()
    exits_without_a_trace(nsqd, disk)


def in_memory(stats: dict[str, Any]) -> int:
    count: int = stats["depth"] - stats["backend_depth"]
    return count


@only_gnsqd
@pytest.mark.parametrize("relief", ["space", "consumers"])
def test_nothing_is_lost_when_channels_overflow(disk: SmallDisk, start: DaemonFactory, relief: str) -> None:
    # The real nsqd drops what a channel can't write, though the publishers received OK.
    nsqd = start("--mem-queue-size=5", "--max-bytes-per-file=30000")
    account = Account(nsqd, "t")
    create(nsqd, "t", "c", "d")
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
    exits_without_a_trace(nsqd, disk)


@only_gnsqd
@pytest.mark.parametrize("end", [Instance.terminate, Instance.kill])
def test_what_is_on_a_full_disk_survives(disk: SmallDisk, start: DaemonFactory, end: Callable[[Instance], int]) -> None:
    # The real nsqd, which can't write its meta files then, starts with empty queues.
    nsqd = start("--mem-queue-size=0", "--max-bytes-per-file=10000")
    accounts = {verb: Account(nsqd, f"t{number}") for number, verb in enumerate(VERBS)}
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
    assert end(nsqd) == (1 if end is Instance.terminate else None)  # meta files could not be written
    for account in [*accounts.values(), fresh]:
        account.disconnect()
    disk.free()
    nsqd.start()
    publish(1)
    for account in [*accounts.values(), fresh]:
        account.settle()
    assert errors(nsqd) == []
    exits_without_a_trace(nsqd, disk)


def records(path: Path) -> list[bytes]:
    """Returns the bodies of the whole records in a data file."""
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
    with NSQClient(nsqd.tcp_address) as client:
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
        exits_without_a_trace(nsqd, disk)
    else:
        assert code == 0


full_or_read_only = pytest.mark.parametrize("how", ["full", "read-only"])


@only_gnsqd
@full_or_read_only
@pytest.mark.parametrize(
    "durability, end", [("none", Instance.terminate), ("none", Instance.kill), ("process", Instance.kill)]
)
def test_consumers_drain_such_a_disk_after_a_start(
    disk: SmallDisk, start: DaemonFactory, how: str, durability: str, end: Callable[[Instance], object]
) -> None:
    # The real nsqd does not start there.
    nsqd = start("--mem-queue-size=0", f"--durability={durability}")
    account = Account(nsqd, "t")
    create(nsqd, "t", "c")
    assert account.publish("PUB", *range(1000, 1010))
    post(nsqd, "/channel/rules?topic=t&channel=c&rate=1000")
    end(nsqd)
    account.disconnect()
    spoil, *_ = REFUSING[how]
    spoil(disk)
    nsqd.start()
    assert "persist" not in "".join(errors(nsqd))
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=5)
        received = [client.message() for _ in range(5)]
        client.command(b"RDY 0\nREQ " + received[0].id + b" 0")
        client.command(b"\n".join(b"FIN " + message.id for message in received[1:]))
        eventually(lambda: nsqd.channel_stats("t", "c")["in_flight_count"] == 0)
        bodies = {message.body for message in received}
        assert not account.publish("PUB", 15000)
        assert re.search(": (no space left on device|read-only file system)$", account.error)
    restore(disk)
    gets_well(nsqd)
    assert account.publish("PUB", 100)
    account.disconnect()
    bodies |= set(drain(nsqd, "t"))
    assert bodies >= set(account.acknowledged)
    exits_without_a_trace(nsqd, disk)


@full_or_read_only
def test_a_first_start_needs_a_disk_that_can_be_written_to(disk: SmallDisk, start: DaemonFactory, how: str) -> None:
    spoil, *_ = REFUSING[how]
    spoil(disk)
    with pytest.raises(NotStarted, match="exited with 1:") as failed:
        start()
    file = rf"{re.escape(str(disk.path))}/nsqd\.dat\.\d+\.tmp"
    why = "(write FILE: no space left on device|open FILE: read-only file system)".replace("FILE", file)
    assert re.search(rf"FATAL: failed to persist metadata - {why}$", str(failed.value), re.MULTILINE)
