"""`pyspark_nsq_diskqueue` without a JVM: which messages are read, and what damage becomes."""

import errno
import itertools
import json
import os
import socket
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli.gnsqadmin import gnsqadmin
from gnsqd.shared.disk_format import data_file_name, frame_records
from kit.account import drain
from kit.traffic import DaemonFactory
from pyspark_nsq.catalog_table import schema_of
from pyspark_nsq_diskqueue import reading
from pyspark_nsq_diskqueue.data_source import DiskqueueDataSource
from pyspark_nsq_diskqueue.planning import plan
from pyspark_nsq_diskqueue.reading import DDL, CorruptionError
from spark.data_directories import MAX_MSG_SIZE, QUEUE, RECORD, payload, read, values, write_file, write_meta

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/data"))


# Data directories that the real nsqd left


def messages(found: list[dict[str, Any]], attempts: int = 0) -> list[tuple[str, int, int, bytes]]:
    """Returns what expected.json has; a delivery has added to the attempts."""
    return [(m["id"], m["timestamp"], m["attempts"] - attempts, m["body"].encode("latin-1")) for m in found]


# Without usable meta the real nsqd delivers nothing and overwrites the files; queues that nobody drained there
NOT_DELIVERED = {("nometa", "u"), ("meta_garbage", "roll:c"), ("basic", "et#ephemeral:c")}
# Empty; what was drained from there came from the topic, or stayed in the channels.
EMPTY = ("paused_topic:c", "orders", "roll")


@pytest.mark.parametrize("everything", [False, True], ids=["unread", "all"])
@pytest.mark.parametrize("case", CASES)
def test_unread_messages_are_the_ones_that_the_real_nsqd_delivers_and_all_are_what_the_files_hold(
    case: str, everything: bool
) -> None:
    expected = json.loads((GOLDEN / case / "expected.json").read_text())
    delivered = expected["real_nsqd_drain"]["messages"]
    rows = read(GOLDEN / case / "data", corruption="skip", everything=everything)
    assert rows, "nothing was read"
    for queue, on_disk in expected["disk"]["queues"].items():
        if everything or (case, queue) in NOT_DELIVERED:
            files = on_disk["files"]
            kept = [files[number]["records"] for number in sorted(files) if not number.endswith(".bad")]
            content = messages([record for records in kept for record in records if "bad" not in record])
        elif queue in EMPTY:
            content = []
        else:
            drained = delivered.get(queue, delivered.get(f"{queue}:drain", delivered.get(f"{queue}:c")))
            content = messages(drained, attempts=1)
        found = [
            (row["message_id"], row["timestamp_ns"], row["attempts"], row["value"])
            for row in rows
            if row["queue"] == queue
        ]
        assert found == content, queue


def test_a_task_whose_rows_are_enough_prints_no_traceback() -> None:
    # When Spark has rows enough, it closes the socket of the worker, which flushes it once more.
    source = DiskqueueDataSource({"path": str(GOLDEN / "rolled" / "data")})
    reader = source.reader(schema_of(DDL))
    rows = reader.read(reader.partitions()[0])
    assert next(rows).num_rows
    broken, closed = socket.socketpair()
    closed.close()
    with broken:
        rows.close()  # type: ignore[attr-defined]
        os.write(broken.fileno(), b"nowhere")


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


# Meta files


@pytest.mark.parametrize(
    "files, meta, found",
    [
        # Files from before the read position count only where everything does.
        ((1, 1, 1), (1, 2, 0, 2, RECORD), [2]),
        # A meta file that reads behind where it writes is not believed.
        ((2,), (0, 0, 2 * RECORD, 0, RECORD), [0, 1]),
        # A file that nothing was written to yet is not missing.
        ((1,), (1, 0, 0, 1, 0), [0]),
        # A file that was read to its end lacks what meta has.
        ((1,), (1, 0, RECORD, 0, 2 * RECORD), f"000000.dat at {RECORD}: EOF, {RECORD} bytes before"),
        # A million missing files are one.
        ((1,), (1, 0, 0, 10**15, 5), f"000001.dat at 0: missing, and so are {10**15 - 1} files behind it"),
    ],
)
def test_a_meta_file_specifies_what_is_unread(
    directory: Path, files: tuple[int, ...], meta: tuple[int, ...], found: list[int] | str
) -> None:
    count = itertools.count()
    for number, records in enumerate(files):
        write_file(directory, number, *(payload(next(count)) for _ in range(records)))
    write_meta(directory, *meta)
    if isinstance(found, str):
        with pytest.raises(CorruptionError, match=found):
            read(directory)
    else:
        assert values(read(directory)) == [b"body %d" % number for number in found]
    assert values(read(directory, corruption="skip", everything=True)) == [b"body %d" % n for n in range(next(count))]


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
        {"topic": "roll", "channel": "c", "nsqd": str(path), "queue": "roll:c"}
        | {"file": file, "position": position, "corruption": text}
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


OTHERS = frame_records([payload(number) for number in range(2, 7)])
DAMAGED = bytes(RECORD)
BEHIND = {
    "end": (b"", True),
    "two": (OTHERS[: 2 * RECORD], True),
    "five": (OTHERS, True),
    "four, then damage": (OTHERS[: 4 * RECORD] + DAMAGED, True),
    "three, then damage": (OTHERS[: 3 * RECORD] + DAMAGED, False),
    "torn": (OTHERS[: RECORD + 9], False),
}


@pytest.mark.parametrize("daemon_command", ["gnsqd"], indirect=True)
@pytest.mark.parametrize("behind, is_valid", BEHIND.values(), ids=BEHIND)
def test_daemon_and_readers_have_one_rule_for_a_message_above_the_limit(
    directory: Path, nsqd_factory: DaemonFactory, behind: bytes, is_valid: bool
) -> None:
    # It was written while --max-msg-size was larger, if other messages follow; otherwise its length is damaged.
    size = write_file(directory, 0, payload(0), payload(1, b"y" * 3000), torn=behind)
    write_meta(directory, 7, 0, 0, 0, size)
    topic, channel = QUEUE.split(":")
    metadata = {"topics": [{"name": topic, "paused": False, "channels": [{"name": channel, "paused": False}]}]}
    (directory / "nsqd.dat").write_text(json.dumps(metadata))
    read_by_spark = values(read(directory, corruption="skip", max_msg_size=1000))
    found = json.loads(gnsqadmin("data", "verify", str(directory), "--max-msg-size=1000", "--json").out)["findings"]
    delivered = drain(nsqd_factory("--max-msg-size=1000", data_path=directory), topic, channel)
    assert (read_by_spark, len(delivered) > 1) == (delivered, is_valid)
    [finding] = [finding for finding in found if finding["file"].endswith(".000000.dat")]
    assert finding["severity"] == ("damage" if DAMAGED in behind or not is_valid else "note")


@pytest.mark.parametrize("torn", [frame_records([payload(3)])[:length] for length in (1, 3, 4, 5, RECORD - 1)])
def test_half_a_record_beyond_meta_is_an_unfinished_write(directory: Path, torn: bytes) -> None:
    # As a running daemon has it, or one that was killed before it answered the publisher.
    write_file(directory, 0, payload(1))
    size = write_file(directory, 1, payload(2), torn=torn) - len(torn)
    write_meta(directory, 2, 0, 0, 1, size)
    assert values(read(directory)) == [b"body 1", b"body 2"]
    write_file(directory, 2, payload(4))
    with pytest.raises(CorruptionError, match="EOF"):  # not at the end of the queue
        read(directory)
    (directory / data_file_name(QUEUE, 2)).unlink()
    write_meta(directory, 3, 0, 0, 1, size + 1)
    with pytest.raises(CorruptionError, match="EOF"):  # within what meta has
        read(directory)


def test_a_disk_that_fails_to_read_is_damage(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(directory, 0, *(payload(number) for number in range(100)))
    monkeypatch.setattr(reading, "_CHUNK", 1000)
    calls, pread = itertools.count(), os.pread

    def read_at(descriptor: int, count: int, position: int) -> bytes:
        if next(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        return pread(descriptor, count, position)

    (task,) = plan([os.fspath(directory)])
    monkeypatch.setattr(os, "pread", read_at)
    batches = list(reading.read_task(task, "column", MAX_MSG_SIZE))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert values(rows[:-1]) == [b"body %d" % number for number in range(len(rows) - 1)]
    assert 0 < len(rows) - 1 < 100
    assert rows[-1]["corruption"].startswith("input/output error: ")
    calls = itertools.count()
    with pytest.raises(CorruptionError, match="input/output error"):
        list(reading.read_task(task, "fail", MAX_MSG_SIZE))


def test_an_id_that_is_not_text_does_not_hide_the_message(directory: Path) -> None:
    write_file(directory, 0, struct.pack(">qH16s", 1, 1, b"\xff" * 16) + b"body", payload(2))
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


# Chunks


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 33, 100, 1000])
def test_records_may_end_anywhere_in_a_chunk(directory: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    bodies = [b"x" * (7 * number % 50) for number in range(60)]
    heads = [struct.pack(">qH16s", 1, 1, b"%016x" % number) for number in range(60)]
    write_file(directory, 0, *map(bytes.__add__, heads, bodies))
    positions = [row["position"] for row in read(directory)]
    monkeypatch.setattr(reading, "_CHUNK", chunk)
    rows = read(directory)
    assert values(rows) == bodies
    assert [row["position"] for row in rows] == positions


def test_a_large_file_is_read_in_small_pieces(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(directory, 0, *(payload(number, b"x" * 1000) for number in range(10_000)))
    largest, pread = 0, os.pread

    def read_at(descriptor: int, count: int, position: int) -> bytes:
        nonlocal largest
        largest = max(largest, count)
        return pread(descriptor, count, position)

    (task,) = plan([os.fspath(directory)])
    monkeypatch.setattr(os, "pread", read_at)
    sizes = [batch.nbytes for batch in reading.read_task(task, "fail", MAX_MSG_SIZE)]
    assert largest <= 1 << 20 < task.end
    assert max(sizes) < 2 << 20
