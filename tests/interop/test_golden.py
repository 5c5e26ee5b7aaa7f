"""Data directories that the real nsqd left, whole or damaged by hand, read by our storage and our daemon
(tests/golden/*).

Each case holds `data/`, and in `expected.json` the options it was written with, what is on disk, and what the real
nsqd delivered and logged when it was started on a copy; or, under `metadata/`, what became of an nsqd.dat. Where gnsqd
saves what the real one loses, the test says so.
"""

import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gnsqd.log import Level, Logger
from gnsqd.options import Options
from gnsqd.storage.disk.diskqueue import DiskQueue
from gnsqd.storage.disk.opening import DataFiles
from gnsqd.storage.disk.record import decode_record, encode_record
from gnsqd.storage.syncer import Syncer
from kit.daemons import DEADLINE, Daemon, eventually, own_command
from kit.nsq_client import Client, Message

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

# Where gnsqd differs: without usable meta (case, queue, delivered as), and files that were read to their end.
READ_ALL = [("nometa", "u", "u:drain"), ("meta_garbage", "roll:c", "roll:c")]
READ_TO_THE_END = "exactfit"
CORRECTED = {*(case for case, *_ in READ_ALL), READ_TO_THE_END}

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
    options = Options(
        max_bytes_per_file=int(flags.get("max-bytes-per-file", 100 << 20)),
        sync_every=int(flags.get("sync-every", 2500)),
    )
    data_files = DataFiles(os.fspath(directory), os.listdir(directory))
    queue = DiskQueue(name, options, data_files, Logger("", Level.WARN, stream), syncer)
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

    bad = [name for name in drain["bad_files"] if name.startswith(f"{queue}.") and case != READ_TO_THE_END]
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


# The whole daemon

GnsqdFactory = Callable[..., Daemon]

CASES = sorted(path.parent.name for path in GOLDEN.glob("*/data"))
METADATA_CASES = sorted(path.parent.name for path in GOLDEN.glob("metadata/*/data"))


def test_all_cases_are_here() -> None:
    assert {case for case, *_ in QUEUES} | CORRECTED == set(CASES)
    assert len(CASES) + len(METADATA_CASES) == 13 + 9


def as_delivered(message: dict[str, Any]) -> Message:
    id, body = message["id"].encode(), message["body"].encode("latin-1")
    return Message(message["timestamp"], message["attempts"], id, body)


def expected_messages(case: str) -> dict[str, list[Message]]:
    """What the real nsqd delivers, by `topic:channel`."""
    delivered = expectation(case)["real_nsqd_drain"]["messages"]
    return {queue: [as_delivered(message) for message in found] for queue, found in delivered.items()}


def at_start(nsqd: Daemon) -> dict[str, Any]:
    """As `at_start` in expected.json."""
    kinds = ("paused", "depth", "backend_depth")
    return {
        topic["topic_name"]: {
            **{kind: topic[kind] for kind in kinds},
            "channels": {entry["channel_name"]: {kind: entry[kind] for kind in kinds} for entry in topic["channels"]},
        }
        for topic in nsqd.stats()["topics"]
    }


def drain(nsqd: Daemon, topic: str, channel: str, count: int) -> list[Message]:
    """The next `count` messages, each finished, after which there must be no more."""
    query = f"?topic={topic}&channel={channel}"
    assert nsqd.http("POST", f"/channel/create{query}")[0] == 200
    for what in (f"topic/unpause?topic={topic}", f"channel/unpause{query}"):
        assert nsqd.http("POST", f"/{what}")[0] == 200
    with Client(nsqd.tcp_address) as client:
        client.subscribe(topic, channel, rdy=1)
        messages = []
        for _ in range(count):
            messages.append(client.message())
            client.command(b"FIN " + messages[-1].id)
        eventually(lambda: (at_start(nsqd)[topic]["depth"], nsqd.channel_stats(topic, channel)["depth"]) == (0, 0))
        client.command(b"CLS")
        assert client.response() == b"CLOSE_WAIT"
    assert nsqd.channel_stats(topic, channel)["in_flight_count"] == 0
    return messages


def check_daemon(
    gnsqd_factory: GnsqdFactory,
    directory: Path,
    case: str,
    *,
    state: dict[str, Any],
    messages: dict[str, list[Message]],
    bad: list[str],
) -> None:
    """Start on a copy of the case, compare topics and channels, drain them all, and see which bad files there are."""
    shutil.copytree(GOLDEN / case / "data", directory)
    nsqd = gnsqd_factory(*expectation(case)["nsqd_options"], data_path=directory)
    assert at_start(nsqd) == state
    for name, expected in messages.items():
        topic, _, channel = name.partition(":")
        assert drain(nsqd, topic, channel, len(expected)) == expected
    assert nsqd.terminate() == 0
    assert bad_files(directory) == bad
    assert list(directory.glob("*.tmp")) == []


@pytest.mark.parametrize("case", [case for case in CASES if case not in CORRECTED])
def test_daemon_delivers_what_the_real_nsqd_delivers(gnsqd_factory: GnsqdFactory, tmp_path: Path, case: str) -> None:
    drained = expectation(case)["real_nsqd_drain"]
    check_daemon(
        gnsqd_factory,
        tmp_path / "data",
        case,
        state=drained["at_start"],
        messages=expected_messages(case),
        bad=drained["bad_files"],
    )


@pytest.mark.parametrize("case, queue, delivered_as", READ_ALL)
def test_daemon_delivers_all_where_the_real_nsqd_overwrites_files_without_usable_meta(
    gnsqd_factory: GnsqdFactory, tmp_path: Path, case: str, queue: str, delivered_as: str
) -> None:
    drained = expectation(case)["real_nsqd_drain"]
    messages = expected_messages(case)
    assert messages[delivered_as] == []
    stored = [Message(*decode_record(payload)) for payload in recorded(case, queue)]
    messages[delivered_as] = [message._replace(attempts=message.attempts + 1) for message in stored]
    topic, _, channel = queue.partition(":")
    depths = drained["at_start"][topic]["channels"][channel] if channel else drained["at_start"][topic]
    assert depths["depth"] == depths["backend_depth"] == 0
    depths["depth"] = depths["backend_depth"] = len(stored)
    check_daemon(
        gnsqd_factory,
        tmp_path / "data",
        case,
        state=drained["at_start"],
        messages=messages,
        bad=drained["bad_files"],
    )


def test_daemon_deletes_what_it_has_read_where_the_real_nsqd_renames_it(
    gnsqd_factory: GnsqdFactory, tmp_path: Path
) -> None:
    drained = expectation(READ_TO_THE_END)["real_nsqd_drain"]
    assert len(drained["bad_files"]) == 4
    check_daemon(
        gnsqd_factory,
        tmp_path / "data",
        READ_TO_THE_END,
        state=drained["at_start"],
        messages=expected_messages(READ_TO_THE_END),
        bad=[],
    )
    left = {path.name for path in (tmp_path / "data").glob("*.diskqueue.0*")}
    assert len([name for name in left if name.startswith("fit:drain.")]) <= 1  # the one that is written to
    assert len([name for name in left if name.startswith("fit.")]) <= 1


@pytest.mark.parametrize("case", METADATA_CASES)
def test_metadata_means_to_the_daemon_what_it_means_to_the_real_nsqd(
    gnsqd_factory: GnsqdFactory, tmp_path: Path, case: str
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(GOLDEN / "metadata" / case / "data", directory)
    expected = json.loads((GOLDEN / "metadata" / case / "expected.json").read_text())
    assert (directory / "nsqd.dat").read_text() == expected["input"]
    if expected["exit_code"]:
        code, output = failed_start(directory)
        assert code == expected["exit_code"]
        assert (directory / "nsqd.dat").read_text() == expected["input"]
    else:
        nsqd = gnsqd_factory(data_path=directory)
        state = at_start(nsqd)
        channels = {
            topic: {name: channel["paused"] for name, channel in entry["channels"].items()}
            for topic, entry in state.items()
        }
        found = {topic: {"paused": entry["paused"], "channels": channels[topic]} for topic, entry in state.items()}
        assert found == expected["topics"]
        assert in_order((directory / "nsqd.dat").read_text()) == in_order(expected["rewritten_nsqd_dat"])
        output = nsqd.log()
    lines = re.findall(r"(?:WARNING|ERROR|FATAL): .*", output.replace(str(directory), "$D"))
    assert sorted(line for line in lines if "gnsqadmin data repair" not in line) == sorted(expected["log"])


def failed_start(data_path: Path) -> tuple[int, str]:
    """Exit code and output."""
    flags = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={data_path}"]
    done = subprocess.run([*own_command(), *flags], capture_output=True, text=True, timeout=DEADLINE, check=False)
    return done.returncode, done.stdout + done.stderr


def in_order(metadata: str) -> list[str]:
    """The parts of an nsqd.dat, whose topics the real nsqd writes in random order."""
    return sorted(re.split(r",(?=\{\"name\":\"[a-z]\",\"paused\":\w+,\"channels\")", metadata))
