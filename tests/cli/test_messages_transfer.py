"""`gnsqadmin save`, `load` and `copy`: messages are in their queue or where they were put, whatever happens."""

import gzip
import itertools
import json
import re
import resource
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli.gnsqadmin import COMMAND, Terminal, environment, gnsqadmin, plain
from cli.nodes import Cluster, address, at, fill, publish
from conftest import DaemonFactory
from kit.certificates import issue
from kit.daemons import DEADLINE, Daemon, eventually, fixed_ports, free_port
from kit.nsq_client import Client
from kit.traffic import create, post, wait_for
from nsqadmin_cli.archive import read_archive
from nsqadmin_cli.errors import AdminError

BODIES = [b"text", "ö\n\u2028\U0001f600".encode(), b"\xff\x00", b'{"a": "\\ud800"}', b"<&>", b" "]


def lines_of(file: Path) -> list[dict[str, Any]]:
    data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return [json.loads(line) for line in data.splitlines()]


def start(*args: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*COMMAND, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())


def interrupt(process: "subprocess.Popen[bytes]", number: int = signal.SIGINT) -> tuple[int, str]:
    """Ctrl-C, or another signal; the exit code and what was said on standard error."""
    process.send_signal(number)
    _, err = process.communicate(timeout=DEADLINE)
    return process.returncode, err.decode()


def has_client(nsqd: Daemon, topic: str) -> bool:
    channels = [channel for found in nsqd.stats(topic)["topics"] for channel in found["channels"]]
    return any(channel["client_count"] for channel in channels)


def counts(nsqd: Daemon, topic: str, channel: str) -> tuple[int, int, int]:
    stats = nsqd.channel_stats(topic, channel)
    return stats["depth"], stats["in_flight_count"], stats["deferred_count"]


def finish_all(nsqd: Daemon, topic: str, channel: str, count: int) -> list[bytes]:
    with Client(nsqd.tcp_address) as client:
        client.subscribe(topic, channel, rdy=min(count, 2500))
        bodies = []
        for _ in range(count):
            message = client.message()
            bodies.append(message.body)
            client.command(b"FIN " + message.id)
        return bodies


@pytest.mark.parametrize("name", ["saved.ndjson", "saved.ndjson.gz"])
def test_what_is_saved_and_loaded_is_what_was_published(nsqd: Daemon, tmp_path: Path, name: str) -> None:
    create(nsqd, "t", "c")
    for body in BODIES:
        post(nsqd, "/pub?topic=t", body)
    file = tmp_path / name
    result = gnsqadmin("save", "t", str(file), "--channel", "c", "--json", *at(nsqd))
    assert (result.code, result.err) == (0, "")
    document = json.loads(result.out)
    assert (document["messages"], document["bytes"]) == (len(BODIES), sum(map(len, BODIES)))
    assert counts(nsqd, "t", "c") == (0, 0, 0)
    saved = lines_of(file)
    assert all(line["topic"] == "t" and line["attempts"] == 1 for line in saved)
    assert list(saved[0]) == ["topic", "timestamp", "attempts", "id", "body", "body_base64"]

    create(nsqd, "copy", "c")
    for into in ([], ["copy"]):
        result = gnsqadmin("load", str(file), *into, "--json", *at(nsqd))
        assert (result.code, result.err) == (0, "")
        (topic,) = into or ["t"]
        assert json.loads(result.out)["topics"] == [{"topic": topic, "messages": len(BODIES)}]
        assert sorted(finish_all(nsqd, topic, "c", len(BODIES))) == sorted(BODIES)


def test_a_great_backlog_is_saved_from_all_nodes(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    nodes = [nsqd_factory("--mem-queue-size=100"), nsqd_factory("--max-rdy-count=50")]
    for node in nodes:
        create(node, "t", "c")
        publish(node, "t", 5000)
    file = tmp_path / "saved.gz"
    result = gnsqadmin("save", "t", str(file), "--channel=c", *at(*nodes))
    assert result == (0, f"Saved 10,000 messages (38 kB) of t to {file}\n", "")
    assert sorted(int(line["body"]) for line in lines_of(file)) == sorted([*range(5000), *range(5000)])
    assert [counts(node, "t", "c") for node in nodes] == [(0, 0, 0)] * 2


def test_no_more_are_taken_than_were_asked_for(nsqd: Daemon, tmp_path: Path) -> None:
    create(nsqd, "t", "c")
    publish(nsqd, "t", 50)
    file = tmp_path / "saved"
    assert gnsqadmin("save", "t", str(file), "--channel=c", "-n", "7", *at(nsqd)).code == 0
    assert len(lines_of(file)) == 7
    # What was on its way is in the queue again at once, without waiting for a time-out.
    assert counts(nsqd, "t", "c") == (43, 0, 0)
    refused = gnsqadmin("save", "t", str(file), "--channel=c", *at(nsqd))
    assert refused == (1, "", f"Error: {file} already exists; --append adds to it\n")
    assert gnsqadmin("save", "t", str(file), "--channel=c", "--append", *at(nsqd)).code == 0
    assert sorted(int(line["body"]) for line in lines_of(file)) == list(range(50))
    assert counts(nsqd, "t", "c") == (0, 0, 0)


@pytest.mark.parametrize("name", ["saved", "saved.gz"])
def test_what_is_added_to_a_file_can_be_read_after_what_was_there(gnsqd: Daemon, tmp_path: Path, name: str) -> None:
    create(gnsqd, "t", "c")
    file = tmp_path / name
    save = ["save", "t", str(file), "--channel=c", "--append", *at(gnsqd)]
    for _ in range(2):
        publish(gnsqd, "t", 3)
        wait_for(gnsqd, "t", "c", depth=3)
        assert gnsqadmin(*save).code == 0
    assert sorted(line["body"] for line in lines_of(file)) == ["0", "0", "1", "1", "2", "2"]
    planned = gnsqadmin("load", str(file), "--dry-run")
    assert planned == (0, "Would publish 6 messages (6 B) to t\n", "")
    if name == "saved":
        file.write_bytes(b"a line\nand somebody's own text")
        code, out, err = gnsqadmin(*save)
        assert (code, out) == (1, "")
        assert err == f"Error: {file} ends in the middle of a line; save to another file\n"
        assert file.read_bytes() == b"a line\nand somebody's own text"
    file.write_bytes(b"\x1f\x8bx" if name == "saved" else b"plain\n")
    code, out, err = gnsqadmin(*save)
    assert (code, out) == (1, "")
    expected = f"{file} is {'' if name == 'saved' else 'not '}compressed, which contradicts its name"
    assert err == f"Error: {expected}\n"


def test_standard_output_takes_messages_and_nothing_else(nsqd: Daemon) -> None:
    create(nsqd, "t", "c")
    publish(nsqd, "t", 3)
    result = gnsqadmin("save", "t", "-", "--channel=c", *at(nsqd))
    assert sorted(json.loads(line)["body"] for line in result.out.splitlines()) == ["0", "1", "2"]
    assert result.err == "Saved 3 messages (3 B) of t to -\n"
    assert gnsqadmin("load", "-", "u", *at(nsqd), stdin=result.out).code == 0
    assert sorted(finish_all(nsqd, "u", "c", 3)) == [b"0", b"1", b"2"]


def test_without_a_channel_what_is_published_from_now_on_is_saved_until_ctrl_c(nsqd: Daemon, tmp_path: Path) -> None:
    fill(nsqd, "t", "other", count=2)
    file = tmp_path / "saved.gz"
    with start("save", "t", str(file), *at(nsqd)) as process:
        eventually(lambda: has_client(nsqd, "t"), "it consumes")
        for number in range(3):
            post(nsqd, "/pub?topic=t", b"new %d" % number)
        eventually(lambda: file.exists() and file.stat().st_size > 100, "something is saved")
        eventually(lambda: nsqd.stats("t")["topics"][0]["message_count"] == 5, "all published")
        eventually(lambda: all(c["depth"] + c["in_flight_count"] == 0 for c in own_channels(nsqd)), "all saved")
        code, err = interrupt(process)
    assert (code, err.strip()) == (130, "")
    assert sorted(line["body"] for line in lines_of(file)) == ["new 0", "new 1", "new 2"]
    assert counts(nsqd, "t", "other") == (5, 0, 0)
    eventually(lambda: not own_channels(nsqd), "its channel is gone")


def own_channels(nsqd: Daemon) -> list[dict[str, Any]]:
    (topic,) = nsqd.stats("t")["topics"]
    return [channel for channel in topic["channels"] if channel["channel_name"].startswith("gnsqadmin-")]


def test_a_kill_in_the_middle_loses_nothing(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    nsqd = gnsqd_factory("--msg-timeout=1s")
    create(nsqd, "t", "c")
    publish(nsqd, "t", 20_000)
    file = tmp_path / "saved"
    with start("save", "t", str(file), "--channel=c", "--in-flight=50", *at(nsqd)) as process:
        eventually(lambda: file.exists() and file.stat().st_size > 20_000, "it is at work")
        process.kill()
    with file.open("ab") as saved:
        saved.write(b'{"topic": "t", "bo')  # as if it had been killed while it wrote
    eventually(lambda: counts(nsqd, "t", "c")[1] == 0, "what was in flight timed out")
    assert gnsqadmin("save", "t", str(file), "--channel=c", "--append", *at(nsqd)).code == 0
    assert {int(line["body"]) for line in lines_of(file)} == set(range(20_000))


@pytest.mark.parametrize("name, most", [("saved", 20_000), ("saved.gz", 5_000)])
def test_a_file_that_takes_no_more_keeps_whole_lines_and_the_queue_the_rest(
    gnsqd: Daemon, tmp_path: Path, name: str, most: int
) -> None:
    create(gnsqd, "t", "c")
    publish(gnsqd, "t", 3000)
    file = tmp_path / name

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    done = subprocess.run(
        [*COMMAND, "save", "t", str(file), "--channel=c", "--in-flight=20", *at(gnsqd)],
        env=environment(),
        capture_output=True,
        text=True,
        preexec_fn=limit,
        timeout=DEADLINE,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: cannot write {file}: file too large; ")
    numbers = [int(line["body"]) for line in lines_of(file)]
    assert f"{len(numbers):,} messages saved" in done.stderr
    depth, in_flight, deferred = counts(gnsqd, "t", "c")
    assert (in_flight, deferred) == (0, 0)
    rest = [int(body) for body in finish_all(gnsqd, "t", "c", depth)]
    assert sorted(numbers + rest) == list(range(3000))


def test_messages_are_copied_to_another_topic_as_they_come(nsqd: Daemon) -> None:
    create(nsqd, "from", "c")
    create(nsqd, "to", "c")
    with start("copy", "from", "to", "-n", "3", "--json", *at(nsqd)) as process:
        eventually(lambda: has_client(nsqd, "from"), "it consumes")
        for number in range(3):
            post(nsqd, "/pub?topic=from", b"%d" % number)
        out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, err) == (0, b"")
    document = json.loads(out)
    assert (document["source"], document["topic"], document["messages"]) == ("from", "to", 3)
    assert sorted(finish_all(nsqd, "to", "c", 3)) == [b"0", b"1", b"2"]
    assert counts(nsqd, "from", "c") == (3, 0, 0)


def test_a_channel_is_moved_to_another_cluster(nsqd_factory: DaemonFactory) -> None:
    source, target = nsqd_factory("--mem-queue-size=10"), nsqd_factory()
    create(source, "t", "c")
    create(target, "t", "c")
    publish(source, "t", 2500)
    to = f"--to-nsqd-http-address={address(target)}"
    result = gnsqadmin("copy", "t", "--channel=c", to, *at(source))
    assert (result.code, result.err) == (0, "")
    # Behind this comes the pace, if it took a second or more.
    assert result.out.startswith(f"Published 2,500 messages (8.9 kB) to t at {address(target)}")
    assert counts(source, "t", "c") == (0, 0, 0)
    assert sorted(map(int, finish_all(target, "t", "c", 2500))) == list(range(2500))
    code, _, err = gnsqadmin("copy", "t", *at(source), f"--to-nsqd-http-address={address(source)}")
    assert (code, "source and destination are the same" in err) == (2, True)


@pytest.mark.peer
def test_nodes_of_both_sides_are_found_by_nsqlookupd(cluster: Cluster) -> None:
    for node in cluster.nodes:
        create(node, "t", "c")
        publish(node, "t", 20)
    cluster.wait_for_topic("t", channel="c")
    to = cluster.flag.replace("--lookupd", "--to-lookupd")
    assert gnsqadmin("copy", "t", "u", "--channel=c", to, cluster.flag).code == 0
    stats = [node.stats("u")["topics"] for node in cluster.nodes]
    assert sum(topic["message_count"] for topics in stats for topic in topics) == 40


def test_a_destination_that_refuses_leaves_the_messages_where_they_are(nsqd_factory: DaemonFactory) -> None:
    source, target = nsqd_factory(), nsqd_factory("--max-msg-size=10")
    create(source, "t", "c")
    post(source, "/pub?topic=t", b"x" * 11)
    wait_for(source, "t", "c", depth=1)
    result = gnsqadmin("copy", "t", "--channel=c", f"--to-nsqd-http-address={address(target)}", *at(source))
    reason = f"a message of 11 bytes is larger than nsqd at {address(target)} accepts"
    assert result == (1, "", f"Error: {reason}; 0 messages copied to t\n")
    assert counts(source, "t", "c") == (1, 0, 0)


def test_a_node_that_was_restarted_is_joined_again(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    gnsqd = gnsqd_factory(*fixed_ports())
    create(gnsqd, "t", "c")
    file = tmp_path / "saved"
    with start("save", "t", str(file), "--channel=c", "--follow", *at(gnsqd)) as process:
        eventually(lambda: has_client(gnsqd, "t"), "it consumes")
        gnsqd.restart()
        publish(gnsqd, "t", 5)
        eventually(lambda: file.exists() and len(file.read_bytes().splitlines()) == 5, "saved after all")
        code, err = interrupt(process, signal.SIGTERM)
    assert code == 130
    assert f"Warning: nsqd at {address(gnsqd)}: closed the connection" in err


def test_what_cannot_come_is_told(nsqd: Daemon, tmp_path: Path) -> None:
    create(nsqd, "t", "c")
    post(nsqd, "/channel/pause?topic=t&channel=c")
    publish(nsqd, "t", 2)
    wait_for(nsqd, "t", "c", depth=2)
    file = tmp_path / "saved"
    code, out, err = gnsqadmin("save", "t", str(file), "--channel=c", *at(nsqd))
    reason = f"2 messages cannot be delivered: the channel c is paused at {address(nsqd)}"
    assert (code, out, err) == (1, "", f"Error: {reason}; 0 messages saved to {file}\n")
    assert not file.exists()
    post(nsqd, "/channel/unpause?topic=t&channel=c")
    assert nsqd.http("POST", "/pub?topic=t&defer=60000", b"later")[0] == 200
    eventually(lambda: counts(nsqd, "t", "c")[2] == 1, "deferred")
    result = gnsqadmin("save", "t", str(file), "--channel=c", *at(nsqd))
    assert (result.code, len(lines_of(file))) == (0, 2)
    assert result.err == "Left in t c: 0 in flight to others, 1 deferred\n"


def test_an_unknown_topic_or_channel_is_not_made_by_mistake(nsqd: Daemon, tmp_path: Path) -> None:
    create(nsqd, "t")
    file = str(tmp_path / "saved")
    assert gnsqadmin("save", "unknown", file, *at(nsqd)) == (4, "", "Error: no node has the topic unknown\n")
    unknown = gnsqadmin("save", "t", file, "--channel=c", *at(nsqd))
    assert unknown == (4, "", "Error: no node has the channel c of t; --create creates it\n")
    (topic,) = nsqd.stats()["topics"]
    assert (topic["topic_name"], topic["channels"]) == ("t", [])
    publish(nsqd, "t", 2)
    result = gnsqadmin("save", "t", file, "--channel=c", "--create", *at(nsqd))
    assert (result.code, len(lines_of(Path(file)))) == (0, 2)


FIRST = b'{"body": "x", "topic": "t"}\n'


@pytest.mark.parametrize(
    "content, reason",
    [
        (FIRST + b'{"body"\n', "line 2 of {file} is not JSON"),
        (FIRST + b"[]\n", "line 2 of {file} is not a JSON object"),
        (FIRST + b'{"body": ""}', "line 2 of {file}: its body is empty, which NSQ does not accept"),
        (FIRST + b'{"x": 1}', 'line 2 of {file}: expected one string, "body" or "body_base64"'),
        (FIRST + b'{"body_base64": "="}', 'line 2 of {file}: "body_base64" is not base64'),
        (FIRST + b'{"body": "x", "topic": "a b"}', 'line 2 of {file}: "topic" is not a valid topic name'),
        (gzip.compress(FIRST * 2, mtime=0)[:-12], "{file} is truncated"),
    ],
)
def test_a_bad_line_is_named_after_those_before_it(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "saved"
    file.write_bytes(content)
    found = itertools.chain.from_iterable(lines for lines, _ in read_archive(str(file)))
    first = next(found)
    assert (first.number, first.topic, first.body) == (1, "t", b"x")
    with pytest.raises(AdminError) as error:
        list(found)
    assert str(error.value) == reason.format(file=file)


def test_a_load_goes_on_where_it_ended(gnsqd: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "saved"
    file.write_text('{"body": "1"}\n{"body": "2"}\nbad\n{"body": "4"}\n')
    code, out, err = gnsqadmin("load", str(file), "t", *at(gnsqd))
    told = f"line 3 of {file} is not JSON; 2 messages published, up to line 2; continue with --from-line 3"
    assert (code, out, err) == (1, "", f"Error: {told}\n")
    assert gnsqadmin("load", str(file), "t", "--from-line=4", *at(gnsqd)).code == 0
    assert sorted(finish_all(gnsqd, "t", "c", 3)) == [b"1", b"2", b"4"]
    code, _, err = gnsqadmin("load", str(file), "--dry-run")
    assert (code, err) == (1, f"Error: line 1 of {file} has no topic; give TOPIC; 0 messages read\n")
    planned = gnsqadmin("load", str(file), "t", "--from-line=4", "--dry-run")
    assert planned == (0, "Would publish 1 message (1 B) to t\n", "")


def test_consumers_use_tls_and_authenticate_where_nodes_want_it(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    authority = issue("Test Authority", authority=True)
    cert, key = issue("127.0.0.1", authority).write(tmp_path / "server")
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem)
    https = f"127.0.0.1:{free_port()}"
    nsqd = nsqd_factory(
        f"--tls-cert={cert}", f"--tls-key={key}", "--tls-required=tcp-https", f"--https-address={https}"
    )
    create(nsqd, "t", "c")
    publish(nsqd, "t", 2000)
    file = tmp_path / "saved"
    code, _, err = gnsqadmin("save", "t", str(file), "--channel=c", *at(nsqd))
    assert code == 1
    assert "E_INVALID cannot SUB in current state (TLS required)" in err
    where = [f"--nsqd-http-address=https://{https}", f"--tls-ca={tmp_path / 'ca.pem'}"]
    assert gnsqadmin("save", "t", str(file), "--channel=c", *where).code == 0
    assert sorted(int(line["body"]) for line in lines_of(file)) == list(range(2000))
    untrusted = gnsqadmin("save", "t", str(file), "--append", "--channel=c", where[0])
    assert "its certificate is not trusted" in untrusted.err


def test_progress_is_shown_on_a_terminal(gnsqd: Daemon, tmp_path: Path) -> None:
    create(gnsqd, "t", "c")
    publish(gnsqd, "t", 400)
    with Terminal(100, 24, "copy", "t", "u", "--channel=c", "--rate=300", *at(gnsqd)) as terminal:
        terminal.wait_for("copying", "/ 400 messages")
        terminal.wait_for("Published 400 messages")
        assert terminal.end() == 0


@pytest.mark.parametrize("command", ["load", "load packed", "pub"])
def test_progress_follows_what_is_published_of_a_file(gnsqd: Daemon, tmp_path: Path, command: str) -> None:
    file = tmp_path / "file"
    text = "".join(json.dumps({"topic": "t", "body": f"{number:09}" * 100}) + "\n" for number in range(100)).encode()
    file.write_bytes(gzip.compress(text) if "packed" in command else text)
    words = ["pub", "t", f"--file={file}"] if command == "pub" else ["load", str(file)]
    with Terminal(100, 24, *words, "--rate=40", *at(gnsqd)) as terminal:
        terminal.wait_for("publishing")
        assert terminal.end() == 0
        shown = {float(part) for part in re.findall(r"([0-9.]+) k?B / ", plain(terminal.printed))}
    assert len(shown) > 3, shown
    [topic] = gnsqd.stats()["topics"]
    assert topic["message_count"] == 100
