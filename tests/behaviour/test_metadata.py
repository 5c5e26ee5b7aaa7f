"""nsqd.dat at every moment: what a killed daemon leaves is exactly what its clients were answered (NSQD-COMPAT 4.1).

The real daemon writes it at its leisure after a creation or deletion, and half of the time writes what was before
(0.1, items 20 and 22); what is asked of the fixture `nsqd` holds for both.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit.daemons import Instance, eventually, own_command
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create, post

Topics = dict[str, tuple[bool, dict[str, bool]]]  # topic -> (paused, {channel: paused})


def on_disk(nsqd: Instance) -> Topics:
    document = json.loads((nsqd.data_path / "nsqd.dat").read_bytes())
    assert (list(document), document["version"]) == (["topics", "version"], "1.3.0")
    return {
        topic["name"]: (topic["paused"], {entry["name"]: entry["paused"] for entry in topic["channels"] or []})
        for topic in document["topics"] or []
    }


def alive(nsqd: Instance) -> Topics:
    return {
        topic["topic_name"]: (topic["paused"], {entry["channel_name"]: entry["paused"] for entry in topic["channels"]})
        for topic in nsqd.stats()["topics"]
    }


@contextmanager
def frozen(nsqd: Instance) -> Iterator[None]:
    """Stops the daemon meanwhile, and leaves its files as SIGKILL would."""
    nsqd.send_signal(signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, nsqd.pid, os.WSTOPPED | os.WNOWAIT)
        yield
    finally:
        nsqd.send_signal(signal.SIGCONT)


def logged(nsqd: Instance, level: str) -> list[str]:
    return [line.partition(f" {level}: ")[2] for line in nsqd.log().splitlines() if f" {level}: " in line]


STEPS: list[tuple[str, bool, dict[str, bool] | None]] = [  # what is done, and what is then paused
    ("/topic/create?topic=T", False, {}),
    ("/channel/create?topic=T&channel=kept", False, {"kept": False}),
    ("/channel/pause?topic=T&channel=kept", False, {"kept": True}),
    ("/channel/create?topic=T&channel=gone", False, {"kept": True, "gone": False}),
    ("/topic/pause?topic=T", True, {"kept": True, "gone": False}),
    ("/channel/delete?topic=T&channel=gone", True, {"kept": True}),
    ("/channel/unpause?topic=T&channel=kept", True, {"kept": False}),
    ("/topic/unpause?topic=T", False, {"kept": False}),
    ("/topic/delete?topic=T", False, None),
]


def test_what_was_answered_is_on_disk(gnsqd: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    # Corrected (0.1, items 20 and 22): the real daemon answers first, and fails about half of the deletions.
    monkeypatch.setattr(Instance, "preloaded", False)  # so that `frozen` can wait for a child of this process
    gnsqd.restart()
    expected: Topics = {}
    with NSQClient(gnsqd.tcp_address) as client:
        for number in range(6):
            for step, paused, channels in STEPS:
                topic = f"t{number}"
                if number % 2 and channels == {}:
                    client.publish(topic, b"x")  # creates it just before
                post(gnsqd, step.replace("=T", f"={topic}"))
                now = {} if channels is None else {topic: (paused, channels)}
                with frozen(gnsqd):
                    assert on_disk(gnsqd) == expected | now, (number, step)
            create(gnsqd, f"left{number}")
            expected[f"left{number}"] = (False, {})
    gnsqd.kill()
    assert alive(gnsqd.start()) == expected


def test_what_many_connections_create_and_delete_at_a_time_is_all_on_disk(gnsqd: Instance) -> None:
    def work(worker: int) -> None:
        for number in range(8):
            topic = f"t{worker}.{number}"
            create(gnsqd, topic, "kept", "gone")
            post(gnsqd, f"/channel/pause?topic={topic}&channel=kept")
            post(gnsqd, f"/channel/delete?topic={topic}&channel=gone")
            if number % 2:
                post(gnsqd, f"/topic/delete?topic={topic}")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    gnsqd.kill()
    expected = {f"t{worker}.{number}": (False, {"kept": True}) for worker in range(8) for number in range(0, 8, 2)}
    assert on_disk(gnsqd) == expected
    assert alive(gnsqd.start()) == expected


def test_creations_of_publishers_and_consumers_are_soon_on_disk(nsqd: Instance) -> None:
    with NSQClient(nsqd.tcp_address) as client, NSQClient(nsqd.tcp_address) as other:
        client.publish("pub", b"x")
        client.publish("mpub", b"x", b"y")
        client.command(b"DPUB dpub 1", b"x")
        assert client.response() == b"OK"
        client.publish("pub#ephemeral", b"x")
        other.subscribe("sub", "c#ephemeral")
        client.subscribe("sub", "c")
        post(nsqd, "/pub?topic=http-pub", b"x")
        post(nsqd, "/mpub?topic=http-mpub", b"x\ny")
        expected: Topics = {name: (False, {}) for name in ("pub", "mpub", "dpub", "http-pub", "http-mpub")}
        eventually(lambda: on_disk(nsqd) == expected | {"sub": (False, {"c": False})})


def test_file_is_private_and_nothing_temporary_stays(nsqd: Instance) -> None:
    for topic in ("a", "b"):
        create(nsqd, topic, "c")
        post(nsqd, f"/topic/pause?topic={topic}")
    post(nsqd, "/topic/delete?topic=a")
    nsqd.terminate()
    assert on_disk(nsqd) == {"b": (True, {"c": False})}
    assert (nsqd.data_path / "nsqd.dat").stat().st_mode & 0o7777 == 0o600
    assert not list(nsqd.data_path.glob("*.tmp"))


def test_what_cannot_be_written_down_is_done_nevertheless(nsqd: Instance) -> None:
    create(nsqd, "gone")
    eventually(lambda: "gone" in on_disk(nsqd))
    path = nsqd.data_path / "nsqd.dat"
    path.unlink()
    path.mkdir()  # this also stops root
    create(nsqd, "t", "gone", "c")
    post(nsqd, "/channel/pause?topic=t&channel=c")
    post(nsqd, "/channel/delete?topic=t&channel=gone")
    post(nsqd, "/topic/delete?topic=gone")
    assert alive(nsqd) == {"t": (False, {"c": True})}
    eventually(lambda: logged(nsqd, "ERROR"))
    assert {line.split("nsqd.dat.")[0] for line in logged(nsqd, "ERROR")} == {
        f"failed to persist metadata - rename {nsqd.data_path}/"
    }
    assert nsqd.terminate() == 0
    assert nsqd.log().rstrip().endswith("NSQ: bye")


OLDER = b'{"topics":[{"channels":[{"name":"c","paused":true}],"name":"old","paused":false}],"version":"0.3.8"}'


def test_metadata_of_a_daemon_before_1_0_is_left_alone_and_can_be_renamed(nsqd_factory: DaemonFactory) -> None:
    """Ours says that it is there, once."""
    nsqd = nsqd_factory("--node-id=7")
    nsqd.terminate()
    (nsqd.data_path / "nsqd.dat").unlink()
    older = nsqd.data_path / "nsqd.7.dat"
    older.write_bytes(OLDER)
    assert alive(nsqd.start()) == on_disk(nsqd) == {}
    assert older.read_bytes() == OLDER
    text = f"NSQ: there is no {nsqd.data_path}/nsqd.dat, and metadata of an nsqd before v1.0 is not read: nsqd.7."
    warnings = [line[: len(text)] for line in logged(nsqd, "WARNING")]
    assert warnings == ([text] if nsqd.command == own_command() else [])
    nsqd.restart()
    assert logged(nsqd, "WARNING") == []
    nsqd.terminate()
    older.rename(nsqd.data_path / "nsqd.dat")
    assert alive(nsqd.start()) == on_disk(nsqd) == {"old": (False, {"c": True})}


def test_leftovers_of_killed_and_real_daemons_are_removed(gnsqd: Instance, peer_binary: Callable[[str], Path]) -> None:
    # Due times of a queue that the real daemon has deleted, and unfinished files.
    with NSQClient(gnsqd.tcp_address) as client:
        for topic in ("gone", "kept"):
            client.command(f"DPUB {topic} 3600000".encode(), b"x")
            assert client.response() == b"OK"
    gnsqd.terminate()
    due_times = {f"{topic}.diskqueue.due_times.dat" for topic in ("gone", "kept")}
    assert {path.name for path in gnsqd.data_path.glob("*due_times*")} == due_times
    gnsqd.command = [str(peer_binary("nsqd"))]
    gnsqd.start()
    post(gnsqd, "/topic/delete?topic=gone")
    gnsqd.kill()
    (gnsqd.data_path / "nsqd.dat.4037200794235010051.tmp").write_bytes(b"")
    gnsqd.command = own_command()
    gnsqd.start()
    assert [path.name for path in gnsqd.data_path.glob("*due_times*")] == ["kept.diskqueue.due_times.dat"]
    assert not list(gnsqd.data_path.glob("*.tmp"))
    assert "NSQ: removed " in gnsqd.log()
