"""`data restore`, `data verify URL` and `save --from-store`: the log that a gnsqd keeps in an object store, a directory
here, is read while it is written, when that gnsqd is gone, and when parts of it are missing.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cli.gnsqadmin import COMMAND, document, environment, failure, gnsqadmin
from cli.nodes import at, bodies, publish
from gnsqd.shared import log_store
from gnsqd.shared.log_store import CLAIM_NAME, LogStore, StoredLog, read_log, wal_path
from interop.test_golden import drain
from kit.daemons import Instance, NotStarted, eventually
from kit.nsq_client import NSQClient
from kit.small_disk import SmallDisk
from kit.traffic import DaemonFactory, create, post, wait_for
from nsqadmin_cli import stored_ranges
from nsqadmin_cli.datadir.restoring import restore_log

MESSAGES = 300


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def url(store: Path) -> str:
    return f"file://{store}"


def contents(directory: Path) -> dict[str, bytes]:
    """Returns the files of a data directory that its log has."""
    names = [path.name for path in directory.iterdir() if path.is_file()]
    return {name: (directory / name).read_bytes() for name in names if ".journal." in name or name == "nsqd.dat"}


def shipped(nsqd: Instance, url: str) -> None:
    """Waits until the store has everything, and segments that are not written any more as objects of their own."""

    def is_shipped() -> bool:
        log = read_log(LogStore(url))
        sizes = {name: len(content) for name, content in contents(nsqd.data_path).items()}
        final = [
            name for name, later in pairwise(sorted(sizes)) if name.split(".journal")[0] == later.split(".journal")[0]
        ]
        if {file.name: file.size for file in log.files.values()} != sizes:
            return False
        return all(log.files[name].stored for name in final)

    eventually(is_shipped, "everything in the store")


@pytest.fixture
def nsqd(gnsqd_factory: DaemonFactory, url: str) -> Instance:
    """Starts a gnsqd whose topic t has 300 messages for the channel c, in several segments, all in the store."""
    flags = "--durability=process", "--max-bytes-per-file=4000", f"--log-store={url}", "--log-store-retention=1h"
    nsqd = gnsqd_factory(*flags)
    create(nsqd, "t", "c")
    for first in range(0, MESSAGES, 10):
        post(nsqd, "/mpub?topic=t", b"\n".join(b"%0100d" % number for number in range(first, first + 10)))
    shipped(nsqd, url)
    return nsqd


def rfc_3339(moment: int) -> str:
    """Returns a time (wall clock, ns) as commands take it, in whole microseconds."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(moment // 10**9))}.{moment % 10**9 // 1000:06}Z"


def compact(nsqd: Instance) -> None:
    """Finishes most messages: the few that are left are copied out of their segments, which the disk has no more."""
    before = {path.name for path in nsqd.data_path.glob("t.journal.*")}
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=MESSAGES)
        for position in range(MESSAGES):
            message = client.message()
            if position % 29:
                client.command(b"FIN " + message.id)
        wait_for(nsqd, "t", "c", in_flight_count=len(range(0, MESSAGES, 29)))
        publish(nsqd, "t", 1)
        eventually(lambda: len(before - {path.name for path in nsqd.data_path.glob("t.journal.*")}) > 3, "copies")


def test_restored_is_what_the_directory_had_and_gnsqd_goes_on_with_it(
    nsqd: Instance, url: str, tmp_path: Path, gnsqd_factory: DaemonFactory
) -> None:
    nsqd.kill()
    lost = nsqd.data_path.rename(tmp_path / "lost")
    restored = tmp_path / "restored"
    report = document("data", "restore", url, str(restored))
    assert contents(restored) == contents(lost)
    assert (report.pop("url"), report.pop("is_newest"), report["sound"]) == (url, True, True)
    assert time.time() - 60 < report.pop("time") < time.time()
    about = report.pop("number"), report.pop("host")
    verified = document("data", "verify", str(restored))
    assert report == verified
    assert document("data", "verify", url) == verified | {"directory": url}
    assert verified["journals"][0]["queues"] == [{"queue": "t:c", "messages": MESSAGES}]
    shown = gnsqadmin("data", "restore", url, str(tmp_path / "other")).out
    assert f"object {about[0]} of {url}, written by {about[1]} at " in shown
    assert shown.endswith("gnsqd continues the log with this --data-path and --log-store.\n")
    flags = "--durability=process", f"--log-store={url}"
    heir = gnsqd_factory(*flags, data_path=restored)
    assert len(drain(heir, "t", "c", MESSAGES)) == MESSAGES
    assert heir.terminate() == 0
    with pytest.raises(NotStarted, match="has gone on with this log"):
        gnsqd_factory(*flags, data_path=tmp_path / "other")
    late = gnsqadmin("data", "restore", url, str(tmp_path / "late"), "--until=-0s")
    assert "gnsqd continues the log" in late.out


def test_until_restores_the_last_state_that_is_not_newer(
    nsqd: Instance, url: str, tmp_path: Path, gnsqd_factory: DaemonFactory
) -> None:
    until = rfc_3339(time.time_ns())
    before = document("data", "restore", url, str(tmp_path / "newest"))
    publish(nsqd, "t", 10)
    shipped(nsqd, url)
    report = document("data", "restore", url, str(tmp_path / "then"), "--until", until)
    assert contents(tmp_path / "then") == contents(tmp_path / "newest")
    assert report["number"] == before["number"]
    assert (before["is_newest"], report["is_newest"]) == (True, False)
    result = gnsqadmin("data", "restore", url, str(tmp_path / "again"), "--until", until)
    assert "gnsqd does not start here with this --log-store" in result.out
    nsqd.kill()
    with pytest.raises(NotStarted, match="has gone on with this log"):
        gnsqd_factory("--durability=process", f"--log-store={url}", data_path=tmp_path / "then")
    alone = gnsqd_factory("--durability=process", data_path=tmp_path / "then")
    assert len(drain(alone, "t", "c", MESSAGES)) == MESSAGES
    early = failure("data", "restore", url, str(tmp_path / "early"), "--until=-1h")
    assert ": it has no state of " in early
    assert not (tmp_path / "early").exists()


def test_a_directory_with_anything_else_is_refused(nsqd: Instance, url: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "lost+found").mkdir()
    assert gnsqadmin("data", "restore", url, str(target)).code == 0
    before = contents(target)
    refusal = "is not empty, and has no interrupted restore; specify another directory"
    assert failure("data", "restore", url, str(target)) == f"{target} {refusal}"
    assert contents(target) == before
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").touch()
    assert failure("data", "restore", url, str(other)) == f"{other} {refusal}"
    assert "in use by a running nsqd" in failure("data", "restore", url, str(nsqd.data_path))
    assert failure("data", "restore", url, "/dev/null/x") == "cannot restore to /dev/null/x: not a directory"


def test_a_killed_restore_goes_on_even_if_the_log_has_gone_on(nsqd: Instance, url: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    held, *others = sorted((tmp_path / "store" / "segments").iterdir())
    content = held.read_bytes()
    held.unlink()
    os.mkfifo(held)  # the restore waits there
    argv = [*COMMAND, "data", "restore", url, str(target)]
    with subprocess.Popen(argv, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            # Of the one that it waits for, and of the last, which has no object, there is nothing yet.
            sizes = sorted([0, 0, *(path.stat().st_size for path in others)])
            eventually(lambda: sorted(path.stat().st_size for path in target.glob("t.journal.*.tmp")) == sizes)
        finally:
            process.send_signal(signal.SIGKILL)
    held.unlink()
    held.write_bytes(content)
    assert list(target.glob("t.journal.*.dat")) == []
    compact(nsqd)  # a copy has the name of the last of its sources
    shipped(nsqd, url)
    nsqd.kill()
    assert document("data", "restore", url, str(target))["sound"]
    assert contents(target) == contents(nsqd.data_path)


def test_what_an_interrupted_restore_has_read_is_not_read_again(
    nsqd: Instance, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd.kill()
    objects = [file.stored.object for file in read_log(LogStore(url)).files.values() if file.stored]
    read, paths = LogStore.read, list[str]()

    def read_some(self: LogStore, path: str, begin: int, end: int) -> bytes:
        if len(paths) >= 3 and "" not in paths:
            raise KeyboardInterrupt
        data = read(self, path, begin, end)
        if path in objects:
            paths.append(path)
        return data

    monkeypatch.setattr(LogStore, "read", read_some)
    with pytest.raises(KeyboardInterrupt):
        restore_log(LogStore(url), str(tmp_path / "target"))
    paths.append("")
    restore_log(LogStore(url), str(tmp_path / "target"))
    paths.remove("")
    assert sorted(paths) == sorted(objects)
    assert contents(tmp_path / "target") == contents(nsqd.data_path)


def test_a_full_disk_leaves_nothing_half_named_and_the_same_command_goes_on(
    nsqd: Instance, url: str, tmp_path: Path
) -> None:
    disk = SmallDisk(tmp_path / "disk", 512 * 1024, 1000)
    try:
        target = disk.path / "target"
        argv = disk.inside([*COMMAND, "data", "restore", url, str(target)])
        disk.fill(leave=6)
        full = subprocess.run(argv, env=environment(), capture_output=True, text=True)
        assert (full.returncode, full.stdout, full.stderr.count("\n")) == (1, "", 1)
        assert "no space left on device" in full.stderr
        names = [path.name for path in (disk.files / "target").iterdir()]
        assert [name for name in names if not name.endswith(".tmp")] == [CLAIM_NAME]
        disk.free()
        assert subprocess.run(argv, env=environment(), capture_output=True).returncode == 0
        nsqd.kill()
        assert contents(disk.files / "target") == contents(nsqd.data_path)
    finally:
        disk.close()


def test_what_is_missing_or_damaged_is_named_and_no_file_remains(nsqd: Instance, store: Path, url: str) -> None:
    nsqd.kill()
    segment = min((store / "segments").iterdir())
    wal = store / wal_path(max(part.number for file in read_log(LogStore(url)).files.values() for part in file.parts))
    temporary = str(store.parent / "temporary")
    (store.parent / "temporary").mkdir()

    def verify() -> str:
        return failure("data", "verify", url, TMPDIR=temporary)

    for path, size, text in (
        (segment, 100, f"segments/{segment.name}: "),
        (wal, 100, f"wal/{wal.name} is not an object of a log: it is damaged"),
    ):
        content = path.read_bytes()
        path.write_bytes(content[:size])
        assert text in verify()
        path.write_bytes(content)
    content = wal.read_bytes()
    wal.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert verify() == f"{url}: wal/{wal.name} is damaged"
    wal.write_bytes(content)
    content = segment.read_bytes()
    segment.write_bytes(content[:600] + bytes([content[600] ^ 1]) + content[601:])
    report = document("data", "verify", url, code=1, TMPDIR=temporary)
    damage = [finding for finding in report["findings"] if finding["severity"] == "damage"]
    assert [finding["file"] for finding in damage if finding["file"]] == [segment.name.partition(".dat.")[0] + ".dat"]
    segment.unlink()
    assert verify() == f"{url}: there is no segments/{segment.name}"
    assert failure("data", "verify", f"{url}/other") == f"{url}/other: there is no log"
    unreachable = "s3://bucket/prefix?endpoint=http://127.0.0.1:1"
    error = failure("data", "verify", unreachable, AWS_ACCESS_KEY_ID="k", AWS_SECRET_ACCESS_KEY="s", AWS_REGION="r")
    assert error.startswith(f"{unreachable}: list wal/: ")
    assert list((store.parent / "temporary").iterdir()) == []


# Old messages


def saved(*args: str, topic: str = "t") -> list[Any]:
    """Returns the messages that are saved from the topic, and the number to continue from."""
    result = gnsqadmin("save", topic, "-", *args)
    assert result.code == 0, result
    lines = [line for line in result.err.splitlines() if "continue with --from " in line]
    return [[json.loads(line) for line in result.out.splitlines()], *(line.rpartition(" ")[2] for line in lines)]


def test_a_range_from_the_store_is_that_of_the_node(nsqd: Instance, url: str) -> None:
    middle = saved("--from=first", *at(nsqd))[0][150]["timestamp"]
    then = rfc_3339(middle)
    for points in (
        ["--from=first"],
        ["--from=1", "--to=next"],
        ["--from=40", "--to=260"],
        ["--from=-1h", "-n7"],
        [f"--from={then}"],
        ["--from=5", f"--to={then}"],
        ["--from=first", "--to=-1h"],
    ):
        expected = saved(*points, *at(nsqd))
        if expected[0]:
            assert saved(*points, "--from-store", url) == expected
    assert saved("--from=next", "--from-store", url) == [[]]
    assert "has nothing of the topic u" in failure("save", "u", "-", "--from=1", "--from-store", url, code=4)


def test_messages_that_the_disk_has_no_more_come_from_the_store_each_once(nsqd: Instance, url: str) -> None:
    everything = saved("--from=first", *at(nsqd))[0]
    compact(nsqd)
    shipped(nsqd, url)
    assert saved("--from=first", "--to=301", "--from-store", url) == [everything, "301"]
    nsqd.kill()
    shutil.rmtree(nsqd.data_path)
    assert saved("--from=100", "--to=200", "--from-store", url) == [everything[99:199], "200"]


def test_objects_that_go_meanwhile_are_read_from_a_newer_state(
    nsqd: Instance, store: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd.kill()
    expected = saved("--from=first", "--from-store", url)[0]

    def outdated(*arguments: Any) -> StoredLog:
        """Returns a state in which a segment in the middle has an object that is gone, once, and then the newest."""
        log = read_log(*arguments)
        if not is_outdated:
            is_outdated.append(True)
            name = sorted(log.files)[5]
            stored = log.files[name].stored
            assert stored
            log.files[name] = replace(log.files[name], stored=stored._replace(object="segments/gone"))
        return log

    monkeypatch.setattr(log_store, "read_log", outdated)
    is_outdated: list[bool] = []
    with stored_ranges.StoreConsumer(url, "t", "first", "next") as consumer:
        messages: list[dict[str, Any]] = []
        while not consumer.is_over():
            messages += [message.document() for message in consumer.receive(0)]
    assert messages == expected
    is_outdated.clear()
    restore_log(LogStore(url), str(tmp_path / "restored"))
    assert contents(tmp_path / "restored") == contents(nsqd.data_path)


def test_messages_of_a_deleted_topic_are_not_those_of_its_successor(nsqd: Instance, url: str) -> None:
    for count in (30, 3):
        create(nsqd, "again", "c")
        document("topic", "range", "again", *at(nsqd))  # the log has a name from then on
        for number in range(count):
            post(nsqd, "/pub?topic=again", b"%01000d" % number)
        shipped(nsqd, url)
        expected = saved("--from=first", *at(nsqd), topic="again")
        assert saved("--from=first", "--from-store", url, topic="again") == expected
        post(nsqd, "/topic/delete?topic=again")


def test_missing_and_damaged_messages_are_reported(nsqd: Instance, store: Path, url: str) -> None:
    nsqd.kill()
    expected = saved("--from=first", "--from-store", url)[0]
    segment = sorted((store / "segments").iterdir())[1]
    content = segment.read_bytes()
    segment.write_bytes(content[:900] + bytes([content[900] ^ 1]) + content[901:])
    result = gnsqadmin("save", "t", "-", "--from=first", "--from-store", url)
    left = [json.loads(line) for line in result.out.splitlines()]
    assert result.code == 1
    assert 0 < len(left) < len(expected)
    assert [message for message in expected if message in left] == left
    assert f"Warning: the store has {len(expected) - len(left)} messages among these no more" in result.err
    assert f"{url}: segments/{segment.name} from " in result.err
    segment.unlink()
    assert gnsqadmin("save", "t", "-", "--from=first", "--from-store", url).err.startswith("Error: ")


def test_copy_publishes_what_the_store_has(nsqd: Instance, url: str, gnsqd_factory: DaemonFactory) -> None:
    expected = [message["body"] for message in saved("--from=290", "--from-store", url)[0]]
    nsqd.kill()
    other = gnsqd_factory()
    create(other, "t", "d")
    assert gnsqadmin("copy", "t", "--from=290", "--from-store", url, *at(other)).code == 0
    assert bodies(other, "t", len(expected), "d") == sorted(body.encode() for body in expected)
