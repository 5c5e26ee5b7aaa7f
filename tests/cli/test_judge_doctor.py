"""`doctor` as a whole, and `status`; and on nodes, nsqlookupds and data directories in trouble."""

import os
import re
import shlex
import shutil
import time
from pathlib import Path

import pytest

from cli.fake_nsqd import FakeListing, StatsNsqd, channel, client, node, producer, topic
from cli.findings import SHORT, brief, commands, examined, only
from cli.gnsqadmin import FakeNode, document, gnsqadmin, ok, on_terminal, plain, rows
from cli.nodes import DOWN, Registered, address, at, at_lookupd, fill
from kit.certificates import issue
from kit.daemons import Instance, eventually, free_port
from kit.lookupds import EMBEDDED, LookupdInside
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create, post
from nsqadmin_cli.diagnosis.nodes import examine_directory


def test_well_nodes_have_no_findings(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    with NSQClient(a.tcp_address) as one, NSQClient(b.tcp_address) as two:
        for consumer in (one, two):
            consumer.subscribe("t", "c", rdy=5)
        assert examined(*at(a, b)) == []
        out = ok("doctor", SHORT, *at(a, b))
    assert re.fullmatch(r"No problems: 2 nodes, 1 topic, 1 channel, 2 consumers, watched for \d\.\d s\.\n", out)


def test_topic_and_channel_limit_what_is_judged(nsqd: Instance) -> None:
    create(nsqd, "t", "c", "d")
    create(nsqd, "u", "c")
    assert brief(examined("--topic=t", *at(nsqd))) == [("note", "orphan-channel")] * 2
    findings = examined("--topic=t", "--channel=d", *at(nsqd))
    assert [(one["topic"], one["channel"]) for one in findings] == [("t", "d")]


def test_many_alike_are_cut_short_except_for_all_and_programs() -> None:
    nsqd = StatsNsqd(node(topic("t", *(channel(f"c{number}") for number in range(12)))))
    short, full = (ok("doctor", SHORT, nsqd.flag, *more) for more in ([], ["--all"]))
    table = rows("doctor", SHORT, nsqd.flag)
    assert (short.count("NOTE "), full.count("NOTE "), len(table)) == (5, 12, 12)
    assert "and 7 more of kind orphan-channel: --all shows them\n" in short
    assert short.splitlines()[-1].startswith("0 critical, 0 warnings, 12 notes: 1 node, 1 topic, 12 channels")
    assert (table[0]["severity"], table[0]["code"], table[0]["channel"]) == ("note", "orphan-channel", "c0")


def test_on_a_terminal_text_is_folded_between_words_and_commands_are_not() -> None:
    with StatsNsqd(node(topic("t", channel("c", client("x" * 60), depth=3)))) as nsqd:
        lines = on_terminal(60, "doctor", SHORT, nsqd.flag, NO_COLOR="1").out.splitlines()
    first = next(index for index, line in enumerate(lines) if "They have sent" in line)
    assert (lines[first][:19], lines[first + 1][:10]) == ("        → They have", " " * 10)
    assert all(len(line) <= 60 for line in lines[first : first + 3])
    assert f"            gnsqadmin channel show t c {nsqd.flag}" in lines


def test_alone_on_a_terminal_it_shows_nodes_deepest_channels_and_worst_findings() -> None:
    names = [channel(f"c{depth}", depth=depth) for depth in (7, 9, 8, 6)]
    with StatsNsqd(node(topic("t", *names, channel("d", client("x"))))) as nsqd:
        variables = {"NO_COLOR": "1", "GNSQADMIN_NSQD_HTTP_ADDRESS": nsqd.flag.partition("=")[2]}
        code, out, _ = on_terminal(100, **variables)
    shown = plain(out)[plain(out).index("nodes ") :].splitlines()
    assert code == 0
    assert shown[:5] == [
        "nodes      1 of 1 answer",
        "queues     1 topic, 5 channels, 1 consumer",
        "messages   30 queued, 0 in flight, 0/s published, 0/s finished",
        "trouble    t/c6, t/c7, t/c8 and 1 more",
        "",
    ]
    assert [line.split()[:5] for line in shown[7:10]] == [
        [f"c{depth}", "t", "0", "0", f"{depth}"] for depth in (9, 8, 7)
    ]
    warnings = [f"WARNING   channel t/c{depth}: {depth} messages and no consumer" for depth in (6, 7, 8)]
    assert [line for line in shown if line.startswith("WARNING")] == warnings
    assert shown[-2].startswith("→ gnsqadmin doctor shows 1 more finding and remedies, ")
    assert len(shown) < 17


def test_alone_elsewhere_it_is_the_help() -> None:
    code, out, err = gnsqadmin()
    assert code == 2
    assert out == ""
    assert err[:17] == "Usage: gnsqadmin "
    assert "Diagnose:\n" in err


def test_it_fails_only_if_no_node_answers(nsqd: Instance) -> None:
    create(nsqd, "t", "c")
    post(nsqd, "/pub?topic=t", b"hello")
    answer = document("status", *at(nsqd, DOWN))
    assert (answer["nodes"], answer["nodes_up"], answer["totals"]["depth"]) == (2, 1, 1)
    assert [one["code"] for one in answer["findings"] if one["node"]] == ["unreachable"]
    code, out, _ = gnsqadmin("status", *at(DOWN))
    assert code == 1
    assert re.search(rf"^CRITICAL +.*{re.escape(address(DOWN))}", out, re.MULTILINE)


@pytest.mark.peer
def test_a_node_that_did_not_register_is_found(cluster: Registered, gnsqd: Instance) -> None:
    findings = examined(cluster.flag, *at(gnsqd))
    assert brief(findings) == [("warning", "not-registered")]
    assert findings[0]["node"] == address(gnsqd)
    [remedy] = commands(findings[0])
    assert gnsqadmin(*shlex.split(remedy)[1:]).code == 0
    eventually(lambda: examined(cluster.flag, *at(gnsqd)) == [], "registered")


@pytest.mark.parametrize("free, size, severity", [
    (90, 1000, ["warning"]), (20, 1000, ["critical"]), (110, 1000, []), (0, 0, []),
    (11 * 10**9, 10**12, []), (9 * 10**9, 10**12, ["critical"]), (9 * 10**9, 2 * 10**11, ["warning"]),
])  # fmt: skip
def test_a_node_that_reports_little_free_disk_is_found(free: int, size: int, severity: list[str]) -> None:
    process = {"cpu_seconds": 1.0, "memory_bytes": 1, "connection_count": 1}
    with StatsNsqd(node(process=process | {"disk_bytes": size, "free_disk_bytes": free})) as fake:
        findings = [(it["severity"], it["code"], it["node"]) for it in examined(fake.flag)]
    assert findings == [(each, "disk-full", fake.address) for each in severity]


def test_a_log_store_that_is_behind_is_found() -> None:
    process = {"cpu_seconds": 1.0, "memory_bytes": 1, "connection_count": 1, "log_store_lag_bytes": 4321}
    for lag, expected in ((29.0, []), (31.5, [("warning", "log-store-behind")])):
        looks = node(process=process | {"log_store_lag_seconds": lag})
        with StatsNsqd(looks) as fake:
            findings = examined(fake.flag)
        assert brief(findings) == expected
    assert findings[0]["summary"] == f"the log store of nsqd at {fake.address} is 31s behind"
    assert findings[0]["evidence"][0] == "4.3 kB of its log are only on that machine"


def test_a_certificate_that_expires_is_found(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    cert, key = issue("server", expired=True).write(tmp_path / "server")
    nsqd = gnsqd_factory(f"--tls-cert={cert}", f"--tls-key={key}", "--https-address=127.0.0.1:0")
    [finding] = examined(*at(nsqd))
    assert (finding["severity"], finding["code"], finding["node"]) == ("critical", "certificate-expiry", address(nsqd))
    assert finding["summary"] == f"a certificate of nsqd at {address(nsqd)} expired 1d 0h ago"
    assert finding["evidence"][0] == cert
    strict = gnsqd_factory(f"--tls-cert={cert}", f"--tls-key={key}", "--https-address=127.0.0.1:0", "--tls-required")
    unreachable = only(examined(*at(nsqd, strict)), "unreachable")
    assert (unreachable["severity"], unreachable["node"]) == ("critical", address(strict))
    assert unreachable["evidence"][0].startswith("its certificate is not trusted: ")
    process = {"cpu_seconds": 1.0, "memory_bytes": 1, "connection_count": 1}
    certificates = {"late": time.time() + 50 * 3600, "soon": time.time() + 47 * 3600}
    with StatsNsqd(node(process=process | {"certificates": certificates})) as fake:
        [finding] = examined(fake.flag)
    assert (finding["severity"], finding["code"], finding["evidence"][0]) == ("warning", "certificate-expiry", "soon")
    assert finding["summary"] == f"a certificate of nsqd at {fake.address} expires in 1d 22h"


def test_a_log_store_that_refuses_makes_a_node_unhealthy(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    store = tmp_path / "store"
    nsqd = gnsqd_factory("--durability=store", f"--log-store=file://{store}", "--log-store-timeout=1s")
    post(nsqd, "/pub?topic=t", b"stored")
    shutil.rmtree(store)
    store.touch()
    with pytest.raises(AssertionError):
        post(nsqd, "/pub?topic=t", b"refused")
    finding = only(examined(*at(nsqd)), "unhealthy")
    assert finding["summary"] == f"nsqd at {address(nsqd)} is unhealthy: its last write to its log store failed"
    assert finding["evidence"][0].startswith("NOK - ")
    assert finding["remedies"][0]["text"].startswith("Its log has the reason: the network, ")


def test_options_that_differ_between_nodes_are_found(nsqd_factory: DaemonFactory) -> None:
    one, two = nsqd_factory("--mem-queue-size=10"), nsqd_factory("--msg-timeout=5s")
    findings = examined(*at(one, two))
    assert brief(findings) == [("note", "config-drift")] * 2
    options = ("mem_queue_size", "msg_timeout")
    assert [it["summary"] for it in findings] == [f"nodes have 2 different values of {option}" for option in options]
    assert findings[1]["evidence"] == [f"1m 0s: {address(one)}", f"5s: {address(two)}"]
    daemons = [nsqd_factory(f"--lookupd-tcp-address=127.0.0.1:{free_port()}") for _ in range(2)]
    assert brief(examined(*at(*daemons))) == [("warning", "config-drift")]


def test_nsqlookupd_inside_or_beside_is_the_same(gnsqd_factory: DaemonFactory, nsqd_factory: DaemonFactory) -> None:
    lookupd = LookupdInside(gnsqd_factory(*EMBEDDED))
    nsqd_factory(lookupd.flag, "--broadcast-address=127.0.0.1")
    eventually(lambda: len(lookupd.producers()) == 2)
    assert examined(*at_lookupd(lookupd.http_address)) == []


def test_a_drain_is_a_note(gnsqd: Instance) -> None:
    fill(gnsqd, "t", "c", count=2)
    post(gnsqd, "/drain")
    drains = only(examined(*at(gnsqd)), "draining")
    assert (drains["severity"], drains["evidence"]) == ("note", ["2 messages left"])


def test_nodes_and_nsqlookupds_that_are_down_are_findings_and_no_errors(nsqd: Instance) -> None:
    code, out, err = gnsqadmin("doctor", SHORT, *at(nsqd, DOWN))
    assert (code, err) == (1, "")
    assert out.splitlines()[:2] == [f"CRITICAL  nsqd at {DOWN} does not answer", "          connection refused"]
    assert f"gnsqadmin nodes {at(DOWN)[0]}" in out
    assert brief(examined(*at_lookupd(DOWN))) == [("critical", "lookupd-unreachable"), ("critical", "no-nodes")]
    assert brief(examined(*at_lookupd(DOWN), *at(nsqd))) == [("critical", "lookupd-unreachable")]


def test_a_node_that_consumers_cannot_reach_needs_another_broadcast_address() -> None:
    closed, nobody = free_port(), free_port()
    nsqd = StatsNsqd(node())
    lookupd = FakeListing(producer(nsqd.port) | {"tcp_port": closed}, producer(nobody))
    tcp, http = sorted(examined(lookupd.flag), key=lambda finding: str(finding["code"]))
    assert (tcp["severity"], tcp["code"], tcp["node"]) == ("critical", "tcp-unreachable", nsqd.address)
    assert tcp["evidence"] == [f"TCP port {closed}: connection refused"]
    assert (http["severity"], http["code"], http["node"]) == ("critical", "unreachable", f"127.0.0.1:{nobody}")
    sent = f"nsqlookupd at {lookupd.address} sends consumers to 127.0.0.1"
    assert http["evidence"] == ["connection refused", sent]
    for finding in (tcp, http):
        assert "--broadcast-address=auto" in finding["remedies"][-1]["text"]
    assert "--broadcast-address" not in str(examined(f"--nsqd-http-address=127.0.0.1:{nobody}"))


def test_what_is_wrong_with_a_node_is_found_and_the_others_are_judged() -> None:
    lost = producer(4151) | {"broadcast_address": "no host\n"}
    failing, ill = StatsNsqd(node(), "garbage"), StatsNsqd(node(health="NOK - no space left on device"))
    old = StatsNsqd(node(topic("t", depth=1), version="1.2.1"))
    lookupd = FakeListing(*(producer(one.port) for one in (failing, ill, old)), lost)
    with FakeNode(hangs=True) as hanging:
        findings = examined("--timeout=2", lookupd.flag, *at(hanging))
    assert brief(findings) == [
        *[("critical", "unreachable")] * 2,
        ("critical", "unhealthy"),
        ("warning", "bad-listing"),
        ("warning", "version-mix"),
        ("warning", "no-channel"),
    ]
    evidence = {one["node"]: one["evidence"] for one in findings[:3]}
    assert evidence[ill.address] == ["NOK - no space left on device"]
    assert evidence[hanging.address] == ["no complete answer within 2 s"]
    assert re.fullmatch(r"it answered \d\.\d s ago", evidence[failing.address][1])
    assert r"'no host\n:4151'" in findings[3]["summary"]
    assert findings[4]["evidence"] == [f"1.2.1: {old.address}", f"1.3.0: {ill.address}"]


CLOCKS = {
    (100.0, 0.0): "the clock of nsqd at {} is TIME ahead of this machine's",
    (-100.0, 0.0): "the clock of nsqd at {} is TIME behind this machine's",
    (1.5, 0.0): None,
    (-1.5, 0.0): None,
    (100.0, 100.0): "the clock of this machine is TIME behind those of all nodes",
}


@pytest.mark.parametrize("clocks", CLOCKS)
def test_a_wrong_clock_is_found(clocks: tuple[float, float]) -> None:
    wrong, right = (StatsNsqd(node(), clock=clock) for clock in clocks)
    findings, reported = examined(wrong.flag, right.flag), CLOCKS[clocks]
    assert brief(findings) == ([("warning", "clock-skew")] if reported else [])
    if reported:
        pattern = reported.format(wrong.address).replace("TIME", "1m (3[5-9]|4[0-5])s")
        assert re.fullmatch(pattern, findings[0]["summary"])


def test_nsqlookupds_that_know_different_nodes_are_found() -> None:
    """Sends a node with the same nsqlookupds as others to its log."""
    known = ["lookup:4160"]
    well = node(topic("t", channel("c", client("x"))))
    nsqd, configured, unknown = (StatsNsqd(well), StatsNsqd(well, lookupds=known), StatsNsqd(well, lookupds=known))
    one, two = FakeListing(producer(nsqd.port, t=False), topics=["t"]), FakeListing(topics=["t", "gone"])
    findings = examined(one.flag, two.flag)
    [lost] = examined(FakeListing(producer(configured.port, t=False), topics=["t"]).flag, unknown.flag)
    assert brief(findings) == [("warning", "not-registered"), ("note", "ghost-topic")]
    assert findings[0]["summary"] == f"nsqd at {nsqd.address} is not registered at nsqlookupd at {two.address}"
    assert findings[0]["remedies"][0]["text"].startswith("It has no nsqlookupd. ")
    assert (lost["code"], lost["node"]) == ("not-registered", unknown.address)
    assert lost["remedies"][0]["text"].startswith("It has the nsqlookupds lookup:4160. Its log")
    lookupd = FakeListing(producer(free_port()), topics=["t"])
    assert brief(examined(lookupd.flag)) == [("critical", "unreachable")]  # which may have the topic


# Data directories

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
KNOWN = '{"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":false}]}]}'
QUEUE = {"t.diskqueue.000000.dat": b"x" * 40}
DIRECTORIES: dict[str, tuple[str | None, dict[str, bytes], list[tuple[str, str]], list[list[str]], list[str]]] = {
    "no metadata": (None, QUEUE, [("critical", "no-metadata")], [], []),
    "empty metadata": ("", QUEUE, [("critical", "bad-metadata")], [], []),
    "bad metadata": ('{"topics":3}', QUEUE, [("critical", "bad-metadata")], [], []),
    "journals that only gnsqd reads": (
        '{"topics":[]}',
        {"t.journal.000000.dat": b"x" * 2000, "t.journal.000001.dat": b""},
        [("note", "journals")],
        [["2.0 kB", "t"]],
        ["gnsqadmin data verify {0}", "gnsqadmin data convert {0}"],
    ),
    "files that nobody will read": (
        KNOWN,
        QUEUE
        | {
            "t.diskqueue.000001.dat.bad": b"x" * 2000,
            "gone.diskqueue.000003.dat": b"x" * 3000,
            "read.diskqueue.000000.dat": b"x" * 30,
            "read.diskqueue.meta.dat": b"0\n0,30\n0,30\n",
            "gone:c.diskqueue.000000.dat": b"x" * 500,
        },
        [("warning", "bad-files"), ("warning", "orphan-files")],
        [["2.0 kB", "t.diskqueue.000001.dat.bad"], ["3.5 kB", "gone, gone:c"]],
        ["gnsqadmin data recover-bad {0}"],
    ),
}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_what_is_wrong_in_a_data_directory_is_found(tmp_path: Path, name: str) -> None:
    metadata, files, expected, evidence, remedies = DIRECTORIES[name]
    if metadata is not None:
        (tmp_path / "nsqd.dat").write_text(metadata)
    for file, data in files.items():
        (tmp_path / file).write_bytes(data)
    before = sorted(tmp_path.iterdir())
    with StatsNsqd(node()) as nsqd:
        findings = examined(f"--data-path={tmp_path}", nsqd.flag)
    assert sorted(tmp_path.iterdir()) == before
    assert brief(findings) == expected
    assert not evidence or [finding["evidence"] for finding in findings] == evidence
    assert not remedies or commands(findings[0]) == [remedy.format(tmp_path) for remedy in remedies]


def test_a_directory_in_use_is_well_except_what_was_set_aside(tmp_path: Path, nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory()
    create(nsqd, "t", "c")
    assert brief(examined(f"--data-path={nsqd.data_path}", *at(nsqd))) == [("note", "orphan-channel")]
    data = shutil.copytree(GOLDEN / "corrupt_size" / "data", tmp_path / "data")
    daemon = nsqd_factory(data_path=data)
    [bad] = eventually(lambda: list(data.glob("*.bad")), "a file set aside")
    assert only(examined(f"--data-path={data}", *at(daemon)), "bad-files")["evidence"][1] == bad.name


def test_a_disk_that_is_nearly_full_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nsqd.dat").write_text('{"topics":[]}')
    for room, severity in ((2, "critical"), (9, "warning"), (11, None)):
        # Block size twice, blocks and inodes: all, free and free for users; flags and the longest name.
        disk = os.statvfs_result((4096, 4096, 100, 50, room, 1000, 900, 900, 0, 255))
        monkeypatch.setattr(os, "statvfs", lambda path, disk=disk: disk)
        findings = list(examine_directory(str(tmp_path)))
        assert [(one.code, one.severity.value) for one in findings] == ([("disk-full", severity)] if severity else [])
        assert all(one.summary == f"the disk of {tmp_path} has {room}.0% of its room left" for one in findings)
