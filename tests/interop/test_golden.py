"""Data directories that the real nsqd left, whole or damaged by hand, read by our storage (tests/golden/*).

Each case holds `data/`, and in `expected.json` the options it was written with, what is on disk, and what the real
nsqd delivered and logged when it was started on a copy. Where gnsqd mends what the real one loses, the case is tested
by itself and says so.
"""

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gnsqd.log import Level, Logger
from gnsqd.storage.diskqueue import DiskQueue
from gnsqd.storage.record import decode_record, encode_record
from gnsqd.storage.syncer import Syncer

GOLDEN = Path(__file__).parents[1] / "golden"

# case, queue, and under which topic:channel the real nsqd delivered what was in it (None: nothing was)
QUEUES = [
    ("basic", "nochan", "nochan:drain"),
    ("basic", "orders", None),
    ("basic", "orders:busy", "orders:busy"),
    ("basic", "orders:paused_ch", "orders:paused_ch"),
    ("basic", "orders:plain", "orders:plain"),
    ("basic", "paused_topic", "paused_topic:c"),
    ("basic", "paused_topic:c", None),
    ("rolled", "roll", None),
    ("rolled", "roll:c", "roll:c"),
    ("exactfit", "fit", "fit:drain"),
    ("unclean", "u", "u:drain"),
    ("corrupt_trunc", "roll:c", "roll:c"),
    ("corrupt_size", "roll:c", "roll:c"),
    ("corrupt_missing", "roll:c", "roll:c"),
    ("depth_high", "roll:c", "roll:c"),
    ("depth_low", "roll:c", "roll:c"),
    ("writepos_high", "roll:c", "roll:c"),
    ("emptied", "e", "e:drain"),
]

# What our log has more, or less, than that of the real nsqd.
ADDED = {
    "writepos_high": [
        "WARNING: DISKQUEUE(roll:c) $D/roll:c.diskqueue.000002.dat metadata writePos 517 > file size of 417, "
        "skipping to new file"
    ],
}
LEFT_OUT = {
    # nothing is there that could be renamed
    "corrupt_missing": ["saving bad file as", "failed to rename"],
    # files that had been read are not bad (NSQD-COMPAT 0.1 item 4)
    "exactfit": ["- EOF", "saving bad file as"],
}


class Reading(NamedTuple):
    """What became of one queue: `depth` when it was opened, WARN and ERROR lines with `$D` for the directory."""

    depth: int
    payloads: list[bytes]
    log: list[str]


def expectation(case: str) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((GOLDEN / case / "expected.json").read_text())
    return expected


def read_queue(case: str, name: str, tmp_path: Path) -> Reading:
    """Drain one queue of a copy of a case."""
    directory = tmp_path / "data"
    shutil.copytree(GOLDEN / case / "data", directory)
    flags = dict(flag.lstrip("-").split("=") for flag in expectation(case)["nsqd_options"])
    stream = io.StringIO()
    syncer = Syncer()
    queue = DiskQueue(
        name,
        data_path=os.fspath(directory),
        max_bytes_per_file=int(flags.get("max-bytes-per-file", 100 << 20)),
        min_msg_size=26,
        max_msg_size=(1 << 20) + 26,
        sync_every=int(flags.get("sync-every", 2500)),
        sync_timeout=2 * 10**9,
        log=Logger("", Level.WARN, stream),
        syncer=syncer,
    )
    depth = queue.depth
    drained = []
    while payloads := queue.peek_many(7, 1 << 20):
        drained += payloads
        queue.advance(len(payloads))
    assert queue.depth == 0
    queue.close()
    syncer.stop()
    log = [line.split(" ", 2)[2].replace(str(directory), "$D") for line in stream.getvalue().splitlines()]
    return Reading(depth, drained, log)


def recorded(case: str, name: str) -> list[bytes]:
    """The payloads of all records in the data files of a queue, as tests/golden describes them."""
    files = expectation(case)["disk"]["queues"][name]["files"]
    records = [record for number in sorted(files) if not number.endswith(".bad") for record in files[number]["records"]]
    return [payload_of(record) for record in records]


def payload_of(record: dict[str, Any], deliveries: int = 0) -> bytes:
    attempts = record["attempts"] - deliveries
    return encode_record(record["timestamp"], attempts, record["id"].encode(), record["body"].encode("latin-1"))


def bad_files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.suffix == ".bad")


@pytest.mark.parametrize("case, queue, delivered_as", QUEUES)
def test_queue_is_read_as_the_real_nsqd_reads_it(
    tmp_path: Path, case: str, queue: str, delivered_as: str | None
) -> None:
    expected = expectation(case)
    drain = expected["real_nsqd_drain"]
    reading = read_queue(case, queue, tmp_path)
    messages = drain["messages"][delivered_as] if delivered_as else []
    assert reading.payloads == [payload_of(message, deliveries=1) for message in messages]

    topic, _, channel = queue.partition(":")
    at_start = drain["at_start"][topic]
    assert reading.depth == (at_start["channels"][channel] if channel else at_start)["backend_depth"]

    lines = [line for line in drain["log_warnings"] if f"DISKQUEUE({queue})" in line]
    lines = [line for line in lines if not any(part in line for part in LEFT_OUT.get(case, []))]
    assert reading.log == ADDED.get(case, []) + lines

    bad = [name for name in drain["bad_files"] if name.startswith(f"{queue}.") and case != "exactfit"]
    assert bad_files(tmp_path / "data") == sorted({*bad, *bad_files(GOLDEN / case / "data")})


def test_orphan_queue_of_an_ephemeral_topic_is_readable(tmp_path: Path) -> None:
    payloads = read_queue("basic", "et#ephemeral:c", tmp_path).payloads
    assert payloads == recorded("basic", "et#ephemeral:c")
    assert decode_record(payloads[0])[3] == b"gone"


@pytest.mark.parametrize("case, queue, count", [("nometa", "u", 3), ("meta_garbage", "roll:c", 41)])
def test_without_usable_meta_every_record_is_read(tmp_path: Path, case: str, queue: str, count: int) -> None:
    """The real nsqd delivers nothing here, and overwrites the files."""
    reading = read_queue(case, queue, tmp_path)
    assert reading.payloads == recorded(case, queue)
    assert reading.depth == len(reading.payloads) == count
    assert "no usable metadata, reading all" in reading.log[-1]
    assert reading.log[:-1] == expectation(case)["real_nsqd_drain"]["log_warnings"]
