"""What is kept of a spool, and for how long; and that ids are known as long as they are needed."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from gnsqd.shared.client import PushedMessage
from pyspark_nsq import known_ids, retention
from pyspark_nsq.columns import Messages
from pyspark_nsq.errors import SpoolError
from pyspark_nsq.files import place
from pyspark_nsq.known_ids import KnownIds, ids_files
from pyspark_nsq.options import Settings
from pyspark_nsq.retention import Retention, inspect
from pyspark_nsq.segment import EntryKind, pack_entry
from pyspark_nsq.spool import Spool
from spark.unit.fake_nsqd import frames_of
from spark.unit.interruption import BOTH_PLACES

TOPIC, NSQD = "a-topic-with-a-long-name", "n:4150"
RUN = 1234  # when the nsqd was started
SETTINGS = Settings(spool_retention=3600.0, dedup_retention=7200.0)


def ids(batch: int) -> list[bytes]:
    return [f"{batch:08d}{number:08d}".encode() for number in (3, 1, 2)]


@pytest.fixture
def spool(location: str) -> Spool:
    return Spool.create(Settings(topics=(TOPIC,), channel="c", spool_location=location), "s", "readStream")


def fill(spool: Spool, batch: int, *, confirmed: bool = True, topic: str = TOPIC) -> None:
    """A batch of one chain with one segment of three messages."""
    chain = spool.chain(batch, 0, NSQD)
    chain.open()
    chain.append(pack_entry(EntryKind.SEGMENT, 0, RUN, {topic: b"".join(ids(batch))}, b"payload"))
    if confirmed:
        chain.confirm(0, [0])
    chain.end(0)


def message(id: bytes, attempts: int) -> PushedMessage:
    return PushedMessage(0, attempts, id, b"")


def known(
    spool: Spool, batch: int, candidates: list[bytes], attempts: int = 2, started: int = RUN, rewound: bool = False
) -> set[bytes]:
    """What a task of `batch` knows of the ids."""
    chain = spool.chain(batch, 0, NSQD)
    chain.refresh()
    return KnownIds(spool, batch, NSQD, started, chain, rewound).among(
        TOPIC, Messages.of([frames_of([message(id, attempts) for id in candidates])])
    )


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("pyspark_nsq.retention.time.monotonic", lambda: clock.now)
    return clock


def test_time_counts_while_the_stream_runs(spool: Spool, clock: Clock) -> None:
    """A message that waits for a stopped stream has to be known when that runs again."""
    fill(spool, 1, confirmed=False)
    Retention(spool, SETTINGS).commit(1)
    clock.now += 100_000
    Retention(spool, SETTINGS).commit(1)
    assert spool.batches() == [1]
    assert known(spool, 2, ids(1)) == set(ids(1))


def test_setting_the_clock_of_a_machine_deletes_nothing(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that of the driver nor that of the file server."""
    keeper = Retention(spool, SETTINGS)
    for batch in (1, 2):
        fill(spool, batch, confirmed=batch == 1)
    keeper.commit(2)
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + 100_000)
    for path in Path(spool.directory).rglob("*"):
        os.utime(path, (now - 100_000, now - 100_000))
    keeper.commit(2)
    assert spool.batches() == [1, 2]
    assert len(ids_files(spool, NSQD)) == 2


@BOTH_PLACES
def test_segments_beyond_the_size_go_oldest_first(spool: Spool) -> None:
    keeper = Retention(spool, replace(SETTINGS, spool_max_bytes=1))
    for batch in (1, 2, 3):
        fill(spool, batch, confirmed=batch != 1)
    keeper.commit(2)
    assert spool.batches() == [3]
    # Without its ids, a message that comes again would be read twice.
    assert [file.confirmed for file in ids_files(spool, NSQD)] == [False, True]
    size = place(spool.location).size(spool.batch_directory(3))
    fill(spool, 4)
    fill(spool, 5)
    Retention(spool, replace(SETTINGS, spool_max_bytes=size)).commit(4)
    assert spool.batches() == [4, 5]


@pytest.mark.parametrize(
    "confirmed, age, kept", [(True, 599, True), (True, 601, False), (False, 7199, True), (False, 7201, False)]
)
def test_ids_are_kept_while_their_messages_may_come_again(
    spool: Spool, clock: Clock, confirmed: bool, age: float, kept: bool
) -> None:
    keeper = Retention(spool, replace(SETTINGS, spool_retention=0.0))
    fill(spool, 1, confirmed=confirmed)
    keeper.commit(1)
    clock.now += age
    keeper.commit(1)
    assert bool(ids_files(spool, NSQD)) == kept
    # A killed nsqd has forgotten attempts.
    assert known(spool, 2, ids(1), attempts=1, started=RUN + 1) == (set(ids(1)) if kept else set())


@BOTH_PLACES
def test_a_commit_returns_what_it_leaves_and_asks_for_the_size_of_a_file_once(
    spool: Spool, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = place(spool.directory)
    sizes: list[str] = []
    size = where.size
    monkeypatch.setattr(where, "size", lambda path: sizes.append(path) or size(path))  # type: ignore[func-returns-value]
    keeper = Retention(spool, SETTINGS)
    fill(spool, 1, confirmed=False)
    fill(spool, 2)
    kept = keeper.commit(2)
    everything = size(f"{spool.directory}/batches") + size(f"{spool.directory}/ids")
    marks = 3 * len(b"\n") if "://" in spool.location else 0  # of the directories that hold those of batches and ids
    assert kept == {"suspects": 3, "spool_bytes": everything - marks, "dropped": 0}
    assert len(sizes) == len(set(sizes)) == 4  # two directories of segments and two files of ids
    fill(spool, 3, confirmed=False)
    assert keeper.commit(2) == kept, "a batch that is not committed is not counted"
    assert len(sizes) == 4
    clock.now += 3601
    kept = keeper.commit(2)
    assert spool.batches() == [3], "nothing of a batch that is not committed may go"
    (file,) = ids_files(spool, NSQD)
    assert kept == {"suspects": 3, "spool_bytes": size(file.path), "dropped": 0}
    clock.now += 3600
    assert keeper.commit(2) == {"suspects": 0, "spool_bytes": 0, "dropped": 0}


@pytest.mark.parametrize("file_length", [1, 2, 500_000])
def test_suspects_are_known_by_attempts_and_others_after_a_restart(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, file_length: int
) -> None:
    monkeypatch.setattr(known_ids, "_IDS_OF_A_FILE", file_length)
    fill(spool, 1, confirmed=True)
    fill(spool, 2, confirmed=False)
    fill(spool, 3, confirmed=True)  # not committed
    Retention(spool, SETTINGS).commit(2)
    every = ids(1) + ids(2) + ids(3) + ids(4) + [b"0" * 16, b"f" * 16]
    assert known(spool, 4, every) == {*ids(2), *ids(3)}
    assert known(spool, 4, every, attempts=1) == set()
    assert known(spool, 4, every, attempts=0) == {*ids(2), *ids(3)}, "the real nsqd counts on from 0 after 65535"
    assert known(spool, 4, every, attempts=1, started=RUN + 1) == {*ids(1), *ids(2), *ids(3)}
    assert known(spool, 4, every, attempts=1, started=0) == {*ids(1), *ids(2), *ids(3)}
    assert known(spool, 4, every, attempts=1, started=RUN + 1, rewound=True) == set()
    assert known(spool, 4, every, started=RUN + 1, rewound=True) == {*ids(2), *ids(3)}
    assert known(spool, 2, ids(3)) == set(), "a batch before knows nothing of one after"


@BOTH_PLACES
def test_ids_of_another_topic_are_others(spool: Spool) -> None:
    fill(spool, 1, topic="other", confirmed=False)
    assert known(spool, 2, ids(1)) == set()
    Retention(spool, SETTINGS).commit(1)
    assert known(spool, 2, ids(1)) == set()


def test_what_was_stopped_halfway_is_done_the_next_time(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(spool, 1, confirmed=False)
    fill(spool, 2, confirmed=False)
    keeper = Retention(spool, replace(SETTINGS, spool_retention=0.0))
    for step in ("archive", "set_committed", "rmtree"):
        with monkeypatch.context() as broken:

            def fail(*arguments: object, **named: object) -> NoReturn:
                raise OSError(28, "No space left on device")

            if step == "archive":
                broken.setattr(retention, "archive", fail)
            elif step == "set_committed":
                broken.setattr(Spool, "set_committed", fail)
            else:
                broken.setattr("pyspark_nsq.files.shutil.rmtree", fail)
            with pytest.raises(OSError):
                keeper.commit(2)
        assert known(spool, 3, ids(1) + ids(2)) == {*ids(1), *ids(2)}, step
    keeper.commit(2)
    assert spool.batches() == []
    assert known(spool, 3, ids(1) + ids(2)) == {*ids(1), *ids(2)}


def test_a_damaged_ids_file_is_reported(spool: Spool) -> None:
    fill(spool, 1, confirmed=False)
    Retention(spool, replace(SETTINGS, spool_retention=0.0)).commit(1)
    path = Path(ids_files(spool, NSQD)[0].path)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(SpoolError, match="checksum of its ids"):
        known(spool, 2, ids(1))


def test_the_inspection_counts_what_is_there(spool: Spool, tmp_path: Path) -> None:
    for batch, confirmed in ((1, True), (2, False), (3, False)):
        fill(spool, batch, confirmed=confirmed)
    open_batch = spool.chain(4, 0, NSQD)
    open_batch.open()
    Retention(spool, SETTINGS).commit(2)
    (tmp_path / "no stream").mkdir()
    (report,) = inspect(str(tmp_path))
    assert (report.stream, report.kind, report.topics, report.channel) == ("s", "readStream", (TOPIC,), "c")
    assert (report.committed_batch, report.batches, report.segments, report.messages) == (2, 4, 3, 9)
    assert (report.uncommitted_messages, report.known_ids, report.suspects, report.damaged) == (3, 6, 6, 0)
    assert report.bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.ids")) + sum(
        path.stat().st_size for path in tmp_path.rglob("00000?")
    )


def test_an_inspection_survives_damage(spool: Spool, tmp_path: Path) -> None:
    fill(spool, 1)
    chain = spool.chain(1, 0, NSQD)
    chain.refresh()
    Path(chain.entries[0].path).write_bytes(b"rubbish")
    Path(spool.directory, "stream").write_bytes(b"{")
    (report,) = inspect(str(tmp_path))
    assert (report.kind, report.damaged, report.messages) == ("", 1, 0)


def test_a_spool_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SpoolError, match="cannot read the spool at .*nowhere: no such file or directory"):
        inspect(str(tmp_path / "nowhere"))
