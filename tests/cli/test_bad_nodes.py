"""Nodes that hang, lie or are something else: one plain error line that says what was wrong, whatever they do."""

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import pytest

from cli.gnsqadmin import COMMAND, FakeNode, Result, Terminal, environment, gnsqadmin, http_answer, on_terminal
from cli.nodes import address, at, create
from conftest import DaemonFactory
from documentation.writers import load_writer
from kit.daemons import DEADLINE, eventually, free_port
from nsqadmin_cli.cli import main

COMMANDS = load_writer("write_gnsqadmin").all_commands()
NOT_JSON = "answered something that is not JSON; is this the HTTP address of an nsqd?"
NOT_HTTP = "does not answer in HTTP; is this the TCP address of an nsqd?"
NOT_NSQD = "answered JSON that is not an nsqd's:"


def node(**changes: Any) -> dict[str, Any]:
    """What an nsqd without topics says."""
    return {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": [], "producers": None} | changes


def topic(**changes: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("depth", "backend_depth", "message_count", "message_bytes"), 0)
    return {"topic_name": "t", "channels": [], **counts, "paused": False} | changes


NO_LATENCY = {"e2e_processing_latency": {"count": 0, "percentiles": []}}


def as_json(document: object) -> bytes:
    return http_answer(json.dumps(document).encode())


def without(key: str, document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != key}


BAD_ANSWERS = {
    "nothing": (b"", NOT_HTTP),
    "no HTTP": (b"\0\0\0\x12\0\0\0\x01E_BAD_PROTOCOL\n", NOT_HTTP),
    "cut short": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}",
        "closed the connection in the middle of its answer",
    ),
    "cut chunk": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        "closed the connection in the middle of its answer",
    ),
    "many headers": (
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200,
        "does not answer in valid HTTP (HTTPException)",
    ),
    "HTML": (http_answer(b"<html>\x1b[31m</html>"), NOT_JSON),
    "bytes": (http_answer(b"\xff\xfe\xfd"), NOT_JSON),
    "compressed": (
        http_answer(gzip.compress(b" " * 10_000_000)).replace(b"\r\n", b"\r\nContent-Encoding: gzip\r\n", 1),
        NOT_JSON,
    ),
    "deep JSON": (http_answer(b"[" * 100_000), NOT_JSON),
    "nsqlookupd": (
        http_answer(b'{"message":"NOT_FOUND"}', "404 Not Found"),
        "answered HTTP 404 (NOT_FOUND)",
    ),
    "TLS required, no port": (
        http_answer(b'{"message": "TLS_REQUIRED", "https_port": 0}', "403 Forbidden"),
        "answered HTTP 403 (TLS_REQUIRED)",
    ),
    "HTTPS": (
        http_answer(b"Client sent an HTTP request to an HTTPS server.\n", "400 Bad Request", "text/plain"),
        "answered HTTP 400 (Client sent an HTTP request to an HTTPS server.)",
    ),
    "control bytes": (
        http_answer(b'{"message":"a\\u001b[2J\\nb"}', "500 X"),
        r"answered HTTP 500 (a\x1b[2J\nb)",
    ),
    "redirect": (
        http_answer(b"<html>", "301 Moved Permanently", "text/html"),
        "answered HTTP 301 (Moved Permanently)",
    ),
    "list": (as_json([]), f"{NOT_NSQD} the document is not a JSON object"),
    "other JSON": (as_json({"status_code": 200}), f'{NOT_NSQD} the document has no "version"'),
    "no topics": (as_json(without("topics", node())), f'{NOT_NSQD} the document has no "topics"'),
    "topics": (as_json(node(topics={})), f'{NOT_NSQD} "topics" of the document is not a list'),
    "depth": (as_json(node(topics=[topic(depth=True)])), f'{NOT_NSQD} "depth" of a topic is not a count'),
    "huge depth": (as_json(node(topics=[topic(depth=10**4000)])), f'{NOT_NSQD} "depth" of a topic is not a count'),
    "channel": (
        as_json(node(topics=[topic(channels=[{}])])),
        f"{NOT_NSQD} a channel of topic 't' has no \"channel_name\"",
    ),
}


@pytest.mark.parametrize("answer, reason", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_a_bad_answer_is_one_line_of_error(answer: bytes, reason: str) -> None:
    with FakeNode(answer) as bad:
        result = gnsqadmin("stats", "--nsqd-http-address", bad.address)
        assert result == (1, "", f"Error: nsqd at {bad.address}: {reason}\n")


def test_a_host_without_a_name_is_one_line_of_error() -> None:
    code, out, err = gnsqadmin("stats", "--nsqd-http-address=no-such-host.invalid:4151")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("Error: nsqd at no-such-host.invalid:4151: cannot resolve the host name: ")


def test_a_hanging_node_is_given_up_after_the_timeout_and_the_others_are_shown() -> None:
    with FakeNode(hangs=True) as hanging, FakeNode(as_json(node(topics=[topic()]))) as fine:
        result = gnsqadmin(
            "stats", "--timeout=2", f"--nsqd-http-address={hanging.address}", f"--nsqd-http-address={fine.address}"
        )
    assert result.code == 1
    assert result.err == f"Error: nsqd at {hanging.address}: no complete answer within 2 s\n"
    assert f"t                 {fine.address}" in result.out


def test_a_terminal_is_told_when_answers_take_long() -> None:
    with FakeNode(hangs=True) as hanging, FakeNode(as_json(node(topics=[topic()]))) as fine:
        addresses = [f"--nsqd-http-address={one.address}" for one in (hanging, fine)]
        with Terminal(100, 24, "stats", f"--timeout={DEADLINE}", *addresses) as slow:
            slow.wait_for("waiting for answers", "1 / 2 nodes")
        quick = on_terminal(100, "stats", addresses[1])
        in_a_pipe = gnsqadmin("stats", "--timeout=1.5", *addresses)
    assert (quick.code, "waiting" in quick.out) == (0, False)
    assert "waiting" not in in_a_pipe.out + in_a_pipe.err


def client(text: str) -> dict[str, Any]:
    """A consumer that says `text` of itself wherever it can."""
    texts = dict.fromkeys(("client_id", "hostname", "remote_address", "version", "user_agent"), text)
    counts = ("state", "ready_count", "in_flight_count", "message_count", "finish_count", "requeue_count")
    return texts | dict.fromkeys((*counts, "connect_ts", "sample_rate"), 1) | {"deflate": False, "snappy": False}


def with_client(text: str) -> bytes:
    """What a node says that has this consumer."""
    counts = ("depth", "backend_depth", "in_flight_count", "deferred_count", "message_count", "requeue_count")
    zeros = dict.fromkeys((*counts, "timeout_count", "client_count"), 0)
    channel = {"channel_name": "c", "paused": False, "clients": [client(text)], **zeros}
    return as_json(node(topics=[topic(channels=[channel])]))


SEEING_CLIENTS = (["stats", "--by=client"], ["tree"], ["channel", "show", "t", "c"])


@pytest.mark.parametrize("command", SEEING_CLIENTS)
@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_hostile_clients_are_shown_harmlessly(command: list[str], form: str) -> None:
    text = "[bold red]\x1b[2J\x9b0m\r\n\u202e:bomb:\ud800"
    with FakeNode(with_client(text)) as hostile:
        code, out, err = gnsqadmin(*command, "-o", form, "--nsqd-http-address", hostile.address)
        shown = on_terminal(200, *command, "-o", form, "--nsqd-http-address", hostile.address, NO_COLOR="1").out
    assert (code, err) == (0, "")
    for printed in (out, shown):
        assert all(char == "\n" or char.isprintable() for char in printed)
        if form != "json":
            assert r"[bold red]\x1b[2J\x9b0m\r\n\u202e:bomb:\ud800" in printed


@pytest.mark.parametrize("command", SEEING_CLIENTS)
def test_endless_texts_are_cut_off(command: list[str]) -> None:
    with FakeNode(with_client("x" * 1_000_000)) as hostile:
        code, out, err = gnsqadmin(*command, "--nsqd-http-address", hostile.address)
    assert (code, err) == (0, "")
    assert "xxx…" in out
    assert len(out) < 20_000


def test_a_node_that_drips_bytes_is_given_up_after_the_timeout() -> None:
    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while True:
            connection.sendall(b" ")
            time.sleep(0.05)

    with FakeNode(drip) as dripping:
        result = gnsqadmin("stats", "--timeout=0.5", "--nsqd-http-address", dripping.address)
        assert result == (1, "", f"Error: nsqd at {dripping.address}: no complete answer within 0.5 s\n")


def test_an_endless_answer_is_given_up() -> None:
    def pour(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b" " * 1_000_000)

    with FakeNode(pour) as pouring:
        result = gnsqadmin("stats", "--timeout=25", "--nsqd-http-address", pouring.address)
        assert result == (1, "", f"Error: nsqd at {pouring.address}: answered more than 64 MiB\n")


def test_nodes_are_asked_at_the_same_time() -> None:
    with FakeNode(hangs=True) as first, FakeNode(hangs=True) as second:
        command = ["stats", f"--nsqd-http-address={first.address}", f"--nsqd-http-address={second.address}"]
        process = subprocess.Popen([*COMMAND, *command], env=environment())
        try:
            assert first.asked.wait(DEADLINE)
            assert second.asked.wait(4), "the second node was not asked before the first had its 5 s"
        finally:
            process.kill()
            process.wait()


def test_an_unhealthy_node_is_shown_as_such() -> None:
    with FakeNode(as_json(node(health="NOK - disk \x1b[5m full"))) as ill:
        code, out, err = gnsqadmin("stats", "--nsqd-http-address", ill.address)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].endswith(r"NOK - disk \x1b[5m full")
    assert "healthy" not in out


def test_unknown_keys_are_ignored_and_go_nulls_are_empty_lists() -> None:
    with FakeNode(as_json(node(new=1, topics=[topic(new=[], channels=None)]))) as newer:
        code, out, err = gnsqadmin("stats", "--json", "--nsqd-http-address", newer.address)
    assert (code, err) == (0, "")
    assert json.loads(out)["nodes"][0]["topics"] == [topic(**NO_LATENCY)]


@pytest.mark.parametrize("name", ["\x1b]0;owned\x07", "[bold red]x[/]", ":pile_of_poo:", "a\nb", "\u202eabc", "\ud800"])
@pytest.mark.parametrize("option", [[], ["--json"]])
def test_hostile_names_are_shown_harmlessly(name: str, option: list[str]) -> None:
    escaped = name.encode("unicode_escape", "surrogatepass").decode()
    with FakeNode(as_json(node(topics=[topic(topic_name=name)]))) as hostile:
        code, out, err = gnsqadmin("stats", "--nsqd-http-address", hostile.address, *option)
    assert (code, err) == (0, "")
    assert all(char == "\n" or char.isprintable() for char in out)
    if option:
        assert json.loads(out)["totals"]["topics"][0]["topic_name"] == name
    else:
        assert out.splitlines()[4].split("  ")[0] == escaped


def test_wide_characters_keep_the_columns_straight() -> None:
    topics = [topic(topic_name="日本語"), topic(topic_name="abcdef")]
    with FakeNode(as_json(node(topics=topics))) as foreign:
        lines = gnsqadmin("stats", "--nsqd-http-address", foreign.address).out.splitlines()
    wide, narrow = (next(line for line in lines if name in line) for name in ("日本語", "abcdef"))
    assert wide.replace("日本語", "abcdef") == narrow


def test_control_c_ends_it_at_once_and_quietly() -> None:
    with FakeNode(hangs=True) as hanging:
        command = [*COMMAND, "stats", "--timeout=3600", "--nsqd-http-address", hanging.address]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment())
        assert hanging.asked.wait(DEADLINE)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert err.strip() == b""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("option", [[], ["--json"]])
def test_a_full_disk_is_one_line_of_error(option: list[str]) -> None:
    with FakeNode(as_json(node(topics=[topic()]))) as fine, open("/dev/full", "wb") as full:
        command = [*COMMAND, "stats", "--nsqd-http-address", fine.address, *option]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment(), timeout=DEADLINE)
    assert (done.returncode, done.stderr) == (1, b"Error: cannot write the output: No space left on device\n")


def test_a_closed_standard_output_is_no_failure() -> None:
    with FakeNode(as_json(node(topics=[topic()]))) as fine:
        shell = ["sh", "-c", '"$@" >&-', "sh", *COMMAND, "stats", "--nsqd-http-address", fine.address]
        done = subprocess.run(shell, stderr=subprocess.PIPE, env=environment(), timeout=DEADLINE)
    assert (done.returncode, done.stderr) == (0, b"")


UNREAD = "Error: cannot read standard input: it is closed"
UNCONFIRMED = "Nothing was done: use --yes to do it, or --dry-run to see more"
CLOSED_INPUT = {
    "pub t": (1, f"{UNREAD}; 0 messages were published"),
    "load -": (1, f"{UNREAD}; 0 messages published"),
    "topology diff -": (1, UNREAD),
    "topology import -": (1, UNREAD),
    "tail t": (5, "Nothing was done: use --yes to do it"),
    "topic delete t": (5, UNCONFIRMED),
    "topic empty *": (5, UNCONFIRMED),
}
CLOSED_OUTPUT = ("tail t", "tail t --json", "save t -", "data export {0} -", "data recover-bad {0} --to -")


def test_a_closed_standard_input_is_one_line_of_error() -> None:
    code, said = CLOSED_INPUT["pub t"]
    with FakeNode(as_json(node(topics=[topic(depth=3)]))) as fine:
        shell = ["sh", "-c", '"$@" <&-', "sh", *COMMAND, "pub", "t", "--nsqd-http-address", fine.address]
        done = subprocess.run(shell, capture_output=True, env=environment(), text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"{said}\n")


def run_here(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Result:
    """Run in this process, with its streams."""
    with FakeNode(as_json(node(topics=[topic(depth=3)]))) as fine:
        nodes = [] if words.startswith("data") else [f"--nsqd-http-address={fine.address}"]
        monkeypatch.setattr(sys, "argv", ["gnsqadmin", *words.split(), *nodes])
        with pytest.raises(SystemExit) as end:
            main()
    assert isinstance(end.value.code, int)
    return Result(end.value.code, *capsys.readouterr())


@pytest.mark.parametrize(("words", "expected"), CLOSED_INPUT.items())
def test_every_command_reports_a_closed_standard_input(
    words: str, expected: tuple[int, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    code, out, err = run_here(words, monkeypatch, capsys)
    assert (code, out, err.count("\n")) == (expected[0], "", 1)
    assert err.endswith(f"{expected[1]}\n")


@pytest.mark.parametrize("words", CLOSED_OUTPUT)
def test_every_command_reports_a_closed_standard_output_that_would_lose_messages(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nsqd.dat").write_text('{"topics": [], "version": "1.3.0"}')
    monkeypatch.setattr(sys, "stdout", None)
    found = run_here(words.format(tmp_path), monkeypatch, capsys)
    assert found == (1, "", "Error: cannot write standard output: it is closed\n")


def test_every_command_with_a_dash_for_a_stream_is_in_these_tables() -> None:
    parameters = [(words, param.type) for words, command in COMMANDS.items() for param in command.params]
    dashed = {words for words, kind in parameters if isinstance(kind, click.File) or getattr(kind, "allow_dash", False)}
    listed = " ".join([*CLOSED_INPUT, *CLOSED_OUTPUT])
    assert [words for words in dashed if words not in listed] == []
    assert dashed


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_a_reader_that_goes_away_ends_it_quietly(option: list[str]) -> None:
    with FakeNode(as_json(node(topics=[topic()]))) as fine:
        reader, writer = os.pipe()
        os.close(reader)
        command = [*COMMAND, "stats", "--nsqd-http-address", fine.address, *option]
        process = subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, env=environment())
        os.close(writer)
        _, err = process.communicate(timeout=DEADLINE)
    assert err == b""
    assert process.returncode == 1


ACTIONS = {
    "topic create u": "done",
    "topic pause t": "done",
    "topic unpause t": "already",
    "topic empty t --yes": "done",
    "topic delete t --yes": "done",
    "channel create t d": "done",
    "channel pause t c": "done",
    "channel unpause t c": "already",
    "channel empty t c --yes": "done",
    "channel delete t c --yes": "done",
    "config set log_level debug": None,
}


@pytest.mark.parametrize(("words", "expected"), ACTIONS.items())
def test_actions_beside_nodes_that_hang_recover_or_are_dead(
    nsqd_factory: DaemonFactory, words: str, expected: str | None
) -> None:
    well, recovering, hanging = nsqd_factory(), nsqd_factory(), nsqd_factory()
    for daemon in (well, recovering, hanging):
        create(daemon, "t", "c")
    dead = f"127.0.0.1:{free_port()}"
    logged = well.log()
    for daemon in (recovering, hanging):
        daemon.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        flags = [*at(well, recovering, hanging), f"--nsqd-http-address={dead}", "--timeout=2"]
        running = pool.submit(gnsqadmin, *words.split(), "--json", *flags)
        eventually(lambda: well.log() != logged, "a request")
        recovering.send_signal(signal.SIGCONT)
        result = running.result()
    assert result.code == 1
    assert sorted(result.err.splitlines()) == sorted(
        [
            f"Error: nsqd at {address(hanging)}: no complete answer within 2 s",
            f"Error: nsqd at {dead}: connection refused",
        ]
    )
    nodes = json.loads(result.out)["nodes"]
    assert [node["address"] for node in nodes if node["error"]] == [address(hanging), dead]
    if expected:
        assert [node["result"] for node in nodes] == [expected, expected, "failed", "failed"]
