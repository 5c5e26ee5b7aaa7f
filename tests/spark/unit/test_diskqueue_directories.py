"""`pyspark_nsq_diskqueue` without a JVM: what a daemon does meanwhile, deferred messages, paths and options."""

import fcntl
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from gnsqd.log import Level, Logger
from gnsqd.shared.disk_format import data_file_name, due_times_file_name
from gnsqd.storage.disk.due_times import DueTimes
from gnsqd.storage.syncer import Syncer
from kit.traffic import DaemonFactory, publish
from pyspark_nsq.errors import OptionError
from pyspark_nsq_diskqueue import reading
from pyspark_nsq_diskqueue.options import DiskqueueSettings, parse
from pyspark_nsq_diskqueue.planning import DataDirectoryError, plan
from pyspark_nsq_diskqueue.reading import CorruptionError
from spark.data_directories import MAX_MSG_SIZE, QUEUE, RECORD, payload, read, values, write_file, write_meta

# What a daemon does meanwhile


def test_the_directory_of_a_running_daemon_is_warned_of(
    nsqd_factory: DaemonFactory, caplog: pytest.LogCaptureFixture
) -> None:
    nsqd = nsqd_factory("--mem-queue-size=0", "--sync-every=1")
    publish(nsqd, "t", *(b"%d" % number for number in range(100)))
    assert len(read(nsqd.data_path)) == 100
    (reported,) = caplog.messages
    assert reported.startswith(f"{nsqd.data_path} is the data directory of a running nsqd: ")
    nsqd.terminate()
    caplog.clear()
    assert len(read(nsqd.data_path)) == 100
    assert not caplog.messages


def test_a_directory_in_use_is_read_without_touching_it(directory: Path) -> None:
    write_file(directory, 0, payload(1), payload(2))
    write_meta(directory, 1, 0, RECORD, 0, 2 * RECORD)

    def state() -> list[tuple[str, int, int, bytes]]:
        paths = sorted(directory.iterdir())
        return [(path.name, path.stat().st_mtime_ns, path.stat().st_mode, path.read_bytes()) for path in paths]

    before, changed = state(), directory.stat().st_mtime_ns
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert values(read(directory)) == [b"body 2"]
    finally:
        os.close(descriptor)
    assert (state(), directory.stat().st_mtime_ns) == (before, changed)


def test_a_task_reads_no_more_than_was_there_when_it_was_planned(directory: Path) -> None:
    write_file(directory, 0, payload(1))
    (task,) = plan([os.fspath(directory)])
    write_file(directory, 0, payload(1), payload(2))
    assert [batch.num_rows for batch in reading.read_task(task, "fail", MAX_MSG_SIZE)] == [1]


def test_a_file_that_was_read_and_deleted_meanwhile_does_not_count_as_damage(directory: Path) -> None:
    write_file(directory, 0, payload(1))
    write_file(directory, 1, payload(2))
    write_meta(directory, 2, 0, 0, 1, RECORD)
    first, second = plan([os.fspath(directory)])
    (directory / first.file).unlink()
    with pytest.raises(CorruptionError, match="missing"):
        list(reading.read_task(first, "fail", MAX_MSG_SIZE))
    write_meta(directory, 1, 1, 0, 1, RECORD)
    assert list(reading.read_task(first, "fail", MAX_MSG_SIZE)) == []
    assert [batch.num_rows for batch in reading.read_task(second, "fail", MAX_MSG_SIZE)] == [1]


def test_an_executor_without_the_directory_says_so(directory: Path) -> None:
    write_file(directory, 0, payload(1))
    (task,) = plan([os.fspath(directory)])
    shutil.rmtree(directory)
    with pytest.raises(DataDirectoryError, match="driver and executors must find it at the same path"):
        list(reading.read_task(task, "skip", MAX_MSG_SIZE))


def test_a_file_that_a_daemon_deleted_just_before_it_wrote_meta_is_not_missing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(directory, 1, payload(2))
    write_meta(directory, 2, 0, 0, 1, RECORD)
    monkeypatch.setattr("time.sleep", lambda seconds: write_meta(directory, 1, 1, 0, 1, RECORD))
    assert values(read(directory)) == [b"body 2"]


# Deferred messages


@pytest.fixture
def due_times(directory: Path) -> Callable[[str], DueTimes]:
    def make(queue: str = QUEUE) -> DueTimes:
        log = Logger("", Level.ERROR, io.StringIO())
        return DueTimes(queue, os.fspath(directory / due_times_file_name(queue)), log, Syncer())

    return make


FAR = 4_000_000_000_000_000_000  # ns; in 2096


def test_a_message_in_the_queue_has_its_due_time(directory: Path, due_times: Callable[..., DueTimes]) -> None:
    write_file(directory, 0, payload(1), payload(2), payload(2, attempts=2))
    side_file = due_times()
    side_file.add(b"%016x" % 2, 1, FAR)
    side_file.close(is_empty=False)
    rows = read(directory)
    due = pa.scalar(FAR // 1000, pa.timestamp("us", tz="UTC")).as_py()
    assert [row["due"] for row in rows] == [None, due, None]


def test_messages_that_a_daemon_held_back_come_once(directory: Path, due_times: Callable[..., DueTimes]) -> None:
    write_file(directory, 0, payload(1), payload(2), payload(3))
    side_file = due_times()
    side_file.hold([(payload(number), FAR + number) for number in (2, 4, 5)])
    side_file.release([(b"%016x" % 5, 1)])
    rows = read(directory)
    assert sorted((row["value"], row["due"] is not None, row["file"]) for row in rows) == [
        (b"body 1", False, data_file_name(QUEUE, 0)),
        (b"body 2", True, due_times_file_name(QUEUE)),
        (b"body 3", False, data_file_name(QUEUE, 0)),
        (b"body 4", True, due_times_file_name(QUEUE)),
    ]
    assert {(row["topic"], row["channel"]) for row in rows} == {("orders", "billing")}
    # Where the path leaves out the side file, nothing is left to it.
    assert values(read(directory / data_file_name(QUEUE, 0))) == [b"body 1", b"body 2", b"body 3"]


@pytest.mark.parametrize(
    "damage, reason",
    [
        (lambda data: data[:-1], "an end in the middle of an entry"),
        (lambda data: b"x" + data, "not a file of due times"),
    ],
)
def test_a_damaged_side_file_is_read_as_far_as_it_is_whole(
    directory: Path, due_times: Callable[..., DueTimes], damage: Callable[[bytes], bytes], reason: str
) -> None:
    side_file = due_times()
    side_file.hold([(payload(number), FAR) for number in (1, 2)])
    path = directory / due_times_file_name(QUEUE)
    path.write_bytes(damage(path.read_bytes()))
    rows = read(directory, corruption="column")
    assert rows[-1]["corruption"] == reason
    assert values(rows[:-1]) == [b"body 1"] * ("entry" in reason)
    with pytest.raises(CorruptionError, match=reason):
        read(directory)


# Paths


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Makes two data directories, and what is none, under one."""
    for name in ("a", "b"):
        path = tmp_path / "nodes" / name
        path.mkdir(parents=True)
        write_file(path, 0, payload(ord(name)), queue="orders")
        write_file(path, 0, payload(ord(name) + 2), queue="orders:mail")
        write_file(path, 0, payload(ord(name) + 4), queue="clicks")
    (tmp_path / "nodes" / "lost+found").mkdir()
    (tmp_path / "nodes" / "link").symlink_to(tmp_path / "nodes" / "a")
    return tmp_path / "nodes"


@pytest.mark.parametrize(
    "paths, choice, found",
    [
        (["*"], {}, "a/clicks a/orders a/orders:mail b/clicks b/orders b/orders:mail"),
        (["*/orders.*"], {}, "a/orders b/orders"),
        (["a", "a", "link", "a/orders.*", "file:{}/a"], {}, "a/clicks a/orders a/orders:mail"),  # each once
        (["b/../a/orders.*", "./b/clicks.*"], {}, "a/orders b/clicks"),
        (["a"], {"topics": ("orders",)}, "a/orders a/orders:mail"),
        (["a"], {"channels": ("mail", "x")}, "a/orders:mail"),
        (["a"], {"topics": ("clicks",), "channels": ("mail",)}, ""),
    ],
)
def test_paths_and_topics_choose_queues(
    two: Path, monkeypatch: pytest.MonkeyPatch, paths: list[str], choice: dict[str, tuple[str, ...]], found: str
) -> None:
    monkeypatch.chdir(two)
    rows = read(*(path.format(two) for path in paths), **choice)  # type: ignore[arg-type]
    assert " ".join(f"{Path(row['nsqd']).relative_to(two)}/{row['queue']}" for row in rows) == found


def test_a_file_that_was_set_aside_is_read_where_it_is_named(directory: Path) -> None:
    write_file(directory, 0, payload(1))
    (directory / data_file_name(QUEUE, 0)).rename(directory / f"{data_file_name(QUEUE, 0)}.bad")
    write_file(directory, 1, payload(2))
    write_meta(directory, 1, 1, 0, 1, RECORD)
    assert values(read(directory)) == values(read(directory, everything=True)) == [b"body 2"]
    assert values(read(directory / "*.bad")) == [b"body 1"]


@pytest.mark.parametrize(
    "path, text",
    [
        ("missing", "there is no such directory"),
        ("missing/*", "nor anything that matches it"),
        (".", "is not a data directory"),
        ("*", "matches no data directory of an nsqd and no file of a queue"),
        ("file", "matches no data directory of an nsqd and no file of a queue"),
    ],
)
def test_paths_that_lead_nowhere_are_reported(tmp_path: Path, path: str, text: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataDirectoryError, match=text):
        read(tmp_path / path)


# Options


def test_options_have_defaults_and_know_no_case() -> None:
    assert parse({"path": "/data"}) == DiskqueueSettings(path="/data")
    assert parse({"path": "/data"}).all_paths == ("/data",)
    found = parse({"PATHS": '["/a", "/b"]', "Messages": "ALL", "corruption": "Skip", "maxmsgsize": "10m"})
    assert found.all_paths == ("/a", "/b")
    assert (found.messages, found.corruption, found.max_msg_size) == ("all", "skip", 10 << 20)
    assert parse({"path": "/a", "topic": "x,y", "channel": "c#ephemeral"}).topics == ("x", "y")


@pytest.mark.parametrize(
    "options, text",
    [
        ({}, "option 'path' is required"),
        ({"path": ""}, "option 'path' has the value ''"),
        ({"path": "s3a://bucket/data"}, "expected a local path"),
        ({"paths": '["/a", "hdfs:///b"]'}, "expected a local path"),
        ({"paths": "/a"}, "option 'paths' has the value '/a': expected a list of paths in JSON"),
        ({"path": "/a", "corruption": "ignore"}, "expected fail, column or skip"),
        ({"path": "/a", "messages": "new"}, "expected unread or all"),
        ({"path": "/a", "topic": "x y"}, "option 'topic' has the value 'x y'"),
        ({"path": "/a", "maxMsgSize": "0"}, "option 'maxMsgSize' has the value '0'"),
        ({"path": "/a", "corruptions": "skip"}, "did you mean 'corruption'"),
        ({"path": "/a", "subscribe": "x"}, "unknown option 'subscribe'"),
    ],
)
def test_what_cannot_be_obeyed_is_reported(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse(options)
    assert text in str(raised.value)
