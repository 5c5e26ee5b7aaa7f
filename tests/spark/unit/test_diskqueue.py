"""`pyspark_nsq_diskqueue` without a JVM: which messages are read, and what damage becomes."""

import errno
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnsq_shared.directory import list_directory, make_plan
from gnsqd.storage.disk.record import (
    data_file_name,
    decode_record,
    encode_record,
    frame_records,
)
from nsqadmin_cli.datadir.records import Record, read_queue
from pyspark_nsq_diskqueue import reading
from pyspark_nsq_diskqueue.planning import plan
from pyspark_nsq_diskqueue.reading import CorruptionError
from spark.data_directories import (
    MAX_MSG_SIZE,
    QUEUE,
    RECORD,
    Rows,
    make_directory,
    payload,
    read,
    values,
    write_file,
    write_meta,
)

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/data"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_directory(tmp_path / "nsqd")


# Data directories that the real nsqd left


def expectation(case: str) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((GOLDEN / case / "expected.json").read_text())
    return expected


def delivered(case: str, queue: str) -> list[tuple[str, int, int, bytes]] | None:
    """(id, timestamp, attempts, body) of what the real nsqd delivered from that queue; None if it did not read it."""
    messages = expectation(case)["real_nsqd_drain"]["messages"]
    found = messages.get(queue, messages.get(f"{queue}:drain", messages.get(f"{queue}:c")))
    if found is None:
        return None
    # attempts went up by one with the delivery
    return [(m["id"], m["timestamp"], m["attempts"] - 1, m["body"].encode("latin-1")) for m in found]


def recorded(case: str, queue: str) -> list[tuple[str, int, int, bytes]]:
    """What the data files of a queue hold, as it was written down."""
    files = expectation(case)["disk"]["queues"][queue]["files"]
    return [
        (record["id"], record["timestamp"], record["attempts"], record["body"].encode("latin-1"))
        for number in sorted(files)
        if not number.endswith(".bad")
        for record in files[number]["records"]
        if "bad" not in record
    ]


def messages_of(rows: Rows) -> list[tuple[str, int, int, bytes]]:
    return [(row["message_id"], row["timestamp_ns"], row["attempts"], row["value"]) for row in rows]


# Without usable meta the real nsqd delivers nothing and overwrites the files; queues that nobody drained there
NOT_DELIVERED = {("nometa", "u"), ("meta_garbage", "roll:c"), ("basic", "et#ephemeral:c")}


@pytest.mark.parametrize("case", CASES)
def test_unread_messages_are_those_that_the_real_nsqd_delivers(case: str) -> None:
    rows = read(GOLDEN / case / "data", corruption="skip")
    found = {queue: list(group) for queue, group in itertools.groupby(rows, key=lambda row: row["queue"])}
    assert found, "nothing was read"
    for queue in expectation(case)["disk"]["queues"]:
        if (case, queue) in NOT_DELIVERED:
            expected = recorded(case, queue)
        elif queue in ("paused_topic:c", "orders", "roll"):
            expected = []  # empty; what was drained from there came from the topic, or stayed in the channels
        else:
            reported = delivered(case, queue)
            assert reported is not None
            expected = reported
        assert messages_of(found.get(queue, [])) == expected, queue


@pytest.mark.parametrize("case", CASES)
def test_messages_are_those_of_gnsqadmin(case: str) -> None:
    """Up to damage; behind that gnsqadmin goes on looking."""
    found = list_directory(os.fspath(GOLDEN / case / "data"))
    expected = []
    for queue in found.select("", ""):
        damaged: set[int] = set()
        for number, item in read_queue(queue, make_plan(queue), MAX_MSG_SIZE):
            if not isinstance(item, Record) or item.flaw:
                damaged.add(number)
            elif number not in damaged:
                expected.append((queue.name, number, item.position, *decode_record(item.payload)))
    rows = read(GOLDEN / case / "data", corruption="skip")
    assert [
        (
            row["queue"],
            int(row["file"].split(".")[-2]),
            row["position"],
            row["timestamp_ns"],
            row["attempts"],
            row["message_id"].encode(),
            row["value"],
        )
        for row in rows
    ] == expected


@pytest.mark.parametrize("case", CASES)
def test_all_messages_are_all_that_is_in_the_data_files(case: str) -> None:
    rows = read(GOLDEN / case / "data", corruption="skip", everything=True)
    found = {queue: list(group) for queue, group in itertools.groupby(rows, key=lambda row: row["queue"])}
    for queue in expectation(case)["disk"]["queues"]:
        assert messages_of(found.get(queue, [])) == recorded(case, queue), queue


def test_a_row_says_where_its_message_stands() -> None:
    path = GOLDEN / "rolled" / "data"
    row = read(path)[0]
    assert row == {
        "value": b"m14-" + b"x" * 42,
        "topic": "roll",
        "channel": "c",
        "nsqd": str(path),
        "message_id": "18a2973ca8f0900e",
        "timestamp": pa.scalar(1795228294480321, pa.timestamp("us", tz="UTC")).as_py(),
        "timestamp_ns": 1795228294480321688,
        "attempts": 0,
        "queue": "roll:c",
        "file": "roll:c.diskqueue.000000.dat",
        "position": 749,
        "due": None,
        "corruption": None,
    }


def test_the_queue_of_a_topic_has_no_channel() -> None:
    rows = read(GOLDEN / "basic" / "data", topics=("nochan",))
    assert [(row["topic"], row["channel"]) for row in rows] == [("nochan", None)] * 2


def test_files_from_before_the_read_position_count_only_where_everything_does(directory: Path) -> None:
    for number in range(3):
        write_file(directory, number, payload(number))
    write_meta(directory, 1, 2, 0, 2, RECORD)
    assert values(read(directory)) == [b"body 2"]
    assert values(read(directory, everything=True)) == [b"body 0", b"body 1", b"body 2"]


def test_a_meta_file_that_reads_behind_where_it_writes_is_not_believed(directory: Path) -> None:
    write_file(directory, 0, payload(1), payload(2))
    write_meta(directory, 0, 0, 2 * RECORD, 0, RECORD)
    assert values(read(directory)) == [b"body 1", b"body 2"]


def test_a_file_that_nothing_was_written_to_yet_is_not_missing(directory: Path) -> None:
    write_file(directory, 0, payload(1))
    write_meta(directory, 1, 0, 0, 1, 0)
    assert values(read(directory)) == [b"body 1"]


# Damage


@pytest.mark.parametrize(
    "case, file, position, text",
    [
        ("corrupt_size", "roll:c.diskqueue.000001.dat", 689, "invalid message read size (0): 231 bytes not read"),
        ("corrupt_trunc", "roll:c.diskqueue.000001.dat", 840, "unexpected EOF: 73 bytes not read"),
        ("corrupt_missing", "roll:c.diskqueue.000001.dat", 0, "missing"),
        ("writepos_high", "roll:c.diskqueue.000002.dat", 417, "EOF, 100 bytes before where the meta file has the end"),
    ],
)
def test_damage_is_an_error_or_a_row_as_asked(case: str, file: str, position: int, text: str) -> None:
    path = GOLDEN / case / "data"
    with pytest.raises(CorruptionError) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}/{file} at {position}: {text}. ")

    rows = read(path, corruption="column")
    reported = [row for row in rows if row["corruption"] is not None]
    assert [{name: value for name, value in row.items() if value is not None} for row in reported] == [
        {
            "topic": "roll",
            "channel": "c",
            "nsqd": str(path),
            "queue": "roll:c",
            "file": file,
            "position": position,
            "corruption": text,
        }
    ]
    assert [row for row in rows if row["corruption"] is None] == read(path, corruption="skip")


@pytest.mark.parametrize("size", [-1, 25, 27 + 1000, 1 << 30])
def test_a_length_that_cannot_be_right_costs_the_rest_of_its_file(directory: Path, size: int) -> None:
    damaged = size.to_bytes(4, "big", signed=True) + payload(2)
    write_file(directory, 0, payload(1), torn=damaged + frame_records([payload(3)]))
    write_file(directory, 1, payload(4))
    rows = read(directory, corruption="column", max_msg_size=1000)
    assert values(rows) == [b"body 1", None, b"body 4"]
    assert rows[1]["corruption"].startswith(f"invalid message read size ({size}): ")


def test_the_largest_message_of_the_option_is_not_damage(directory: Path) -> None:
    write_file(directory, 0, payload(1, b"x" * 1000), payload(2, b"y" * 1001))
    with pytest.raises(CorruptionError, match=r"invalid message read size \(1027\)"):
        read(directory, max_msg_size=1000)
    assert len(read(directory, max_msg_size=1001)) == 2


@pytest.mark.parametrize("torn", [frame_records([payload(3)])[:length] for length in (1, 3, 4, 5, RECORD - 1)])
def test_half_a_record_beyond_meta_is_an_unfinished_write(directory: Path, torn: bytes) -> None:
    """As a running daemon has it, or one that was killed before it answered the publisher."""
    write_file(directory, 0, payload(1))
    size = write_file(directory, 1, payload(2), torn=torn) - len(torn)
    write_meta(directory, 2, 0, 0, 1, size)
    assert values(read(directory)) == [b"body 1", b"body 2"]
    write_file(directory, 2, payload(4))
    with pytest.raises(CorruptionError, match="EOF"):  # not at the end of the queue
        read(directory)


def test_half_a_record_within_meta_is_damage(directory: Path) -> None:
    size = write_file(directory, 0, payload(1), torn=frame_records([payload(2)])[:-1])
    write_meta(directory, 2, 0, 0, 0, size + 1)
    with pytest.raises(CorruptionError, match="unexpected EOF"):
        read(directory)


def test_a_file_that_was_read_to_its_end_lacks_what_meta_has(directory: Path) -> None:
    write_file(directory, 0, payload(1))
    write_meta(directory, 1, 0, RECORD, 0, 2 * RECORD)
    with pytest.raises(CorruptionError, match=f"at {RECORD}: EOF, {RECORD} bytes before"):
        read(directory)


def test_a_disk_that_fails_to_read_is_damage(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(directory, 0, *(payload(number) for number in range(100)))
    monkeypatch.setattr(reading, "_CHUNK", 1000)
    calls = itertools.count()

    def read_at(descriptor: int, count: int, position: int) -> bytes:
        if next(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        return os.pread(descriptor, count, position)

    (task,) = plan([os.fspath(directory)])
    batches = list(reading.read_task(task, "column", MAX_MSG_SIZE, read_at))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert values(rows[:-1]) == [b"body %d" % number for number in range(len(rows) - 1)]
    assert 0 < len(rows) - 1 < 100
    assert rows[-1]["corruption"].startswith("input/output error: ")
    calls = itertools.count()
    with pytest.raises(CorruptionError, match="input/output error"):
        list(reading.read_task(task, "fail", MAX_MSG_SIZE, read_at))


def test_an_id_that_is_no_text_does_not_hide_the_message(directory: Path) -> None:
    write_file(directory, 0, encode_record(1, 1, b"\xff" * 16, b"body"), payload(2))
    rows = read(directory)
    assert [(row["message_id"], row["value"]) for row in rows] == [
        ("\\xff" * 16, b"body"),
        ("0000000000000002", b"body 2"),
    ]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(junk=st.binary(max_size=200), change=st.tuples(st.integers(0, 4 * RECORD - 1), st.integers(0, 255)))
def test_damage_never_costs_what_stands_before_it(directory: Path, junk: bytes, change: tuple[int, int]) -> None:
    position, byte = change
    data = bytearray(frame_records([payload(number) for number in range(4)]))
    data[position] = byte
    (directory / data_file_name(QUEUE, 0)).write_bytes(bytes(data) + junk)
    rows = read(directory, corruption="column")
    whole = position // RECORD
    assert values(rows)[:whole] == [b"body %d" % number for number in range(whole)]
    assert [row["corruption"] for row in rows[:-1]] == [None] * (len(rows) - 1)
    assert rows[-1]["position"] <= len(data) + len(junk)


def test_a_million_missing_files_are_one_row(directory: Path) -> None:
    write_file(directory, 0, payload(1))
    write_meta(directory, 1, 0, 0, 10**15, 5)
    rows = read(directory, corruption="column")
    assert values(rows) == [b"body 1", None]
    assert rows[1]["corruption"] == f"missing, and so are {10**15 - 1} files behind it"


# Chunks


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 33, 100, 1000])
def test_records_may_end_anywhere_in_a_chunk(directory: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    bodies = [b"x" * (7 * number % 50) for number in range(60)]
    write_file(directory, 0, *(encode_record(1, 1, b"%016x" % number, body) for number, body in enumerate(bodies)))
    positions = [row["position"] for row in read(directory)]
    monkeypatch.setattr(reading, "_CHUNK", chunk)
    rows = read(directory)
    assert values(rows) == bodies
    assert [row["position"] for row in rows] == positions


def test_a_large_file_is_read_in_small_pieces(directory: Path) -> None:
    write_file(directory, 0, *(payload(number, b"x" * 1000) for number in range(10_000)))
    largest = 0

    def read_at(descriptor: int, count: int, position: int) -> bytes:
        nonlocal largest
        largest = max(largest, count)
        return os.pread(descriptor, count, position)

    (task,) = plan([os.fspath(directory)])
    sizes = [batch.nbytes for batch in reading.read_task(task, "fail", MAX_MSG_SIZE, read_at)]
    assert largest <= 1 << 20 < task.end
    assert max(sizes) < 2 << 20
