"""`data repair`, `recover-bad` and `convert`: what they bring back is delivered, by gnsqd and by the real nsqd."""

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.gnsqadmin import failure, gnsqadmin, ok
from cli.nodes import bodies, fill, publish
from cli.test_data_look import TOPIC_T, contents, document, exported, golden, make, message
from interop.test_golden import GOLDEN, drain, expectation, recorded
from kit.daemons import Instance, NotStarted
from kit.http_api import ask
from kit.traffic import DaemonFactory


def unread(case: str) -> list[bytes]:
    """Bodies of all whole messages behind the read position of the queue roll:c."""
    entry = expectation(case)["disk"]["queues"]["roll:c"]
    records = [(number, record) for number in sorted(entry["files"]) for record in entry["files"][number]["records"]]
    position = ("000000", entry["meta"]["read_pos"])
    return [record["body"].encode("latin-1") for number, record in records if (number, record["offset"]) >= position]


ROLLED = unread("rolled")
TORN = b"m32"

# case, queue: the bodies that the repaired copy delivers
REPAIRS: dict[tuple[str, str], list[bytes]] = {
    ("corrupt_size", "roll:c"): ROLLED,
    ("corrupt_trunc", "roll:c"): [body for body in ROLLED if not body.startswith(TORN)],
    ("corrupt_missing", "roll:c"): unread("corrupt_missing"),
    ("writepos_high", "roll:c"): ROLLED,
    ("depth_high", "roll:c"): ROLLED,
    **{(case, queue): [each.body for each in recorded(case, queue)]
       for case, queue in (("unclean", "u"), ("nometa", "u"), ("meta_garbage", "roll:c"))},
}  # fmt: skip


def deliveries(nsqd_factory: DaemonFactory, directory: Path, queue: str, count: int, *flags: str) -> list[bytes]:
    """Returns the messages, which must be `count`, that a daemon on the directory delivers of a queue."""
    nsqd = nsqd_factory(*flags, data_path=directory)
    topic, _, channel = queue.partition(":")
    delivered = [each.body for each in drain(nsqd, topic, channel or "drain", count)]
    assert nsqd.terminate() == 0
    return delivered


@pytest.mark.parametrize("case, queue", REPAIRS)
def test_a_repaired_copy_delivers_every_message_that_is_whole(
    nsqd_factory: DaemonFactory, tmp_path: Path, case: str, queue: str
) -> None:
    directory = golden(case, tmp_path)
    before = contents(directory)
    expected = REPAIRS[case, queue]
    report = document("repair", str(directory))
    assert [(each["queue"], each["messages"]) for each in report["queues"]] == [(queue, len(expected))]
    assert contents(directory) == before
    assert (report["copy"], report["kept"]) == (f"{directory}.repaired", None)
    copy = Path(report["copy"])
    assert all(path.stat().st_mode == directory.joinpath("nsqd.dat").stat().st_mode for path in copy.iterdir())
    assert document("verify", str(copy))["findings"] == report["left"]
    assert not any(finding["queue"] == queue for finding in report["left"])
    bad = {path.name for path in copy.glob("*.bad")}
    assert deliveries(nsqd_factory, copy, queue, len(expected), *expectation(case)["nsqd_options"]) == expected
    assert {path.name for path in copy.glob(f"{queue}.*.bad")} <= bad  # nothing in it was damage to the daemon


def test_a_repair_replaces_the_directory_on_request(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    directory = golden("corrupt_size", tmp_path)
    before = contents(directory)
    repair = ("data", "repair", str(directory))
    out = ok(*repair, "--dry-run")
    assert re.search(r"(?m)^roll:c +27 +0 B$", out)
    assert f"The copy would be {directory}.repaired. Nothing was done." in out
    ok("data", "recover-bad", str(directory), "--dry-run")
    assert "use --yes" in failure(*repair, "--replace", code=5)
    assert contents(directory) == before
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    report = document("repair", str(directory), "--replace", "--yes")
    assert (report["copy"], report["kept"]) == (str(directory), f"{directory}.before-repair")
    assert contents(Path(report["kept"])) == before
    assert {path.name for path in tmp_path.iterdir()} == {"data", "data.before-repair"}
    assert deliveries(nsqd_factory, directory, "roll:c", len(ROLLED), "--mem-queue-size=0") == ROLLED
    assert ok(*repair).endswith("Nothing to repair.\n")
    assert not (tmp_path / "data.repaired").exists()


def test_a_copy_has_other_files_but_no_leftovers_and_no_part_of_it_is_left(tmp_path: Path) -> None:
    directory = golden("corrupt_size", tmp_path)
    repair = ("data", "repair", str(directory))
    (tmp_path / "file").write_text("")
    assert "not a directory" in failure(*repair, "--to", str(tmp_path / "file" / "copy"))
    assert gnsqadmin(*repair, "--to", str(directory / "copy")).code == 2
    (tmp_path / "data.repaired").mkdir()
    assert "already exists" in failure(*repair)
    assert {path.name for path in tmp_path.iterdir()} == {"data", "file", "data.repaired"}
    (directory / "notes.txt").write_text("ours")
    (directory / "roll.diskqueue.meta.dat.123.tmp").write_text("")
    (directory / "sub").mkdir()
    assert "Not copied: sub." in gnsqadmin(*repair, "--to", str(tmp_path / "copy")).out
    assert (tmp_path / "copy" / "notes.txt").exists()
    assert not list((tmp_path / "copy").glob("*.tmp"))


BUSY = '{"topics":[{"name":"orders","channels":[{"name":"busy"}]}]}'
UNSERVED = {
    None: "nochan, orders:busy, orders:paused_ch, orders:plain, paused_topic",
    BUSY: "nochan, orders:paused_ch, orders:plain, paused_topic",
    "": None,
    '{"topics":[{"name":"orde': None,
}


@pytest.mark.parametrize("text", UNSERVED)
def test_gnsqd_offers_repairs_of_unserved_messages(
    gnsqd_factory: DaemonFactory, tmp_path: Path, text: str | None
) -> None:
    names = UNSERVED[text]
    directory = golden("basic", tmp_path)
    (directory / "nsqd.dat").unlink()
    if text is not None:
        (directory / "nsqd.dat").write_text(text)
    if names is None:
        with pytest.raises(NotStarted) as failed:
            gnsqd_factory(data_path=directory)
        log = str(failed.value)
    else:
        nsqd = gnsqd_factory(data_path=directory)
        log = nsqd.log()
        nsqd.terminate()
        assert f"WARNING: NSQ: messages of {names} are not served, as {directory}/nsqd.dat " in log
    (offer,) = set(re.findall("`gnsqadmin (data repair .*)`", log))
    assert gnsqadmin(*shlex.split(offer), "--yes").code == 0
    nsqd = gnsqd_factory(data_path=directory) if names is None else nsqd.start()
    listed = {row["topic_name"]: {one["channel_name"] for one in row["channels"]} for row in nsqd.stats()["topics"]}
    # But not what an ephemeral topic left.
    assert listed == {"nochan": set(), "orders": {"busy", "paused_ch", "plain"}, "paused_topic": {"c"}}
    assert nsqd.channel_stats("orders", "plain")["depth"] == 8
    assert "not served" not in nsqd.log()
    nsqd.restart("--durability=process")
    assert ask(nsqd, "POST /pub?topic=journaled", b"x") == (200, "OK")
    nsqd.terminate()
    (directory / "nsqd.dat").write_text("")
    assert "journaled" in document("repair", str(directory))["adopted"]


def test_orphans_are_adopted_on_request(tmp_path: Path) -> None:
    directory = make(tmp_path / "d", TOPIC_T)
    meta = b"1\n0,0\n0,35\n"
    for name in ("o", "o:c", "t:c", "e#ephemeral:c"):
        (tmp_path / "d" / f"{name}.diskqueue.000000.dat").write_bytes(message())
        (tmp_path / "d" / f"{name}.diskqueue.meta.dat").write_bytes(meta)
    (tmp_path / "d" / "t:c.diskqueue.000001.dat").write_bytes(message())  # damage: meta does not know of it
    assert document("repair", directory, "--to", str(tmp_path / "first"))["adopted"] == []
    report = document("repair", directory, "--adopt-orphans", "--to", str(tmp_path / "second"))
    assert report["adopted"] == ["o", "o:c", "t:c"]
    assert json.loads((tmp_path / "first" / "nsqd.dat").read_text()) == TOPIC_T
    topics = [{"name": name, "paused": False, "channels": [{"name": "c", "paused": False}]} for name in ("t", "o")]
    assert json.loads((tmp_path / "second" / "nsqd.dat").read_text()) == {"topics": topics, "version": "1.3.0"}
    assert (tmp_path / "second" / "o.diskqueue.000000.dat").read_bytes() == message()


# Files that were set aside


def test_messages_that_nsqd_set_aside_come_back_once(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    directory, flags = golden("corrupt_size", tmp_path), expectation("corrupt_size")["nsqd_options"]
    count = len(expectation("corrupt_size")["real_nsqd_drain"]["messages"]["roll:c"])
    deliveries(nsqd_factory, directory, "roll:c", count, *flags)
    lost = [body for body in ROLLED if body[:3] in (b"m30", b"m31", b"m32")]
    [damage] = [each for each in document("verify", str(directory), code=1)["findings"] if each["severity"] == "damage"]
    assert damage["command"] == f"gnsqadmin data recover-bad {directory}"

    target = tmp_path / "lost.ndjson"
    report = document("recover-bad", str(directory), "--to", str(target), "--topic=roll", "--channel=c")
    assert (report["messages"], report["file"]) == (3, str(target))
    assert exported(target.read_text()) == {"roll:c": lost}

    report = document("recover-bad", str(directory))
    files = {each["file"]: each for each in report["files"]}
    mine = files["roll:c.diskqueue.000001.dat.bad"]
    assert (mine["recovered"], mine["delivered"], mine["error"]) == (3, 13, None)
    whole = files["roll.diskqueue.000000.dat.bad"]
    # nsqd had read all of it, but the file has no proof of that.
    assert whole["recovered"] == 0
    assert whole["delivered"] == 0
    assert whole["unknown"] > 0
    assert document("recover-bad", str(directory), "--channel=c")["messages"] == 0
    assert document("verify", str(directory))["sound"]
    again = directory.rename(tmp_path / "again")
    assert deliveries(nsqd_factory, again, "roll:c", 3, *flags) == lost


def test_recovered_messages_follow_queued_messages(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    directory = golden("rolled", tmp_path)
    bad = GOLDEN / "corrupt_size" / "data" / "roll:c.diskqueue.000001.dat"
    shutil.copy(bad, directory / "roll:c.diskqueue.000009.dat.bad")
    report = document("recover-bad", str(directory), "--all", "--channel=c")
    assert [(each["recovered"], each["delivered"]) for each in report["files"]] == [(16, 13)]
    bodies = deliveries(nsqd_factory, directory, "roll:c", len(ROLLED) + 16, "--mem-queue-size=0")
    assert bodies[: len(ROLLED)] == ROLLED
    assert [body[:3] for body in bodies[len(ROLLED) :]] == [b"m%d" % number for number in range(17, 33)]


def test_what_cannot_be_put_back_stays_set_aside_and_is_reported(tmp_path: Path) -> None:
    bad = message()[:-1] + message(b"world", 2)
    directory = Path(make(tmp_path / "d", TOPIC_T, t_diskqueue_000000_dat_bad=bad, o_diskqueue_000000_dat_bad=bad))
    (directory / "t.diskqueue.000001.dat").write_bytes(message(number=3))
    before = contents(directory)
    result = gnsqadmin("data", "recover-bad", str(directory), "--json")
    assert (result.code, result.err.count("Error: ")) == (1, 2)
    errors = {each["queue"]: each["error"] for each in json.loads(result.out)["files"]}
    assert "nsqd.dat does not list the topic or channel" in errors["o"]
    assert "must be repaired first" in errors["t"]
    assert contents(directory) == before
    target = str(tmp_path / "lost.ndjson")
    assert document("recover-bad", str(directory), "--to", target)["messages"] == 2
    assert exported(Path(target).read_text()) == {"t": [b"world"], "o": [b"world"]}


@pytest.mark.parametrize("inside", [1, 20, 37])
def test_a_read_position_inside_a_message_costs_none(gnsqd_factory: DaemonFactory, tmp_path: Path, inside: int) -> None:
    """Makes the damage of go-diskqueue in nsqio/nsq issues 1491 and 1514: nsqd sets the whole file aside."""
    bodies = [b"body %03d" % number for number in range(10)]
    records = [message(body, number) for number, body in enumerate(bodies, 1)]
    size = len(records[0])
    meta = b"8\n0,%d\n0,%d\n" % (2 * size + inside, 10 * size)
    files = {"t_diskqueue_000000_dat": b"".join(records), "t_diskqueue_meta_dat": meta}
    directory = Path(make(tmp_path / "d", TOPIC_T, **files))
    [damage] = document("verify", str(directory), code=1)["findings"]
    assert f"inside the message at {2 * size}" in damage["text"]
    copy = Path(document("repair", str(directory))["copy"])
    assert document("verify", str(copy))["sound"]
    assert deliveries(gnsqd_factory, copy, "t", 8) == bodies[2:]
    assert deliveries(gnsqd_factory, directory, "t", 8) == bodies[2:]
    assert not list(directory.glob("*.bad"))


@pytest.mark.skipif(os.geteuid() != 0, reason="owners are changed by root alone")
def test_what_root_writes_belongs_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    directory = golden("corrupt_size", tmp_path)
    bad = message()[:-1] + message(b"world", 2)
    (directory / "roll.diskqueue.000001.dat.bad").write_bytes(bad)
    for path in (directory, *directory.iterdir()):
        os.chown(path, 1234, 1234)
    document("recover-bad", str(directory))
    document("repair", str(directory))
    copy = Path(f"{directory}.repaired")
    paths = [directory, copy, *directory.iterdir(), *copy.iterdir()]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in paths} == {(1234, 1234)}


@pytest.fixture
def ended(gnsqd_factory: DaemonFactory) -> Instance:
    """Ends a gnsqd that leaves 20 messages for each of two channels, and two in a topic without any."""
    nsqd = gnsqd_factory("--durability=process", "--mem-queue-size=5")
    fill(nsqd, "t", "c", "d", count=20)
    publish(nsqd, "alone", 2)
    assert nsqd.terminate() == 0
    return nsqd


@pytest.mark.peer
def test_converted_journals_are_delivered_by_the_real_nsqd(ended: Instance, peer_binary: Callable[[str], Path]) -> None:
    left = ended.data_path
    before = contents(left)
    assert "42 messages would be converted. Nothing was done." in ok("data", "convert", str(left), "--dry-run")
    assert contents(left) == before
    queues = document("convert", str(left))["queues"]
    assert {row["queue"]: row["messages"] for row in queues} == {"t:c": 20, "t:d": 20, "alone": 2}
    assert not list(left.glob("*.journal.*"))
    before = contents(left)
    assert ok("data", "convert", str(left)) == "No messages in journals.\n"
    assert contents(left) == before
    ended.command = [str(peer_binary("nsqd"))]
    ended.restart("--mem-queue-size=5")
    assert bodies(ended, "t", 20) == bodies(ended, "t", 20, "d") == sorted(b"%d" % number for number in range(20))
    assert bodies(ended, "alone", 2) == [b"0", b"1"]


def test_conversion_that_the_disk_refuses_keeps_the_journals(ended: Instance) -> None:
    left = ended.data_path
    before = {path.name: path.read_bytes() for path in left.glob("*.journal.*")}
    (left / "t:c.diskqueue.meta.dat").mkdir()  # in the place of a file that has to be written
    code, out, err = gnsqadmin("data", "convert", str(left))
    assert code == 1
    assert out == ""
    assert "Traceback" not in err
    assert err.endswith("--durability=process or disk does not need; the journals still have all messages\n")
    assert "Error: a journal could not be turned into disk queues, " in err
    assert (left / "t.journal.000000.dat").read_bytes().startswith(before["t.journal.000000.dat"])
