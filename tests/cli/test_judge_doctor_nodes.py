"""`doctor` on nodes, nsqlookupds and data directories in trouble."""

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from cli.fake_nsqd import FakeLookupd, FakeNsqd, channel, client, node, producer, topic
from cli.findings import SHORT, brief, commands, examined, only
from cli.gnsqadmin import FakeNode, gnsqadmin
from cli.nodes import Cluster, address, at, create, post, publish, wait_for_depth
from conftest import DaemonFactory
from kit.daemons import Daemon, eventually, free_port
from kit.lookupds import EMBEDDED, EmbeddedLookupd
from nsqadmin_cli.diagnosis.nodes import examine_directory


@pytest.mark.peer
def test_a_node_that_did_not_register_is_found(cluster: Cluster, gnsqd: Daemon) -> None:
    found = examined(cluster.flag, *at(gnsqd))
    assert brief(found) == [("warning", "not-registered")]
    assert found[0]["node"] == address(gnsqd)
    [remedy] = commands(found[0])
    assert gnsqadmin(*shlex.split(remedy)[1:]).code == 0
    eventually(lambda: examined(cluster.flag, *at(gnsqd), code=None) == [], "registered")


def test_a_node_with_the_same_nsqlookupds_as_others_is_sent_to_its_log() -> None:
    lookupds = ["lookup:4160"]
    with (
        FakeNsqd(node(), lookupds=lookupds) as one,
        FakeNsqd(node(), lookupds=lookupds) as two,
        FakeLookupd(producer(one.port)) as lookupd,
    ):
        [found] = examined(lookupd.flag, one.flag, two.flag)
    assert (found["code"], found["node"]) == ("not-registered", two.address)
    assert found["remedies"][0]["text"].startswith("It has the nsqlookupds lookup:4160. Its log")


def test_options_that_differ_between_nodes_are_found(nsqd_factory: DaemonFactory) -> None:
    one, two = nsqd_factory("--mem-queue-size=10"), nsqd_factory("--msg-timeout=5s")
    found = examined(*at(one, two), code=0)
    assert [(finding["code"], finding["summary"]) for finding in found] == [
        ("config-drift", "nodes have 2 different values of mem_queue_size"),
        ("config-drift", "nodes have 2 different values of msg_timeout"),
    ]
    assert found[1]["evidence"] == [f"1m 0s: {address(one)}", f"5s: {address(two)}"]
    daemons = [nsqd_factory(f"--lookupd-tcp-address=127.0.0.1:{free_port()}") for _ in range(2)]
    [drift] = examined(*at(*daemons))
    assert (drift["severity"], drift["code"]) == ("warning", "config-drift")


def test_a_node_with_nsqlookupd_inside_and_one_that_registers_there_differ_in_nothing(
    gnsqd_factory: DaemonFactory, nsqd_factory: DaemonFactory
) -> None:
    lookupd = EmbeddedLookupd(gnsqd_factory(*EMBEDDED))
    nsqd_factory(lookupd.flag, "--broadcast-address=127.0.0.1")
    eventually(lambda: len(lookupd.producers()) == 2)
    assert examined(f"--lookupd-http-address={lookupd.http_address}", code=0) == []


def test_a_drain_is_a_note(gnsqd: Daemon) -> None:
    create(gnsqd, "t", "c")
    publish(gnsqd, "t", 2)
    wait_for_depth(gnsqd, "t", "c", 2)
    post(gnsqd, "/drain")
    drains = only(examined(*at(gnsqd)), "draining")
    assert (drains["severity"], drains["evidence"]) == ("note", ["2 messages left"])


def test_nodes_and_nsqlookupds_that_are_down_are_findings_and_no_errors(nsqd: Daemon) -> None:
    down = f"127.0.0.1:{free_port()}"
    code, out, err = gnsqadmin("doctor", SHORT, *at(nsqd), f"--nsqd-http-address={down}")
    assert (code, err) == (1, "")
    assert out.splitlines()[:2] == [f"CRITICAL  nsqd at {down} does not answer", "          connection refused"]
    assert f"gnsqadmin nodes --nsqd-http-address={down}" in out
    found = examined(f"--lookupd-http-address={down}")
    assert brief(found) == [("critical", "lookupd-unreachable"), ("critical", "no-nodes")]
    found = examined(f"--lookupd-http-address={down}", *at(nsqd))
    assert brief(found) == [("critical", "lookupd-unreachable")]


def test_a_node_that_hangs_or_fails_meanwhile_is_found_and_the_others_are_judged() -> None:
    with FakeNode(hangs=True) as hanging, FakeNsqd(node(topic("t", depth=1))) as fine:
        found = examined("--timeout=2", f"--nsqd-http-address={hanging.address}", fine.flag)
    assert brief(found) == [("critical", "unreachable"), ("warning", "no-channel")]
    assert found[0]["evidence"] == ["no complete answer within 2 s"]
    with FakeNsqd(node(), "garbage") as failing:
        found = examined(failing.flag)
    assert brief(found) == [("critical", "unreachable")]
    assert re.fullmatch(r"it answered \d\.\d s ago", found[0]["evidence"][1])


def test_a_node_that_is_not_well_and_one_of_another_version_are_found() -> None:
    with FakeNsqd(node(health="NOK - no space left on device")) as ill, FakeNsqd(node(version="1.2.1")) as old:
        found = examined(ill.flag, old.flag)
    assert brief(found) == [("critical", "unhealthy"), ("warning", "version-mix")]
    assert found[0]["evidence"] == ["NOK - no space left on device"]
    assert found[1]["evidence"] == [f"1.2.1: {old.address}", f"1.3.0: {ill.address}"]


@pytest.mark.parametrize("clock, reported", [(100.0, "ahead of"), (-100.0, "behind"), (1.5, None), (-1.5, None)])
def test_a_wrong_clock_is_found(clock: float, reported: str | None) -> None:
    with FakeNsqd(node(), clock=clock) as wrong, FakeNsqd(node()) as right:
        found = examined(wrong.flag, right.flag, code=1 if reported else 0)
    if reported is None:
        assert found == []
        return
    assert brief(found) == [("warning", "clock-skew")]
    assert re.fullmatch(
        rf"the clock of nsqd at {wrong.address} is 1m (3[5-9]|4[0-5])s {reported} this machine's", found[0]["summary"]
    )


def test_where_all_clocks_agree_it_is_this_machine_s_that_is_wrong() -> None:
    with FakeNsqd(node(), clock=100.0) as one, FakeNsqd(node(), clock=100.0) as two:
        found = examined(one.flag, two.flag)
    assert brief(found) == [("warning", "clock-skew")]
    assert re.fullmatch(
        r"the clock of this machine is 1m (3[5-9]|4[0-5])s behind those of all nodes", found[0]["summary"]
    )


def test_nsqlookupds_that_know_different_nodes_are_found() -> None:
    with FakeNsqd(node(topic("t", channel("c", client("x"))))) as nsqd:
        both = producer(nsqd.port, t=False)
        with FakeLookupd(both, topics=["t"]) as one, FakeLookupd(topics=["t", "gone"]) as two:
            found = examined(one.flag, two.flag)
    assert brief(found) == [("warning", "not-registered"), ("note", "ghost-topic")]
    assert found[0]["summary"] == f"nsqd at {nsqd.address} is not registered at nsqlookupd at {two.address}"


def test_a_node_at_an_impossible_address_is_found_and_the_others_are_judged() -> None:
    with FakeNsqd(node(topic("t", depth=1))) as nsqd:
        lost = producer(4151) | {"broadcast_address": "no host\n"}
        with FakeLookupd(producer(nsqd.port), lost) as lookupd:
            found = examined(lookupd.flag)
    assert brief(found) == [("warning", "bad-listing"), ("warning", "no-channel")]
    assert r"'no host\n:4151'" in found[0]["summary"]


def test_a_ghost_topic_is_not_called_so_while_a_node_is_down() -> None:
    with FakeLookupd(producer(free_port()), topics=["t"]) as lookupd:
        assert brief(examined(lookupd.flag)) == [("critical", "unreachable")]


GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def directory(path: Path, metadata: str | None = '{"topics":[]}', **files: bytes) -> str:
    """A data directory; `files` have __ for a dot."""
    path.mkdir()
    if metadata is not None:
        (path / "nsqd.dat").write_text(metadata)
    for name, data in files.items():
        (path / name.replace("__", ".")).write_bytes(data)
    return f"--data-path={path}"


def test_files_that_nobody_will_read_are_found(tmp_path: Path) -> None:
    path = tmp_path / "data"
    known = '{"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":false}]}]}'
    flag = directory(
        path,
        known,
        t__diskqueue__000000__dat=b"x" * 40,
        t__diskqueue__000001__dat__bad=b"x" * 2000,
        gone__diskqueue__000003__dat=b"x" * 3000,
        read__diskqueue__000000__dat=b"x" * 30,
        read__diskqueue__meta__dat=b"0\n0,30\n0,30\n",
    )
    (path / "gone:c.diskqueue.000000.dat").write_bytes(b"x" * 500)
    before = sorted(path.iterdir())
    with FakeNsqd(node()) as nsqd:
        found = examined(flag, nsqd.flag)
    assert sorted(path.iterdir()) == before
    assert brief(found) == [("warning", "bad-files"), ("warning", "orphan-files")]
    assert found[0]["evidence"] == ["2.0 kB", "t.diskqueue.000001.dat.bad"]
    assert found[1]["evidence"] == ["3.5 kB", "gone, gone:c"]
    assert commands(found[0]) == [f"gnsqadmin data recover-bad {path}"]


@pytest.mark.parametrize(
    "metadata, code", [(None, "no-metadata"), ("", "bad-metadata"), ('{"topics":3}', "bad-metadata")]
)
def test_a_directory_without_usable_metadata_is_critical(tmp_path: Path, metadata: str | None, code: str) -> None:
    flag = directory(tmp_path / "data", metadata, t__diskqueue__000000__dat=b"x" * 40)
    with FakeNsqd(node()) as nsqd:
        assert brief(examined(flag, nsqd.flag)) == [("critical", code)]


def test_the_directory_of_a_running_daemon_is_well(nsqd: Daemon) -> None:
    create(nsqd, "t", "c")
    found = examined(f"--data-path={nsqd.data_path}", *at(nsqd), code=0)
    assert brief(found) == [("note", "orphan-channel")]


def test_journals_that_only_gnsqd_reads_are_told_of_while_none_runs(tmp_path: Path) -> None:
    flag = directory(tmp_path / "data", t__journal__000000__dat=b"x" * 2000, t__journal__000001__dat=b"")
    with FakeNsqd(node()) as nsqd:
        found = examined(flag, nsqd.flag, code=0)
    assert brief(found) == [("note", "journals")]
    assert found[0]["evidence"] == ["2.0 kB", "t"]
    assert commands(found[0]) == [f"gnsqadmin data {what} {tmp_path / 'data'}" for what in ("verify", "convert")]


def test_what_a_daemon_set_aside_is_found(tmp_path: Path, nsqd_factory: DaemonFactory) -> None:
    data = tmp_path / "data"
    shutil.copytree(GOLDEN / "corrupt_size" / "data", data)
    daemon = nsqd_factory(data_path=data)
    [bad] = eventually(lambda: list(data.glob("*.bad")), "a file set aside")
    found = only(examined(f"--data-path={data}", *at(daemon)), "bad-files")
    assert found["evidence"][1] == bad.name


@pytest.mark.parametrize("room, severity", [(2, "critical"), (9, "warning"), (11, None)])
def test_a_disk_that_is_nearly_full_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, severity: str | None
) -> None:
    # Block size twice, blocks and inodes: all, free and free for users; flags and the longest name.
    disk = os.statvfs_result((4096, 4096, 100, 50, room, 1000, 900, 900, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    path = tmp_path / "data"
    directory(path)
    found = list(examine_directory(str(path)))
    assert [(one.code, one.severity.value) for one in found] == ([("disk-full", severity)] if severity else [])
    assert all(one.summary == f"the disk of {path} has {room}.0% of its room left" for one in found)


def test_a_directory_that_is_none_is_one_line_of_error(tmp_path: Path) -> None:
    code, out, err = gnsqadmin("doctor", f"--data-path={tmp_path}")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"Error: {tmp_path} is not a data directory")
    code, out, err = gnsqadmin("doctor", f"--data-path={tmp_path / 'nothing'}")
    assert (code, out) == (2, "")
