"""`data convert`: the real nsqd delivers what a gnsqd with --durability left in journals."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.gnsqadmin import document, gnsqadmin, ok
from cli.nodes import fill, publish
from cli.test_data_look import contents
from kit.daemons import Daemon
from kit.traffic import DaemonFactory, take

BODIES = {b"%d" % number for number in range(20)}


@pytest.fixture
def ended(gnsqd_factory: DaemonFactory) -> Daemon:
    """One after a clean exit that left 20 messages for each of two channels, and two in a topic without any."""
    nsqd = gnsqd_factory("--durability=process", "--mem-queue-size=5")
    fill(nsqd, "t", "c", "d", count=20)
    publish(nsqd, "alone", 2)
    assert nsqd.terminate() == 0
    return nsqd


@pytest.fixture
def left(ended: Daemon) -> Path:
    return ended.data_path


def bodies(nsqd: Daemon, topic: str, channel: str, count: int) -> set[bytes]:
    return {message.body for message in take(nsqd, topic, channel, count)}


@pytest.mark.peer
def test_messages_of_journals_are_delivered_by_the_real_nsqd(
    ended: Daemon, left: Path, peer_binary: Callable[[str], Path]
) -> None:
    queues = document("data", "convert", str(left))["queues"]
    assert {row["queue"]: row["messages"] for row in queues} == {"t:c": 20, "t:d": 20, "alone": 2}
    assert not list(left.glob("*.journal.*"))
    ended.command = [str(peer_binary("nsqd"))]
    ended.restart("--mem-queue-size=5")
    assert bodies(ended, "t", "c", 20) == bodies(ended, "t", "d", 20) == BODIES
    assert bodies(ended, "alone", "new", 2) == {b"0", b"1"}


def test_dry_run_counts_and_changes_nothing(left: Path) -> None:
    before = contents(left)
    out = ok("data", "convert", str(left), "--dry-run")
    assert "42 messages would be converted. Nothing was done." in out
    assert contents(left) == before


def test_second_conversion_has_nothing_to_do(left: Path) -> None:
    assert ok("data", "convert", str(left)).endswith("42 messages converted.\n")
    before = contents(left)
    assert ok("data", "convert", str(left)) == "No messages in journals.\n"
    assert contents(left) == before


def test_conversion_that_the_disk_refuses_keeps_the_journals(left: Path) -> None:
    before = {path.name: path.read_bytes() for path in left.glob("*.journal.*")}
    (left / "t:c.diskqueue.meta.dat").mkdir()  # in the place of a file that has to be written
    code, out, err = gnsqadmin("data", "convert", str(left))
    assert (code, out) == (1, "")
    assert err.endswith("--durability=process or disk does not need; the journals still have all messages\n")
    assert "Error: a journal could not be turned into disk queues, " in err
    assert "Traceback" not in err
    assert (left / "t.journal.000000.dat").read_bytes().startswith(before["t.journal.000000.dat"])
