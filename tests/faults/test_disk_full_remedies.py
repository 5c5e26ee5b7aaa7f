"""Every way out of a full disk that documents and errors name, each on a disk without a free page.

Each is run with every durability, with one file of messages and with many. Afterwards there is room, publishers are
accepted without a restart, and a restart finds what nobody dropped.
"""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from cli.gnsqadmin import gnsqadmin, ok
from kit.account import VERBS, Account, drain
from kit.daemons import Instance, eventually, own_command
from kit.http_api import ask, exchange, head, message
from kit.small_disk import SmallDisk
from kit.traffic import DaemonFactory, create, post

DURABILITIES = ["none", "process", "disk"]
FILES = {"one file": "--max-bytes-per-file=10000000", "many files": "--max-bytes-per-file=50000"}
SIZE = 5000  # of a message


@pytest.fixture
def daemon_command(disk: SmallDisk) -> list[str]:
    return disk.inside(own_command())


@pytest.fixture(params=DURABILITIES)
def durability(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def retention() -> int:
    """Gives the bytes of finished messages that the topic keeps."""
    return 0


@pytest.fixture(params=FILES)
def full(
    request: pytest.FixtureRequest, durability: str, retention: int, disk: SmallDisk, nsqd_factory: DaemonFactory
) -> Account:
    """Gives the account of topic `t` with the channels `c` and `d`, on a daemon whose disk it has filled."""
    flags = f"--durability={durability}", FILES[request.param], "--mem-queue-size=5", "--max-msg-size=20000"
    nsqd = nsqd_factory(*flags, data_path=disk.path)
    create(nsqd, "t", "c", "d")
    if retention:
        post(nsqd, f"/topic/retention?topic=t&bytes={retention}")
    account = Account(nsqd, "t")
    while account.publish("/pub", SIZE):
        assert len(account.acknowledged) < 500

    def is_full() -> bool:
        disk.fill()
        accepted = [account.publish(verb, size) for verb in VERBS for size in (SIZE, 10)]
        return not any(accepted)

    eventually(is_full)
    return account


def admin(nsqd: Instance, *command: str) -> str:
    return ok(*command, "--nsqd-http-address={}:{}".format(*nsqd.http_address))


def empty_with_channels(nsqd: Instance) -> None:
    admin(nsqd, "topic", "empty", "t", "--with-channels", "--yes")


def empty_channels(nsqd: Instance) -> None:
    for channel in "cd":
        admin(nsqd, "channel", "empty", "t", channel, "--yes")


def delete_channels(nsqd: Instance) -> None:
    for channel in "cd":
        admin(nsqd, "channel", "delete", "t", channel, "--yes")


def delete_topic(nsqd: Instance) -> None:
    admin(nsqd, "topic", "delete", "t", "--yes")


def save(nsqd: Instance) -> None:
    at_both(lambda channel: admin(nsqd, "save", "t", os.devnull, "--channel", channel))


def advance(nsqd: Instance) -> None:
    """Reads everything by ranges, and then lets each channel follow."""
    end = json.loads(ask(nsqd, "GET /topic/range?topic=t")[1])["next"]
    status, _, lines = nsqd.http("GET", "/topic/messages?topic=t&from=1")
    assert (status, lines.count(b"\n")) == (200, end - 1)
    for channel in "cd":
        advanced = json.loads(post(nsqd, f"/channel/advance?topic=t&channel={channel}&to={end}"))
        assert advanced == {"messages": end - 1, "position": end}


def consume(nsqd: Instance) -> None:
    at_both(lambda channel: drain(nsqd, "t", channel))


def at_both(consume: Callable[[str], object]) -> None:
    """Consumes from both channels: without --durability, a topic passes nothing on while one of them can't write."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(consume, "cd"))


REMEDIES = [empty_with_channels, empty_channels, delete_channels, delete_topic, save, advance, consume]


def depths(nsqd: Instance) -> list[int]:
    """Returns the depths of the topic and of its channels."""
    topics = nsqd.stats("t")["topics"]
    return [each["depth"] for topic in topics for each in (topic, *topic["channels"])]


@pytest.mark.parametrize("remedy", REMEDIES)
def test_remedy_makes_room_at_once(
    full: Account, durability: str, disk: SmallDisk, remedy: Callable[[Instance], object]
) -> None:
    if remedy is advance and durability == "none":
        pytest.skip("only a journal has numbers")
    nsqd = full.daemon
    kept = len(full.acknowledged)
    of_topic, *of_channels = depths(nsqd)
    assert {of_topic + depth for depth in of_channels} == {kept}
    remedy(nsqd)
    full.disconnect()
    left = depths(nsqd)
    held_up = sum(left[:2])  # for `c`, if the topic passed nothing on between two commands
    assert max([held_up, *left]) <= (of_topic if remedy in (empty_channels, delete_channels) else 0)
    later = Account(nsqd, "t")

    eventually(lambda: all(later.publish(verb, SIZE) for verb in VERBS))
    create(nsqd, "t", "c", "d")
    eventually(lambda: nsqd.stats()["health"] == "OK")
    later.disconnect()
    nsqd.restart()
    expected = {*later.acknowledged, *full.acknowledged[len(full.acknowledged) - held_up :]}
    assert set(drain(nsqd, "t")) == expected
    assert nsqd.terminate() == 0


@pytest.mark.parametrize("retention", [100_000_000])
@pytest.mark.parametrize("durability", DURABILITIES[1:])
def test_dropped_messages_go_when_retention_is_reduced(full: Account) -> None:
    nsqd = full.daemon
    empty_with_channels(nsqd)
    assert not any(depths(nsqd))
    assert not full.publish("/pub", SIZE)
    post(nsqd, "/topic/retention?topic=t&bytes=0")
    eventually(lambda: full.publish("/pub", SIZE))


@pytest.mark.parametrize("durability", ["none"])
def test_messages_are_exported_while_the_daemon_is_stopped(full: Account, disk: SmallDisk) -> None:
    nsqd = full.daemon
    nsqd.terminate()
    full.disconnect()
    exported = gnsqadmin("data", "export", str(disk.files), "-", "--channel", "d").out.splitlines()
    nsqd.start()
    kept = json.loads(ask(nsqd, "GET /channel/peek?topic=t&channel=d&limit=1000")[1])["messages"]
    assert [json.loads(line)["body"] for line in exported] == [row["body"] for row in kept]


@pytest.mark.parametrize("durability", DURABILITIES[1:])
def test_channel_is_emptied_though_another_one_needs_all_messages(full: Account, disk: SmallDisk) -> None:
    # What must be recorded has space, which publishers do not get.
    nsqd = full.daemon
    request = head("POST /pub?topic=t", f"Content-Length: {SIZE}") + bytes(SIZE)  # arrives with the command before it
    answers = exchange(nsqd, head("POST /channel/empty?topic=t&channel=c") + request)
    assert [status for status, _ in answers] == [200, 503]
    full.disconnect()
    nsqd.kill()
    nsqd.start()
    assert depths(nsqd) == [0, 0, len(full.acknowledged)]
    assert drain(nsqd, "t", "d") == full.acknowledged
    eventually(lambda: full.publish("PUB", SIZE))
    full.disconnect()
    assert drain(nsqd, "t", "d") == drain(nsqd, "t", "c") == full.acknowledged[-1:]


@pytest.mark.parametrize("durability", DURABILITIES[1:])
def test_error_of_a_full_disk_has_the_reason(full: Account, disk: SmallDisk) -> None:
    nsqd = full.daemon
    (disk.files / "gnsqd.reserve.dat").unlink()

    def is_full() -> bool:
        disk.fill()
        return ask(nsqd, "POST /topic/retention?topic=t&bytes=1") == (
            500,
            message("INTERNAL_ERROR: no space left on device"),
        )

    eventually(is_full)
