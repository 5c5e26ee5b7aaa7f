"""Moves from disk queues to journals: a kill at any time neither loses nor multiplies messages."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gevent import joinall, killall, spawn

from gnsqd.broker.channel import Channel
from gnsqd.hub.cooperative import yield_turn
from gnsqd.queues.message import Message
from gnsqd.shared.errors import StartError
from gnsqd.storage.syncer import Syncer
from unit.broker.fakes import MINUTE, FakeConsumer, bodies_of, eventually, settle
from unit.queues.journal.test_backend import FAR, Journaled, channel

BATCH = 2
OLD = Counter(b"%d" % number for number in range(6)) + Counter([b"later"])
TOPICS = {"t": ["c", "d"], "alone": []}
CHANGES = ("pwritev", "rename", "unlink")


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets small batches, and no fsync, which a kill does not ask for."""
    monkeypatch.setattr("gnsqd.queues.journal.store.IMPORT_BATCH", BATCH)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def disk_queues(tmp_path: Path, syncer: Syncer) -> Path:
    """Leaves what a clean exit does: messages in two channels and in a topic without any, in several files each."""
    directory = tmp_path / "queues"
    plain = Journaled(directory, syncer, {"durability": "none", "max_bytes_per_file": 100}, TOPICS)
    for name in TOPICS:
        topic = plain.registry.get_topic(name)
        topic.publish([b"%d" % number for number in range(6)])
        topic.publish([b"later"], deferred=MINUTE)
    channel(plain)
    plain.registry.close()
    assert len(list(directory.glob("t:c.diskqueue.0*"))) > 2
    return directory


def before_each_change(monkeypatch: pytest.MonkeyPatch, call: Callable[[], None]) -> None:
    """Lets `call` be called before each change of a file."""

    def spy(change: Callable[..., Any]) -> Callable[..., Any]:
        def changing(*arguments: Any) -> Any:
            call()
            return change(*arguments)

        return changing

    for name in CHANGES:
        monkeypatch.setattr(os, name, spy(getattr(os, name)))


def left_in(directory: Path, syncer: Syncer) -> tuple[dict[str, Counter[bytes]], str]:
    """Returns the messages of both channels that the next daemon finds, as many `?` as the topic without any has, its
    log."""
    daemon = Journaled(directory, syncer, {}, TOPICS)
    found = {name: bodies_in(daemon.registry.get_topic("t").get_channel(name)) for name in TOPICS["t"]}
    found["alone"] = Counter({b"?": daemon.registry.get_topic("alone").depth})
    killall(daemon.around.greenlets)
    return found, daemon.around.log.getvalue()


def bodies_in(channel: Channel) -> Counter[bytes]:
    channel.process_due(FAR)
    messages: list[Message] = []
    while batch := channel.take(FakeConsumer(1), 1000, MINUTE, 0):
        messages += batch
    return Counter(bodies_of(messages))


def test_kill_at_any_time_of_a_move_leaves_each_message_once(
    disk_queues: Path, tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[Path] = []
    with monkeypatch.context() as patch:
        before_each_change(
            patch, lambda: states.append(shutil.copytree(disk_queues, tmp_path / f"killed{len(states)}"))
        )
        moved = Journaled(disk_queues, syncer, {}, TOPICS)
    assert not list(disk_queues.glob("*.diskqueue.0*"))
    assert bodies_in(channel(moved)) == OLD
    logs = []
    for state in states:
        found, log = left_in(state, syncer)
        assert found == {"c": OLD, "d": OLD, "alone": Counter({b"?": OLD.total()})}, state
        assert "ERROR" not in log
        logs.append(log)
    text = "messages of the disk queue are in the journal already"
    assert any(text in log for log in logs), "no state between the write to the journal and that of the position"


def test_every_start_goes_on_where_the_kill_came(
    disk_queues: Path, tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However many starts are killed, each just before it writes how far it is for the third time.
    directory = disk_queues
    kills = 0
    rename = os.rename
    while True:
        renames = 0
        next_directory = tmp_path / f"killed{kills}"

        def counting(*arguments: Any, here: Path = directory, there: Path = next_directory) -> None:
            nonlocal renames
            renames += 1
            if renames == 3:
                shutil.copytree(here, there)
            rename(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", counting)
            daemon = Journaled(directory, syncer, {}, TOPICS)
        if not next_directory.exists():
            break
        kills += 1
        assert kills < 50
        directory = next_directory
    assert kills > 2
    for name in TOPICS["t"]:
        assert bodies_in(channel(daemon, name)) == OLD


def test_start_that_is_to_end_leaves_the_rest_to_the_next(
    disk_queues: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = 0

    def check_exit() -> None:
        nonlocal checks
        checks += 1
        if checks == 3:
            raise StartError("asked to exit")

    with monkeypatch.context() as patch:
        patch.setattr("unit.broker.fakes.Fakes.check_exit", staticmethod(check_exit))
        with pytest.raises(StartError):
            Journaled(disk_queues, syncer, {}, TOPICS)
    assert list(disk_queues.glob("t:c.diskqueue.0*"))
    found, log = left_in(disk_queues, syncer)
    assert found["c"] == found["d"] == OLD
    assert found["alone"].total() == OLD.total()
    moved = re.findall(r"JOURNAL\(t:c\): moving ([0-9]+) messages", log)
    assert [OLD.total() - 2 * BATCH <= int(count) < OLD.total() for count in moved] == [True]


@pytest.mark.parametrize("deleted", ["channel", "topic"])
def test_what_is_deleted_while_it_waits_for_the_move_of_another_is_gone(
    disk_queues: Path, syncer: Syncer, deleted: str
) -> None:
    daemon = Journaled(disk_queues, syncer, {}, {"t": []})  # its channels are made once it serves
    topic = daemon.registry.get_topic("t")
    moves = [spawn(topic.get_channel, name) for name in TOPICS["t"]]
    settle()  # the first has moved a batch, the second waits
    assert set(topic.channels) == set(TOPICS["t"])
    if deleted == "channel":
        topic.delete_existing_channel("d")
    else:
        daemon.registry.delete_existing_topic("t")
    joinall(moves, timeout=10)
    assert not list(disk_queues.glob("t:d.*" if deleted == "channel" else "t[.:]*"))
    killall(daemon.around.greenlets)


def test_publishers_go_on_while_a_start_looks_for_what_was_moved(
    disk_queues: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnsqd.broker.registry.PRECREATION_PATIENCE", 0)
    monkeypatch.setattr("gnsqd.hub.cooperative.TURN_SECONDS", -1)  # a turn for others after each message
    daemon = Journaled(disk_queues, syncer, {"mem_queue_size": 0}, {})
    daemon.around.precreate = ["c", "d"]
    topic = daemon.registry.get_topic("alone")  # whose disk queue nsqd.dat does not list
    (start,) = [greenlet for greenlet in daemon.around.greenlets if greenlet.name == "precreate:alone"]
    published = 0
    while not start.ready():
        topic.publish([b"new"])
        published += 1
        yield_turn()
    assert published > 2
    eventually(lambda: not topic.depth)
    assert bodies_in(topic.get_channel("c")) == OLD + Counter({b"new": published})
