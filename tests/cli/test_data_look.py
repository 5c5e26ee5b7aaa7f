"""`data ls`, `verify` and `export` on data directories of the real nsqd (tests/golden), of both daemons while they run,
and on directories that were made to do harm.
"""

import base64
import gzip
import json
import os
import shutil
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from cli.gnsqadmin import document as document_of
from cli.gnsqadmin import failure, gnsqadmin, ok, plain, rows
from cli.nodes import at, fill, publish
from gnsqd.shared.disk_format import frame_records
from interop.test_golden import GOLDEN, expectation
from kit.daemons import Instance, eventually
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create, post, take, wait_for

# case: soundness, and how many messages verify reads in each queue where that is not what the real nsqd delivers
CASES: dict[str, tuple[bool, dict[str, int]]] = {
    "basic": (True, {"et#ephemeral:c": 1}),
    "rolled": (True, {}),
    "exactfit": (True, {}),
    "emptied": (True, {}),
    "unclean": (True, {}),
    "depth_high": (True, {}),
    "depth_low": (True, {}),
    "writepos_high": (False, {}),
    "corrupt_missing": (False, {}),
    "corrupt_trunc": (False, {}),
    "corrupt_size": (False, {"roll:c": 27}),  # the three behind the damage, which nsqd gives up
    "nometa": (False, {"u": 3}),  # nsqd overwrites these
    "meta_garbage": (False, {"roll:c": 41}),
}


def document(*args: str, code: int = 0) -> Any:
    return document_of("data", *args, code=code)


def golden(case: str, tmp_path: Path) -> Path:
    """Copies a case."""
    return shutil.copytree(GOLDEN / case / "data", tmp_path / "data")


def delivered(case: str) -> dict[str, list[bytes]]:
    """Returns the bodies that the real nsqd delivered, by the queue they were in."""
    queues = {}
    for name, messages in expectation(case)["real_nsqd_drain"]["messages"].items():
        topic, _, channel = name.partition(":")
        queue = topic if channel == "drain" or name == "paused_topic:c" else name
        queues[queue] = [message["body"].encode("latin-1") for message in messages]
    return queues


def exported(text: str) -> dict[str, list[bytes]]:
    """Returns the bodies in an export, by queue."""
    queues: dict[str, list[bytes]] = {}
    for line in text.splitlines():
        message = json.loads(line)
        queue = message["topic"] + (f":{message['channel']}" if message["channel"] else "")
        encoded = message["body_base64"]
        queues.setdefault(queue, []).append(base64.b64decode(encoded) if encoded else message["body"].encode())
    return queues


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()}


@pytest.mark.parametrize("case", sorted(path.parent.name for path in GOLDEN.glob("*/data")))
def test_verify_and_export_read_what_nsqd_delivers_and_know_damage(tmp_path: Path, case: str) -> None:
    directory = golden(case, tmp_path)
    before = contents(directory)
    sound, more = CASES[case]
    report = document("verify", str(directory), code=int(not sound))
    assert (report["sound"], report["running"]) == (sound, False)
    bodies = {queue: messages for queue, messages in delivered(case).items() if messages}
    messages = {queue["queue"]: queue["messages"] for queue in report["queues"] if queue["messages"]}
    assert messages == {queue: len(messages) for queue, messages in bodies.items()} | more
    repairs = {finding["command"] for finding in report["findings"] if finding["severity"] == "damage"}
    assert repairs == (set() if sound else {f"gnsqadmin data repair {directory}"})
    if not more:
        code, out, err = gnsqadmin("data", "export", str(directory), "-")
        assert code == int(case == "corrupt_trunc")  # bytes of which cannot be read
        assert exported(out) == bodies
        assert f"{len(out.splitlines())} message" in err
    assert contents(directory) == before


def test_export_has_everything_of_a_message_and_load_publishes_it(nsqd: Instance, tmp_path: Path) -> None:
    target = tmp_path / "busy.ndjson.gz"
    arguments = ["export", str(GOLDEN / "basic" / "data"), str(target), "--topic=orders", "--channel=busy"]
    assert document(*arguments)["queues"] == [{"queue": "orders:busy", "messages": 3, "lost_bytes": 0}]
    first = json.loads(gzip.decompress(target.read_bytes()).splitlines()[0])
    record = expectation("basic")["disk"]["queues"]["orders:busy"]["files"]["000000"]["records"][0]
    expected = {key: record[key] for key in ("timestamp", "attempts", "id", "body")}
    assert {key: first[key] for key in ("topic", "channel", *expected)} == {
        "topic": "orders",
        "channel": "busy",
        **expected,
    }
    assert "already exists" in failure("data", *arguments)
    assert gnsqadmin("data", *arguments, "--append").code == 0
    ok("load", str(target), *at(nsqd))
    published = sorted(message.body for message in take(nsqd, "orders", "c", 6))
    assert published == sorted(delivered("basic")["orders:busy"] * 2)


def test_ls_reports_what_meta_and_nsqd_dat_say() -> None:
    listing = document("ls", str(GOLDEN / "basic" / "data"))
    queues = {queue["queue"]: queue for queue in listing["queues"]}
    disk = expectation("basic")["disk"]["queues"]
    depths = {name: entry["meta"]["depth"] for name, entry in disk.items()}
    assert {name: queue["messages"] for name, queue in queues.items()} == depths
    assert {name for name, queue in queues.items() if queue["paused"]} == {"orders:paused_ch", "paused_topic"}
    assert [name for name, queue in queues.items() if not queue["listed"]] == ["et#ephemeral:c"]
    first = disk["orders:plain"]["files"]["000000"]["records"][0]
    assert queues["orders:plain"]["oldest"] == pytest.approx(first["timestamp"] / 1e9)
    assert (listing["running"], listing["metadata_error"]) == (False, None)
    table = rows("data", "ls", str(GOLDEN / "basic" / "data"))
    assert [row["messages"] for row in table if row["queue"] == "orders:busy"] == ["3"]
    assert "roll:c.diskqueue.000001.dat is missing" in ok("data", "ls", str(GOLDEN / "corrupt_missing" / "data"))


@pytest.mark.parametrize("case", sorted(path.parent.name for path in GOLDEN.glob("metadata/*/data")))
def test_nsqd_dat_is_unusable_where_nsqd_does_not_start(case: str) -> None:
    directory = GOLDEN / "metadata" / case / "data"
    expected = json.loads((directory.parent / "expected.json").read_text())
    report = document("verify", str(directory), code=int(expected["exit_code"] != 0))
    assert report["sound"] is (expected["exit_code"] == 0)
    listed = {queue["queue"]: queue["paused"] for queue in document("ls", str(directory))["queues"]}
    for topic, entry in (expected.get("topics") or {}).items():
        assert listed[topic] is entry["paused"]
        assert all(listed[f"{topic}:{channel}"] is paused for channel, paused in entry["channels"].items())


def test_a_running_nsqd_is_read_and_left_alone(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--mem-queue-size=0", "--sync-every=1")
    fill(nsqd, "t", "c", count=50)
    directory = str(nsqd.data_path)
    running = f"a running nsqd (process {nsqd.pid})"
    for words in (["ls", directory], ["verify", directory], ["export", directory, "-"]):
        code, out, err = gnsqadmin("data", *words)
        assert code == 0
        assert running in (out if words[0] == "ls" else err)
    assert exported(out)["t:c"] == [b"%d" % number for number in range(50)]
    for command in ("convert", "repair", "recover-bad"):
        error = failure("data", command, directory)
        assert "is in use by a running nsqd" in error
        assert error[-19:] == "nothing was changed"
    assert len(take(nsqd, "t", "c", 50)) == 50


def test_verify_finds_no_fault_with_what_a_running_nsqd_does(nsqd_factory: DaemonFactory) -> None:
    """Reads while meta is older than the files, and files go."""
    nsqd = nsqd_factory("--mem-queue-size=0", "--max-bytes-per-file=2000", "--sync-timeout=60s")
    create(nsqd, "t", "c")
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        total = 0
        for _ in range(2):
            for count in (200, 3):  # the first fill files, the others are in none that meta knows of
                total += count
                publish(nsqd, "t", count)
                wait_for(nsqd, "t", "c", message_count=total)
            report = json.loads(gnsqadmin("data", "verify", str(nsqd.data_path), "--json").out)
            findings = [finding for finding in report["findings"] if not finding["file"].endswith(".bad")]
            assert (report["sound"], findings) == (True, [])
            for _ in range(100):
                client.command(b"FIN " + client.message().id)


def test_messages_that_gnsqd_holds_back_are_exported_with_their_due_times(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory()
    create(nsqd, "t", "c")
    published = time.time_ns()
    post(nsqd, "/pub?topic=t&defer=3600000", b"later")
    wait_for(nsqd, "t", "c", deferred_count=1)
    assert nsqd.terminate() == 0
    ended = time.time_ns()
    directory = str(nsqd.data_path)
    message = json.loads(gnsqadmin("data", "export", directory, "-").out)
    assert (message["body"], message["attempts"]) == ("later", 0)
    second = 10**9  # of which clocks differ by less
    assert published - second < message["due"] - 3600 * second < ended + second
    assert document("ls", directory, "--channel=c")["queues"][0]["due_times"] == 1


@pytest.fixture
def killed(gnsqd_factory: DaemonFactory) -> Path:
    """Kills a gnsqd whose journal of t has 300 messages for the channel c, in several files, and that of alone has
    one."""
    nsqd = gnsqd_factory("--durability=process", "--max-bytes-per-file=2000")
    create(nsqd, "t", "c")
    for _ in range(3):
        publish(nsqd, "t", 100)
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        client.command(b"FIN " + client.message().id)
        wait_for(nsqd, "t", "c", depth=298)
    publish(nsqd, "t", 1)  # with it the FIN is written
    publish(nsqd, "alone", 1)
    eventually(lambda: b"alone" in (nsqd.data_path / "nsqd.dat").read_bytes())
    nsqd.kill()
    return nsqd.data_path


def test_journals_are_listed_and_counted(killed: Path) -> None:
    def journaled() -> dict[str, int]:
        return {row["queue"]: row["journaled"] for row in document("ls", str(killed))["queues"] if row["journaled"]}

    before = contents(killed)
    listing = document("ls", str(killed))
    alone, t = listing["journals"]
    assert alone["topic"] == "alone"
    assert t["topic"] == "t"
    assert alone["files"] == 1
    assert t["files"] > 1
    assert {row["queue"]: row["messages"] for row in listing["queues"]} == {"alone": 0, "t": 0, "t:c": 0}
    assert journaled() == {"alone": 1, "t:c": 300}
    report = document("verify", str(killed))
    assert [(row["topic"], row["messages"], row["queues"], row["sound"]) for row in report["journals"]] == [
        ("alone", 1, [{"queue": "alone", "messages": 1}], True),
        ("t", 300, [{"queue": "t:c", "messages": 300}], True),
    ]
    assert [(one["severity"], one["queue"]) for one in report["findings"]] == [("note", "alone"), ("note", "t")]
    assert [row["topic"] for row in document("verify", str(killed), "--topic", "t")["journals"]] == ["t"]
    shown = ok("data", "verify", str(killed))
    assert "Sound: 0 messages on disk and 301 in 2 journals in 3 queues." in shown
    assert "\n\n\n" not in shown + ok("data", "ls", str(killed))
    assert contents(killed) == before
    newest = max(killed.glob("t.journal.*.dat"))
    newest.write_bytes(newest.read_bytes()[:60])  # as a kill leaves it that comes while its snapshot is written
    journal = document("verify", str(killed))["journals"][1]
    assert 100 < journal["queues"][0]["messages"] <= 300
    (killed / "nsqd.dat").unlink()
    assert journaled() == {"alone": 1} | {row["queue"]: row["messages"] for row in journal["queues"]}
    exported = gnsqadmin("data", "export", str(killed), "-")
    assert (exported.out, "Note: 2 journals left out" in exported.err) == ("", True)


def test_a_damaged_or_missing_journal_is_damage_and_a_torn_end_is_not(killed: Path, tmp_path: Path) -> None:
    newest, segment = max(killed.glob("t.journal.*.dat")), killed / "t.journal.000000.dat"
    newest.write_bytes(newest.read_bytes()[:-3])
    torn = document("verify", str(killed), "--topic", "t")["findings"][0]
    assert torn["severity"] == "note"
    assert torn["file"] == newest.name
    assert "unfinished write" in torn["text"]
    data = segment.read_bytes()
    position = data.index(b"gnsqd journal") + 60
    segment.write_bytes(data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :])
    damage = document("verify", str(killed), "--topic", "t", code=1)["findings"][0]
    assert damage["severity"] == "damage"
    assert damage["file"] == segment.name
    assert 0 < damage["position"] <= position
    directory = shutil.copytree(GOLDEN / "journal", tmp_path / "data")
    (directory / "nsqd.dat").write_text(json.dumps(TOPIC_T))
    assert document("verify", str(directory))["sound"]
    (directory / "t.journal.000001.dat").unlink()
    damage = document("verify", str(directory), code=1)["findings"][0]
    assert (damage["severity"], damage["queue"], damage["file"]) == ("damage", "t", None)
    assert damage["text"] == "300 messages are lost, no segment has them: numbers 301-600"
    assert "Damaged: 1 of 1 journal" in plain(gnsqadmin("data", "verify", str(directory)).out)


def make(directory: Path, metadata: object, **files: bytes) -> str:
    """Makes a data directory; names of files have _ for a dot."""
    directory.mkdir(exist_ok=True)
    (directory / "nsqd.dat").write_text(json.dumps(metadata))
    for name, data in files.items():
        (directory / name.replace("_", ".").replace("due.times", "due_times")).write_bytes(data)
    return str(directory)


def message(body: bytes = b"hello", number: int = 1) -> bytes:
    return frame_records([struct.pack(">qH16s", 1_795_228_294_479_665_042, 1, b"%016x" % number) + body])


META = "t.diskqueue.meta.dat"
TOPIC_T = {"topics": [{"name": "t", "paused": False, "channels": None}], "version": "1.3.0"}


def test_messages_that_only_the_side_file_has_or_above_the_limit_are_counted(tmp_path: Path) -> None:
    """Writes the side file as contrib/docs/structures.md has its format."""

    def entry(number: int, due: int, payload: bytes = b"") -> bytes:
        return struct.pack(">H16sqi", 1, b"%016x" % number, due, len(payload)) + payload

    due = 1_900_000_000_000_000_000
    entries = [
        entry(number, due, message(body, number)[4:]) for number, body in ((7, b"held"), (8, b"gone"), (1, b"hello"))
    ]
    whole = b"gnsqd due times 1\n" + b"".join(entries) + entry(8, 0)
    files = {"t_diskqueue_000000_dat": message(), "t_diskqueue_meta_dat": b"1\n0,0\n0,35\n"}
    directory = make(tmp_path / "d", TOPIC_T, t_diskqueue_due_times_dat=whole, **files)
    report = document("verify", directory)
    assert [(queue["messages"], queue["held"]) for queue in report["queues"]] == [(1, 1)]
    lines = [json.loads(line) for line in gnsqadmin("data", "export", directory, "-").out.splitlines()]
    assert [(line["body"], line["due"]) for line in lines] == [("hello", due), ("held", due)]
    make(tmp_path / "d", TOPIC_T, t_diskqueue_due_times_dat=whole[:-3])
    [finding] = document("verify", directory, code=1)["findings"]
    assert (finding["severity"], finding["file"]) == ("damage", "t.diskqueue.due_times.dat")
    data = message(b"x" * 500) + message(b"y", 2)
    meta = f"2\n0,0\n0,{len(data)}\n".encode()
    directory = make(tmp_path / "e", TOPIC_T, t_diskqueue_000000_dat=data, t_diskqueue_meta_dat=meta)
    assert document("verify", directory)["findings"] == []
    [finding] = document("verify", directory, "--max-msg-size=499")["findings"]
    assert (finding["severity"], finding["command"]) == ("note", "nsqd --max-msg-size=500")
    assert "nsqd loses the rest of the file, gnsqd delivers it; 2 messages in it can be saved" in finding["text"]


@pytest.mark.parametrize(
    "command", ["ls {0}", "verify {0}", "export {0} -", "convert {0}", "repair {0}", "recover-bad {0}"]
)
def test_another_directory_or_topic_than_there_is_is_one_line(tmp_path: Path, command: str) -> None:
    error = failure("data", *command.format(tmp_path).split())
    assert error == f"{tmp_path} is not a data directory: it has neither nsqd.dat nor files of queues"
    directory = str(GOLDEN / "basic" / "data")
    if command.split()[0] in ("ls", "verify", "export"):
        error = failure("data", *command.format(directory).split(), "--topic=nope", code=4)
        assert error == f"{directory} does not have the topic nope"


def test_hostile_names_and_files_do_no_harm(tmp_path: Path) -> None:
    """Reads names with control codes, a pipe that nobody writes to, a directory, and meta files with absurd numbers."""
    directory = Path(make(tmp_path / "d", TOPIC_T, t_diskqueue_000000_dat=message()))
    (directory / "t.diskqueue.meta.dat").write_text("1\n0,0\n99999999999999999,5\n")
    for name in ("\x1b[2Jx.diskqueue.000000.dat", "n.diskqueue.999999999999999.dat", "m.diskqueue.000000.dat"):
        (directory / name).write_bytes(message())
    (directory / os.fsdecode(b"\xff.diskqueue.000000.dat")).write_bytes(os.urandom(5000))
    for name in ("p.diskqueue.000000.dat", "p.diskqueue.meta.dat", "m.diskqueue.meta.dat"):
        os.mkfifo(directory / name)
    (directory / "q.diskqueue.000000.dat").mkdir()
    commands = [[command, *more] for command in ("ls", "verify") for more in ([], ["--json"], ["-o", "csv"])]
    results = [gnsqadmin("data", *words, str(directory)) for words in [*commands, ["recover-bad"], ["repair"]]]
    results.append(gnsqadmin("data", "export", str(directory), "-"))
    for code, out, err in results:
        assert code in (0, 1)
        assert "\x1b" not in out + err
        assert "Traceback" not in err
    assert "and 99,999,999,999,999,998 more files are missing" in results[3].out
    assert json.loads(results[4].out)["sound"] is False
    simple = make(tmp_path / "e", TOPIC_T, t_diskqueue_000000_dat=message())
    for text in ("[" * 100_000, '{"topics":{}}', '{"topics":[{"name":1}]}', "[]", "\xff", '{"topics"'):
        (tmp_path / "e" / "nsqd.dat").write_bytes(text.encode("latin-1"))
        findings = document("verify", simple, code=1)["findings"]
        assert [finding["file"] for finding in findings if finding["severity"] == "damage"] == ["nsqd.dat", META], text
