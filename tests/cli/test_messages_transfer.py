"""`gnsqadmin save`, `load` and `copy`: messages are in their queue or where they were put, whatever happens."""

import gzip
import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli.gnsqadmin import COMMAND, Terminal, ctrl_c, document, end, environment, failure, gnsqadmin, ok, plain, start
from cli.nodes import address, at, bodies, fill, publish
from kit.certificates import issue
from kit.daemons import DEADLINE, Instance, eventually, fixed_ports, free_port
from kit.traffic import DaemonFactory, create, post, wait_for
from nsqadmin_cli.archive import read_archive
from nsqadmin_cli.errors import AdminError

BODIES = [b"text", "ö\n\u2028\U0001f600".encode(), b"\xff\x00", b'{"a": "\\ud800"}', b"<&>", b" "]


def lines_of(file: Path) -> list[dict[str, Any]]:
    data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return [json.loads(line) for line in data.splitlines()]


def has_client(nsqd: Instance, topic: str) -> bool:
    channels = [channel for stats in nsqd.stats(topic)["topics"] for channel in stats["channels"]]
    return any(channel["client_count"] for channel in channels)


def counts(nsqd: Instance, topic: str, channel: str) -> tuple[int, int, int]:
    stats = nsqd.channel_stats(topic, channel)
    return stats["depth"], stats["in_flight_count"], stats["deferred_count"]


def numbers(file: Path) -> list[int]:
    return sorted(int(line["body"]) for line in lines_of(file))


def saving(file: Path, *nodes: Instance) -> tuple[str, ...]:
    return ("save", "t", str(file), "--channel=c", *at(*nodes))


@pytest.mark.parametrize("name", ["saved.ndjson", "saved.ndjson.gz"])
def test_what_is_saved_and_loaded_is_what_was_published(nsqd: Instance, tmp_path: Path, name: str) -> None:
    create(nsqd, "t")
    for body in BODIES:
        post(nsqd, "/pub?topic=t", body)
    file = tmp_path / name
    answer = document(*saving(file, nsqd), "--create")
    assert (answer["messages"], answer["bytes"]) == (len(BODIES), sum(map(len, BODIES)))
    assert counts(nsqd, "t", "c") == (0, 0, 0)
    saved = lines_of(file)
    assert all(line["topic"] == "t" and line["attempts"] == 1 for line in saved)
    assert list(saved[0]) == ["topic", "timestamp", "attempts", "id", "body", "body_base64"]
    for topic, words in (("copy", ["copy"]), ("t", [])):
        topics = document("load", str(file), *words, *at(nsqd))["topics"]
        assert topics == [{"topic": topic, "messages": len(BODIES)}]
    assert bodies(nsqd, "copy", len(BODIES)) == sorted(BODIES)
    code, out, err = gnsqadmin(*saving(Path("-"), nsqd))
    assert (code, err) == (0, f"Saved 6 messages ({sum(map(len, BODIES))} B) of t to -\n")
    ok("load", "-", "u", *at(nsqd), stdin=out)
    assert bodies(nsqd, "u", len(BODIES)) == sorted(BODIES)


def test_a_great_backlog_is_saved_from_all_nodes(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    nodes, file = [nsqd_factory("--mem-queue-size=100"), nsqd_factory("--max-rdy-count=50")], tmp_path / "saved.gz"
    for node in nodes:
        fill(node, "t", "c", count=5000)
    out = ok(*saving(file, *nodes))
    assert out == f"Saved 10,000 messages (38 kB) of t to {file}\n"
    assert numbers(file) == sorted([*range(5000), *range(5000)])
    assert [counts(node, "t", "c") for node in nodes] == [(0, 0, 0)] * 2


@pytest.mark.parametrize("name", ["saved", "saved.gz"])
def test_what_is_added_to_a_file_can_be_read_after_what_was_there(nsqd: Instance, tmp_path: Path, name: str) -> None:
    """Takes no more than was asked for: what was on its way is in the queue again at once, without a time-out."""
    fill(nsqd, "t", "c", count=50)
    file = tmp_path / name
    save = saving(file, nsqd)
    ok(*save, "-n", "7")
    assert len(lines_of(file)) == 7
    assert counts(nsqd, "t", "c") == (43, 0, 0)
    assert failure(*save) == f"{file} already exists; --append adds to it"
    ok(*save, "--append")
    assert numbers(file) == list(range(50))
    assert counts(nsqd, "t", "c") == (0, 0, 0)
    assert ok("load", str(file), "--dry-run") == "Would publish 50 messages (90 B) to t\n"
    contradicts, own = "which contradicts its name", b"a line\nand somebody's own text"
    for content, reason in {
        "saved": (
            (own, "ends in the middle of a line; save to another file"),
            (b"\x1f\x8bx", f"is compressed, {contradicts}"),
        ),
        "saved.gz": ((b"plain\n", f"is not compressed, {contradicts}"),),
    }[name]:
        file.write_bytes(content)
        assert failure(*save, "--append") == f"{file} {reason}"
        assert file.read_bytes() == content


def test_without_a_channel_what_is_published_from_now_on_is_saved_until_ctrl_c(nsqd: Instance, tmp_path: Path) -> None:
    fill(nsqd, "t", "other", count=2)
    file = tmp_path / "saved.gz"
    with start("save", "t", str(file), *at(nsqd)) as process:
        eventually(lambda: has_client(nsqd, "t"), "it consumes")
        for number in range(3):
            post(nsqd, "/pub?topic=t", b"new %d" % number)
        eventually(lambda: nsqd.stats("t")["topics"][0]["message_count"] == 5, "all published")
        eventually(lambda: all(c["depth"] + c["in_flight_count"] == 0 for c in own_channels(nsqd)), "all saved")
        code, _, err = ctrl_c(process)
    assert (code, err.strip()) == (130, "")
    assert sorted(line["body"] for line in lines_of(file)) == ["new 0", "new 1", "new 2"]
    assert counts(nsqd, "t", "other") == (5, 0, 0)
    eventually(lambda: not own_channels(nsqd), "its channel is gone")


def own_channels(nsqd: Instance) -> list[dict[str, Any]]:
    (topic,) = nsqd.stats("t")["topics"]
    return [channel for channel in topic["channels"] if channel["channel_name"].startswith("gnsqadmin-")]


def test_a_kill_in_the_middle_loses_nothing(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    nsqd = gnsqd_factory("--msg-timeout=1s")
    fill(nsqd, "t", "c", count=20_000)
    file = tmp_path / "saved"
    with start(*saving(file, nsqd), "--in-flight=50") as process:
        eventually(lambda: file.exists() and file.stat().st_size > 20_000, "it is at work")
        process.kill()
    with file.open("ab") as saved:
        saved.write(b'{"topic": "t", "bo')  # as if it had been killed while it wrote
    eventually(lambda: counts(nsqd, "t", "c")[1] == 0, "what was in flight timed out")
    ok(*saving(file, nsqd), "--append")
    assert set(numbers(file)) == set(range(20_000))


@pytest.mark.parametrize("name, most", [("saved", 20_000), ("saved.gz", 5_000)])
def test_a_full_disk_keeps_whole_lines_and_loses_none(gnsqd: Instance, tmp_path: Path, name: str, most: int) -> None:
    fill(gnsqd, "t", "c", count=3000)
    file = tmp_path / name

    limited = ["sh", "-c", f"trap '' XFSZ; ulimit -f {most // 512}; exec \"$@\"", "sh", *COMMAND, *saving(file, gnsqd)]
    done = subprocess.run([*limited, "--in-flight=20"], env=environment(), capture_output=True, timeout=DEADLINE)
    saved, err = numbers(file), done.stderr.decode()
    assert (done.returncode, err.partition("; ")[0]) == (1, f"Error: cannot write {file}: file too large")
    assert f"{len(saved):,} messages saved" in err
    depth, in_flight, deferred = counts(gnsqd, "t", "c")
    assert (in_flight, deferred) == (0, 0)
    assert sorted(saved + [int(body) for body in bodies(gnsqd, "t", depth)]) == list(range(3000))


def test_messages_are_copied_to_another_topic_as_they_come_and_none_is_not_named(
    nsqd: Instance, tmp_path: Path
) -> None:
    create(nsqd, "t", "c")
    file, empty = tmp_path / "saved", tmp_path / "empty"
    empty.touch()
    save = ("--channel=c", *at(nsqd))
    assert ok("save", "t", str(file), *save) == f"No messages of t; {file} was not written\n"
    assert ok("save", "t", str(empty), "--append", *save) == f"No messages of t; {empty} was not written\n"
    assert empty.exists()
    assert not file.exists()
    assert ok("copy", "t", "new", *save).startswith("Published 0 messages (0 B)")
    with start("copy", "t", "to", "-n", "3", "--json", *at(nsqd)) as process:
        eventually(lambda: has_client(nsqd, "t"), "it consumes")
        publish(nsqd, "t", 3)
        code, out, err = end(process)
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert (answer["source"], answer["topic"], answer["messages"]) == ("t", "to", 3)
    assert bodies(nsqd, "to", 3) == [b"0", b"1", b"2"]
    assert counts(nsqd, "t", "c") == (3, 0, 0)


def test_a_channel_is_moved_to_another_cluster_and_stays_where_that_refuses(nsqd_factory: DaemonFactory) -> None:
    source, target = nsqd_factory("--mem-queue-size=10"), nsqd_factory("--max-msg-size=10")
    fill(source, "t", "c", count=2500)
    copy = ("copy", "t", "--channel=c", f"--to-nsqd-http-address={address(target)}", *at(source))
    # Behind this comes the pace, if it took a second or more.
    assert ok(*copy).startswith(f"Published 2,500 messages (8.9 kB) to t at {address(target)}")
    assert counts(source, "t", "c") == (0, 0, 0)
    assert sorted(map(int, bodies(target, "t", 2500))) == list(range(2500))
    post(source, "/pub?topic=t", b"x" * 11)
    wait_for(source, "t", "c", depth=1)
    reason = f"a message of 11 bytes is larger than nsqd at {address(target)} accepts"
    assert failure(*copy) == f"{reason}; 0 messages copied to t"
    assert counts(source, "t", "c") == (1, 0, 0)


def test_a_node_that_was_restarted_is_joined_again(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    gnsqd = gnsqd_factory(*fixed_ports())
    create(gnsqd, "t", "c")
    file = tmp_path / "saved"
    with start(*saving(file, gnsqd), "--follow") as process:
        eventually(lambda: has_client(gnsqd, "t"), "it consumes")
        gnsqd.restart()
        publish(gnsqd, "t", 5)
        eventually(lambda: file.exists() and len(file.read_bytes().splitlines()) == 5, "saved after all")
        code, _, err = end(process, signal.SIGTERM)
    assert code == 130
    assert f"Warning: nsqd at {address(gnsqd)}: closed the connection" in err


def test_what_cannot_be_delivered_is_reported(nsqd: Instance, tmp_path: Path) -> None:
    fill(nsqd, "t", "c", count=2)
    post(nsqd, "/channel/pause?topic=t&channel=c")
    file = tmp_path / "saved"
    save = saving(file, nsqd)
    reason = f"2 messages cannot be delivered: the channel c is paused at {address(nsqd)}"
    assert failure(*save) == f"{reason}; 0 messages saved to {file}"
    assert not file.exists()
    post(nsqd, "/channel/unpause?topic=t&channel=c")
    post(nsqd, "/pub?topic=t&defer=60000", b"later")
    wait_for(nsqd, "t", "c", deferred_count=1)
    code, _, err = gnsqadmin(*save)
    assert (code, err, len(lines_of(file))) == (0, "Left in t c: 0 in flight to others, 1 deferred\n", 2)


FIRST = b'{"body": "x", "topic": "t"}\n'
BAD = {
    FIRST + b'{"body"\n': "line 2 of {} is not JSON",
    FIRST + b"[]\n": "line 2 of {} is not a JSON object",
    FIRST + b'{"body": ""}': "line 2 of {}: its body is empty, which NSQ does not accept",
    FIRST + b'{"x": 1}': 'line 2 of {}: expected one string, "body" or "body_base64"',
    FIRST + b'{"body_base64": "="}': 'line 2 of {}: "body_base64" is not base64',
    FIRST + b'{"body": "x", "topic": "a b"}': 'line 2 of {}: "topic" is not a valid topic name',
    gzip.compress(FIRST * 2, mtime=0)[:-12]: "{} is truncated",
}


def test_a_bad_line_is_named_after_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqadmin_cli.archive._PIECE", 10)  # so each line is of several pieces
    file = tmp_path / "saved"
    for content, reason in BAD.items():
        file.write_bytes(content)
        archived = (line for lines, _ in read_archive(str(file)) for line in lines)
        first = next(archived)
        assert (first.number, first.topic, first.body) == (1, "t", b"x")
        with pytest.raises(AdminError, match=re.escape(reason.format(file)) + "$"):
            list(archived)


def test_a_load_goes_on_where_it_ended(gnsqd: Instance, tmp_path: Path) -> None:
    file = tmp_path / "saved"
    file.write_text('{"body": "1"}\n{"body": "2"}\nbad\n{"body": "4"}\n')
    load = ("load", str(file))
    done = "2 messages published, up to line 2; continue with --from-line 3"
    assert failure(*load, "t", *at(gnsqd)) == f"line 3 of {file} is not JSON; {done}"
    ok(*load, "t", "--from-line=4", *at(gnsqd))
    assert bodies(gnsqd, "t", 3) == [b"1", b"2", b"4"]
    assert failure(*load, "--dry-run") == f"line 1 of {file} has no topic; give TOPIC; 0 messages read"
    assert ok(*load, "t", "--from-line=4", "--dry-run") == "Would publish 1 message (1 B) to t\n"


def test_consumers_use_tls_and_authenticate_where_nodes_want_it(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    authority = issue("Test Authority", authority=True)
    cert, key = issue("127.0.0.1", authority).write(tmp_path / "server")
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem)
    https = f"127.0.0.1:{free_port()}"
    tls = (f"--tls-cert={cert}", f"--tls-key={key}", "--tls-required=tcp-https", f"--https-address={https}")
    nsqd = nsqd_factory(*tls)
    fill(nsqd, "t", "c", count=2000)
    file = tmp_path / "saved"
    assert "E_INVALID cannot SUB in current state (TLS required)" in gnsqadmin(*saving(file, nsqd)).err
    save = (*saving(file), *at(f"https://{https}"))
    ok(*save, f"--tls-ca={tmp_path / 'ca.pem'}")
    assert numbers(file) == list(range(2000))
    assert "its certificate is not trusted" in gnsqadmin(*save, "--append").err


@pytest.mark.parametrize("command", ["load", "load packed", "pub", "copy"])
def test_progress_follows_what_is_published(gnsqd: Instance, tmp_path: Path, command: str) -> None:
    file = tmp_path / "file"
    lines = [json.dumps({"topic": "t", "body": f"{number:09}" * 100}) + "\n" for number in range(100)]
    text = "".join(lines).encode()
    file.write_bytes(gzip.compress(text) if "packed" in command else text)
    words = {"pub": ["pub", "t", f"--file={file}"], "copy": ["copy", "s", "t", "--channel=c"]}
    if command == "copy":
        fill(gnsqd, "s", "c", count=100)
    with Terminal(100, 24, *words.get(command, ["load", str(file)]), "--rate=40", *at(gnsqd)) as terminal:
        terminal.wait_for(*(["copying", "/ 100 messages"] if command == "copy" else ["publishing"]))
        assert terminal.end() == 0
        shown = {float(part) for part in re.findall(r"([0-9.]+) k?B / ", plain(terminal.printed))}
    assert command == "copy" or len(shown) > 3, shown
    [topic] = gnsqd.stats("t")["topics"]
    assert topic["message_count"] == 100
