"""Data directories that the real nsqd left, whole or damaged by hand, read by our daemon (tests/golden/*).

Each case holds `data/`, and in `expected.json` the options it was written with, what is on disk, and what the real
nsqd delivered and logged when it was started on a copy; or, under `metadata/`, what became of an nsqd.dat. Where gnsqd
saves what the real one loses, the test says so.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from kit.daemons import Instance, eventually, own_command, run_to_end
from kit.nsq_client import NSQClient, ReceivedMessage
from kit.traffic import DaemonFactory, create, finish, post

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/data"))
METADATA_CASES = sorted(path.parent.name for path in GOLDEN.glob("metadata/*/data"))

# Without usable meta the real nsqd delivers nothing of these queues, and overwrites their files; by case, the queue,
# how many messages it has, and under which topic:channel they are delivered.
READ_ALL = {"nometa": ("u", 3, "u:drain"), "meta_garbage": ("roll:c", 41, "roll:c")}
READ_TO_THE_END = "exactfit"  # the real nsqd renames these files instead of deleting them (NSQD-COMPAT 0.1 item 4)

# What our log has more, or less, than that of the real nsqd.
ADDED = {
    "writepos_high": [
        "WARNING: DISKQUEUE(roll:c) $D/roll:c.diskqueue.000002.dat metadata writePos 517 > file size of 417, "
        "skipping to new file"
    ],
    "nometa": [
        "WARNING: DISKQUEUE(u) no usable metadata, reading all 3 messages in 1 files from $D/u.diskqueue.000000.dat on"
    ],
    "meta_garbage": [
        "WARNING: DISKQUEUE(roll:c) no usable metadata, reading all 41 messages in 3 files from "
        "$D/roll:c.diskqueue.000000.dat on"
    ],
}
LEFT_OUT = {
    "corrupt_missing": ["saving bad file as", "failed to rename"],  # nothing is there that could be renamed
    READ_TO_THE_END: ["- EOF", "saving bad file as"],
}


def test_all_cases_are_here() -> None:
    assert (len(CASES), len(METADATA_CASES)) == (13, 9)


def expectation(case: str) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((GOLDEN / case / "expected.json").read_text())
    return expected


def recorded(case: str, name: str) -> list[ReceivedMessage]:
    """Returns the messages of all records in the data files of a queue, as tests/golden describes them."""
    files = expectation(case)["disk"]["queues"][name]["files"]
    records = [record for number in sorted(files) if not number.endswith(".bad") for record in files[number]["records"]]
    return [as_message(record) for record in records]


def as_message(entry: dict[str, Any]) -> ReceivedMessage:
    id, body = entry["id"].encode(), entry["body"].encode("latin-1")
    return ReceivedMessage(entry["timestamp"], entry["attempts"], id, body)


def at_start(nsqd: Instance) -> dict[str, Any]:
    """Returns the same as `at_start` in expected.json."""
    kinds = ("paused", "depth", "backend_depth")
    return {
        topic["topic_name"]: {
            **{kind: topic[kind] for kind in kinds},
            "channels": {entry["channel_name"]: {kind: entry[kind] for kind in kinds} for entry in topic["channels"]},
        }
        for topic in nsqd.stats()["topics"]
    }


def drain(nsqd: Instance, topic: str, channel: str, count: int) -> list[ReceivedMessage]:
    """Finishes the next `count` messages, after which there must be no more."""
    create(nsqd, topic, channel)
    post(nsqd, f"/topic/unpause?topic={topic}")
    post(nsqd, f"/channel/unpause?topic={topic}&channel={channel}")
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe(topic, channel, rdy=1)
        messages = finish(client, count)
        eventually(lambda: (at_start(nsqd)[topic]["depth"], nsqd.channel_stats(topic, channel)["depth"]) == (0, 0))
        client.command(b"CLS")
        assert client.response() == b"CLOSE_WAIT"
    assert nsqd.channel_stats(topic, channel)["in_flight_count"] == 0
    return messages


@pytest.mark.parametrize("case", CASES)
def test_daemon_delivers_what_the_real_nsqd_delivers(gnsqd_factory: DaemonFactory, tmp_path: Path, case: str) -> None:
    directory = tmp_path / "data"
    drained = expectation(case)["real_nsqd_drain"]
    state, bad = drained["at_start"], drained["bad_files"]
    messages = {name: [as_message(entry) for entry in found] for name, found in drained["messages"].items()}
    if case in READ_ALL:
        queue, count, delivered_as = READ_ALL[case]
        topic, _, channel = queue.partition(":")
        depths = state[topic]["channels"][channel] if channel else state[topic]
        assert messages[delivered_as] == []
        assert depths["depth"] == depths["backend_depth"] == 0
        stored = recorded(case, queue)
        messages[delivered_as] = [message._replace(attempts=message.attempts + 1) for message in stored]
        depths["depth"] = depths["backend_depth"] = len(stored)
        assert len(stored) == count
    if case == READ_TO_THE_END:
        assert len(bad) == 4
        bad = []

    shutil.copytree(GOLDEN / case / "data", directory)
    nsqd = gnsqd_factory(*expectation(case)["nsqd_options"], data_path=directory)
    assert at_start(nsqd) == state
    for name, expected in messages.items():
        topic, _, channel = name.partition(":")
        assert drain(nsqd, topic, channel, len(expected)) == expected
    assert nsqd.terminate() == 0
    assert sorted(path.name for path in directory.glob("*.bad")) == bad
    assert list(directory.glob("*.tmp")) == []
    lines = [line for line in drained["log_warnings"] if "DISKQUEUE" in line]
    lines = [line for line in lines if not any(part in line for part in LEFT_OUT.get(case, []))]
    found = re.findall(r"(?:WARNING|ERROR): DISKQUEUE.*", nsqd.log().replace(str(directory), "$D"))
    assert sorted(found) == sorted(ADDED.get(case, []) + lines)
    if case == READ_TO_THE_END:
        left = [path.name.partition(".")[0] for path in directory.glob("*.diskqueue.0*")]
        assert len(left) == len(set(left)), "of each queue, the file that is written to"


@pytest.mark.parametrize("case", METADATA_CASES)
def test_metadata_means_to_the_daemon_what_it_means_to_the_real_nsqd(
    gnsqd_factory: DaemonFactory, tmp_path: Path, case: str
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(GOLDEN / "metadata" / case / "data", directory)
    expected = json.loads((GOLDEN / "metadata" / case / "expected.json").read_text())
    assert (directory / "nsqd.dat").read_text() == expected["input"]
    if expected["exit_code"]:
        listen = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
        done = run_to_end(own_command(), *listen, f"--data-path={directory}")
        assert done.returncode == expected["exit_code"]
        assert (directory / "nsqd.dat").read_text() == expected["input"]
        output = done.stdout + done.stderr
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


def in_order(metadata: str) -> list[str]:
    """Returns the parts of an nsqd.dat, whose topics the real nsqd writes in random order."""
    return sorted(re.split(r",(?=\{\"name\":\"[a-z]\",\"paused\":\w+,\"channels\")", metadata))
