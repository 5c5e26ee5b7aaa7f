"""`pyspark_nsq_diskqueue` reads the journals that gnsqd has with --durability."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gnsqd.shared.log_store import LogStore, Stored, read_log
from kit.daemons import eventually
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create, post, publish, take
from pyspark_nsq.errors import OptionError
from pyspark_nsq_diskqueue.options import parse
from pyspark_nsq_diskqueue.planning import DataDirectoryError, plan
from pyspark_nsq_diskqueue.reading import CorruptionError, read_task
from spark.data_directories import MAX_MSG_SIZE, read


def by_queue(path: Path, **options: Any) -> dict[str, list[tuple[bytes, int, bool]]]:
    rows = [(row["queue"], (row["value"], row["attempts"], row["due"] is not None)) for row in read(path, **options)]
    return {queue: [row for name, row in rows if name == queue] for queue, _ in rows}


def test_journals_are_read_and_damage_is_reported(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--durability=process", "--retention-bytes=1000000")
    path, bodies = nsqd.data_path, [b"%d" % number for number in range(6)]
    create(nsqd, "t", "c", "again", "done")
    for body in bodies:  # a record for each
        publish(nsqd, "t", body)
    publish(nsqd, "alone", b"x")
    take(nsqd, "t", "c", 2)
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c")
        client.command(b"RDY 1")
        client.command(b"REQ %b 60000" % client.message().id)
        client.send(b"RDY 0\nREQ %b 0\n" % client.message().id)
    take(nsqd, "t", "done", 6)
    take(nsqd, "t", "again", 6)
    post(nsqd, "/channel/rewind?topic=t&channel=again&to=first")
    fresh = [(body, 0, False) for body in bodies]
    unread = {"alone": [(b"x", 0, False)], "t:again": fresh, "t:c": [(b"2", 1, True), (b"3", 1, False), *fresh[4:]]}
    eventually(lambda: by_queue(path) == unread, "what was finished is noted")
    nsqd.kill()
    assert by_queue(path) == unread
    assert by_queue(path, channels=["c"]) == {"t:c": unread["t:c"]}
    assert by_queue(path, everything=True) == {"alone": [(b"x", 0, False)], "t": fresh}
    with pytest.raises(OptionError, match="once for all channels"):
        read(path, everything=True, channels=["c"])
    publish(nsqd.start(), "t", b"6")  # another segment follows, so that the first is read by its index
    nsqd.kill()
    first = path / "t.journal.000000.dat"
    first.write_bytes(first.read_bytes().replace(read(path, everything=True)[-3]["message_id"].encode(), b"?" * 16))
    with pytest.raises(CorruptionError, match=r"t.journal.000000.dat at \d+: damaged: \d+ bytes not read"):
        read(path)
    rows = by_queue(path, corruption="column")
    assert [[row[0] for row in rows[queue]] for queue in ("t:c", "t")] == [[b"2", b"3", b"5", b"6"], [None]]
    (task,) = plan([str(first)])
    first.unlink()
    with pytest.raises(CorruptionError, match="6 messages are not there any more"):
        list(read_task(task, "fail", MAX_MSG_SIZE))
    with pytest.raises(CorruptionError, match="6 messages are lost, no segment has them: numbers 1-6"):
        read(path)


def test_log_store_has_the_rows_of_the_data_directory(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    nsqd = gnsqd_factory("--durability=process", f"--log-store={url}", "--max-bytes-per-file=5000")
    create(nsqd, "t", "c", "d")
    for number in range(40):
        post(nsqd, "/pub?topic=t", b"%-500d" % number)
    publish(nsqd, "u", b"x")
    take(nsqd, "t", "c", 25)
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "d", 2)
        client.command(b"REQ %b 60000" % client.message().id)
        client.command(b"FIN %b" % client.message().id)
    with pytest.raises(OptionError, match="expected a local path, .*, or the URL of a log store"):
        parse({"path": "hdfs:///store"})
    store, path = LogStore(url), nsqd.data_path
    eventually(lambda: len(read_log(store).objects()) > 3)
    nsqd.terminate()
    for options in ({}, {"everything": True}, {"channels": ["d"]}, {"topics": ["u"]}):
        rows = read(path, **options)
        assert read(url, **options) == [row | {"nsqd": url} for row in rows]
    assert len({row["file"] for row in read(url)}) > 4
    tasks = plan([url])
    for task in tasks:  # whose objects are others by now
        assert task.stored is not None
        (file,) = task.stored.files
        file = replace(file, stored=Stored("segments/gone", "", 1, 1, 2), parts=[])
        moved = replace(task, stored=task.stored._replace(files=(file,)))
        assert [*read_task(moved, "fail", MAX_MSG_SIZE)] == [*read_task(task, "fail", MAX_MSG_SIZE)]
    (stored, *_) = sorted((tmp_path / "store" / "segments").iterdir())
    stored.write_bytes(stored.read_bytes().replace(b"%-500d" % 6, b"%-500d" % 7))
    (first,) = [task for task in tasks if task.file in stored.name]
    assert first.segment is not None
    with pytest.raises(CorruptionError, match=rf"{url}/t.journal.000000.dat at \d+: damaged: \d+ bytes not read"):
        list(read_task(first, "fail", MAX_MSG_SIZE))
    unread = sum(queue.numbers.count() for queue in first.segment.queues)
    assert sum(batch.num_rows for batch in read_task(first, "skip", MAX_MSG_SIZE)) < unread
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(DataDirectoryError, match="there is no "):
        list(read_task(first, "skip", MAX_MSG_SIZE))
    (tmp_path / "store" / "wal").mkdir(parents=True)
    with pytest.raises(DataDirectoryError, match=f"{url} has no log"):
        plan([url])
