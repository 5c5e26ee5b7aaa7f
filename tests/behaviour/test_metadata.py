"""nsqd.dat at every moment: what a killed daemon leaves is exactly what its clients were answered (NSQD-COMPAT 4.1).

The real daemon writes it at its leisure after a creation or deletion, and half of the time writes what was before
(0.1, items 20 and 22); what is asked of the fixture `nsqd` holds for both.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kit.daemons import DEADLINE, Daemon, eventually, open_socket, own_command
from kit.http_api import RESPONSE, ask, head
from kit.nsq_client import Client

DaemonFactory = Callable[..., Daemon]
Topics = dict[str, tuple[bool, dict[str, bool]]]  # topic -> (paused, {channel: paused})


def post(nsqd: Daemon, what: str, topic: str, channel: str = "") -> None:
    """`what` as in `topic/pause`."""
    target = f"/{what}?topic={topic}&channel={channel}" if channel else f"/{what}?topic={topic}"
    assert ask(nsqd, f"POST {target}") == (200, "")


def on_disk(nsqd: Daemon) -> Topics:
    """What nsqd.dat lists."""
    document = json.loads((nsqd.data_path / "nsqd.dat").read_bytes())
    assert (list(document), document["version"]) == (["topics", "version"], "1.3.0")
    return {
        topic["name"]: (topic["paused"], {entry["name"]: entry["paused"] for entry in topic["channels"] or []})
        for topic in document["topics"] or []
    }


def alive(nsqd: Daemon) -> Topics:
    """What the daemon has."""
    return {
        topic["topic_name"]: (
            topic["paused"],
            {entry["channel_name"]: entry["paused"] for entry in topic["channels"]},
        )
        for topic in nsqd.stats()["topics"]
    }


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Daemons are children of this process, so that `frozen` can wait for them."""
    monkeypatch.setattr(Daemon, "preloaded", False)


@contextmanager
def frozen(nsqd: Daemon) -> Iterator[None]:
    """The daemon does nothing meanwhile, and its files are as SIGKILL would leave them."""
    nsqd.send_signal(signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, nsqd.pid, os.WSTOPPED | os.WNOWAIT)
        yield
    finally:
        nsqd.send_signal(signal.SIGCONT)


def errors(nsqd: Daemon) -> list[str]:
    return [line.partition(" ERROR: ")[2] for line in nsqd.log().splitlines() if " ERROR: " in line]


def test_what_was_answered_is_on_disk_when_the_daemon_is_killed(gnsqd: Daemon) -> None:
    """Corrected: the real daemon answers creations and deletions first and writes them later."""
    steps: list[tuple[str, str, str, Topics]] = [
        ("topic/create", "t", "", {"t": (False, {})}),
        ("channel/create", "t", "c", {"t": (False, {"c": False})}),
        ("channel/pause", "t", "c", {"t": (False, {"c": True})}),
        ("topic/pause", "t", "", {"t": (True, {"c": True})}),
        ("channel/delete", "t", "c", {"t": (True, {})}),
        ("topic/unpause", "t", "", {"t": (False, {})}),
        ("topic/delete", "t", "", {}),
    ]
    for what, topic, channel, expected in steps:
        post(gnsqd, what, topic, channel)
        gnsqd.kill()
        assert on_disk(gnsqd) == expected, what
        assert alive(gnsqd.start()) == expected, what


@pytest.mark.usefixtures("children")
def test_every_creation_and_deletion_is_on_disk_when_it_is_answered(gnsqd: Daemon) -> None:
    """Corrected (0.1, item 22): the real daemon fails about half of the deletions."""
    expected: Topics = {"other": (False, {})}
    post(gnsqd, "topic/create", "other")
    for number in range(30):
        topic = f"t{number}"
        for what, channel, channels in [
            ("topic/create", "", {}),
            ("channel/create", "kept", {"kept": False}),
            ("channel/create", "gone", {"kept": False, "gone": False}),
            ("channel/delete", "gone", {"kept": False}),
            ("topic/delete", "", None),
        ]:
            post(gnsqd, what, topic, channel)
            with frozen(gnsqd):
                found = on_disk(gnsqd)
            assert found == expected | ({} if channels is None else {topic: (False, channels)}), (number, what)


@pytest.mark.usefixtures("children")
def test_creation_of_what_a_publisher_has_just_created_is_on_disk_when_it_is_answered(gnsqd: Daemon) -> None:
    with Client(gnsqd.tcp_address) as client:
        for number in range(20):
            client.publish(f"t{number}", b"x")
            post(gnsqd, "topic/create", f"t{number}")
            with frozen(gnsqd):
                assert list(on_disk(gnsqd)) == [f"t{each}" for each in range(number + 1)]


def test_what_many_connections_create_and_delete_at_a_time_is_all_on_disk(gnsqd: Daemon) -> None:
    def work(worker: int) -> None:
        for number in range(8):
            topic = f"t{worker}.{number}"
            post(gnsqd, "topic/create", topic)
            post(gnsqd, "channel/create", topic, "kept")
            post(gnsqd, "channel/create", topic, "gone")
            post(gnsqd, "channel/pause", topic, "kept")
            post(gnsqd, "channel/delete", topic, "gone")
            if number % 2:
                post(gnsqd, "topic/delete", topic)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    gnsqd.kill()
    expected = {f"t{worker}.{number}": (False, {"kept": True}) for worker in range(8) for number in range(0, 8, 2)}
    assert on_disk(gnsqd) == expected
    assert alive(gnsqd.start()) == expected


@pytest.mark.usefixtures("children")
def test_creations_that_come_together_share_a_write(gnsqd: Daemon) -> None:
    names = {f"t{number}" for number in range(30)}

    def writes() -> int:
        return gnsqd.log().count("NSQ: persisting topic/channel metadata")

    with ExitStack() as stack:
        sockets = [stack.enter_context(open_socket(gnsqd.http_address, DEADLINE)) for _ in names]
        for sock in sockets:  # so that every connection has been accepted
            sock.sendall(head("GET /ping", "Content-Length: 0"))
            assert RESPONSE.match(sock.recv(65536))
        before = writes()
        with frozen(gnsqd):
            for sock, name in zip(sockets, names, strict=True):
                sock.sendall(head(f"POST /topic/create?topic={name}", "Content-Length: 0"))
        for sock in sockets:
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
        with frozen(gnsqd):
            assert set(on_disk(gnsqd)) == names
        # The first ones are not made to wait for the others, so it may be more than one.
        assert 1 <= writes() - before < len(names) / 2


def test_creations_of_publishers_and_consumers_are_soon_on_disk(nsqd: Daemon) -> None:
    with Client(nsqd.tcp_address) as client:
        client.publish("pub", b"x")
        client.publish("mpub", b"x", b"y")
        client.command(b"DPUB dpub 1", b"x")
        assert client.response() == b"OK"
        client.publish("pub#ephemeral", b"x")
        client.subscribe("sub", "c")
        assert ask(nsqd, "POST /pub?topic=http-pub", b"x") == (200, "OK")
        assert ask(nsqd, "POST /mpub?topic=http-mpub", b"x\ny") == (200, "OK")
        expected: Topics = {name: (False, {}) for name in ("pub", "mpub", "dpub", "http-pub", "http-mpub")}
        eventually(lambda: on_disk(nsqd) == expected | {"sub": (False, {"c": False})})


def test_file_is_private_and_nothing_temporary_stays(nsqd: Daemon) -> None:
    for topic in ("a", "b", "c"):
        post(nsqd, "topic/create", topic)
        post(nsqd, "channel/create", topic, "c")
        post(nsqd, "topic/pause", topic)
    post(nsqd, "topic/delete", "a")
    nsqd.terminate()
    assert on_disk(nsqd) == {"b": (True, {"c": False}), "c": (True, {"c": False})}
    assert (nsqd.data_path / "nsqd.dat").stat().st_mode & 0o7777 == 0o600
    assert not list(nsqd.data_path.glob("*.tmp"))


# When it can't be written


def obstruct(nsqd: Daemon) -> Path:
    """Put something in the way of nsqd.dat that also stops root."""
    path = nsqd.data_path / "nsqd.dat"
    path.unlink()
    path.mkdir()
    return path


def test_what_cannot_be_written_down_is_done_nevertheless(nsqd: Daemon) -> None:
    post(nsqd, "topic/create", "gone")
    eventually(lambda: "gone" in on_disk(nsqd))
    obstruct(nsqd)
    post(nsqd, "topic/create", "t")
    post(nsqd, "channel/create", "t", "gone")
    post(nsqd, "channel/create", "t", "c")
    post(nsqd, "channel/pause", "t", "c")
    post(nsqd, "channel/delete", "t", "gone")
    post(nsqd, "topic/delete", "gone")
    assert alive(nsqd) == {"t": (False, {"c": True})}
    eventually(lambda: errors(nsqd))
    assert {line.split("nsqd.dat.")[0] for line in errors(nsqd)} == {
        f"failed to persist metadata - rename {nsqd.data_path}/"
    }
    assert nsqd.terminate() == 0
    assert nsqd.log().rstrip().endswith("NSQ: bye")


def test_file_is_put_right_as_soon_as_it_can_be_written(gnsqd: Daemon) -> None:
    """For ours only: the real daemon leaves it as it is until the next change."""
    path = obstruct(gnsqd)
    post(gnsqd, "topic/create", "t")
    post(gnsqd, "channel/create", "t", "c")
    assert len(errors(gnsqd)) == 2
    path.rmdir()
    eventually(path.is_file)
    assert on_disk(gnsqd) == {"t": (False, {"c": False})}
    eventually(lambda: f"metadata could be persisted to {path} at last" in gnsqd.log())
    assert len(errors(gnsqd)) == 2
    assert not list(gnsqd.data_path.glob("*.tmp"))


# Older names


OLDER = b'{"topics":[{"channels":[{"name":"c","paused":true}],"name":"old","paused":false}],"version":"0.3.8"}'


def test_metadata_of_a_daemon_before_1_0_is_left_alone_and_can_be_renamed(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--node-id=7")
    nsqd.terminate()
    (nsqd.data_path / "nsqd.dat").unlink()
    older = nsqd.data_path / "nsqd.7.dat"
    older.write_bytes(OLDER)
    assert alive(nsqd.start()) == on_disk(nsqd) == {}
    assert older.read_bytes() == OLDER
    nsqd.terminate()
    older.rename(nsqd.data_path / "nsqd.dat")
    assert alive(nsqd.start()) == on_disk(nsqd) == {"old": (False, {"c": True})}


def test_metadata_of_a_daemon_before_1_0_is_pointed_out(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir()
    (path / "nsqd.7.dat").write_bytes(OLDER)

    def warnings() -> list[str]:
        return [line.partition(" WARNING: ")[2] for line in gnsqd.log().splitlines() if " WARNING: " in line]

    gnsqd = gnsqd_factory(data_path=path)
    (line,) = warnings()
    assert line.startswith(
        f"NSQ: there is no {path}/nsqd.dat, and metadata of an nsqd before v1.0 is not read: nsqd.7."
    )
    gnsqd.restart()
    assert warnings() == []


# What a killed daemon leaves


def contents(nsqd: Daemon) -> dict[str, Any]:
    """Everything in the data path: of files what they hold, of the rest what they are."""
    found: dict[str, Any] = {}
    for path in nsqd.data_path.iterdir():
        if path.is_symlink():
            found[path.name] = path.readlink()
        else:
            found[path.name] = "directory" if path.is_dir() else (path.stat().st_mode, path.read_bytes())
    return found


def test_temporary_files_of_a_killed_daemon_are_removed_and_all_else_is_kept(nsqd: Daemon) -> None:
    """Left by either daemon, removed by ours."""
    nsqd.restart("--mem-queue-size=0")
    with Client(nsqd.tcp_address) as client:
        client.publish("t", *[b"%d" % number for number in range(100)])
    post(nsqd, "topic/pause", "t")
    nsqd.kill()
    for path in nsqd.data_path.glob("*.tmp"):  # should one really be left, counting below would be harder
        path.unlink()
    left_over = ["nsqd.dat.4037200794235010051.tmp", "t.diskqueue.meta.dat.17.tmp", "t:c.diskqueue.due_times.dat.5.tmp"]
    for name in [*left_over, "notes.tmp", "nsqd.dat.old.tmp", "t.diskqueue.000007.dat.bad", "nsqd.7.dat"]:
        (nsqd.data_path / name).write_text(name)
    (nsqd.data_path / "nsqd.dat.5.tmp").mkdir()
    (nsqd.data_path / "nsqd.dat.6.tmp").symlink_to("notes.tmp")
    before = contents(nsqd)

    nsqd.command = own_command()
    nsqd.start().terminate()
    assert "NSQ: removed 3 files that" in nsqd.log()
    after = contents(nsqd)
    assert before.keys() - after.keys() == set(left_over)
    assert after.keys() - before.keys() <= {"t.diskqueue.meta.dat"}
    rewritten = {"nsqd.dat", "t.diskqueue.meta.dat"}
    assert {name: after[name] for name in after.keys() - rewritten} == {
        name: before[name] for name in before.keys() - rewritten - set(left_over)
    }
    assert alive(nsqd.start()) == {"t": (True, {})}
    with Client(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=200)
        post(nsqd, "topic/unpause", "t")
        assert sorted(client.message().body for _ in range(100)) == sorted(b"%d" % number for number in range(100))


def test_due_times_of_a_queue_that_the_real_daemon_deleted_are_removed(
    gnsqd: Daemon, peer_binary: Callable[[str], Path]
) -> None:
    with Client(gnsqd.tcp_address) as client:
        for topic in ("gone", "kept"):
            client.command(f"DPUB {topic} 3600000".encode(), b"x")
            assert client.response() == b"OK"
    gnsqd.terminate()
    due_times = {f"{topic}.diskqueue.due_times.dat" for topic in ("gone", "kept")}
    assert {path.name for path in gnsqd.data_path.glob("*due_times*")} == due_times
    gnsqd.command = [str(peer_binary("nsqd"))]
    gnsqd.start()
    post(gnsqd, "topic/delete", "gone")
    gnsqd.kill()
    gnsqd.command = own_command()
    gnsqd.start()
    assert [path.name for path in gnsqd.data_path.glob("*due_times*")] == ["kept.diskqueue.due_times.dat"]
