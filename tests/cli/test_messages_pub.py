"""`gnsqadmin pub`: messages that are typed, piped or in a file, to one node or several."""

import json
import subprocess
import time
from pathlib import Path

import click
import pytest

from cli.gnsqadmin import COMMAND, FakeNode, Terminal, environment, gnsqadmin, http_answer
from cli.nodes import Cluster, address, at
from conftest import DaemonFactory
from kit.daemons import DEADLINE, Daemon, eventually, free_port
from kit.http_api import topic_stats
from kit.nsq_client import Client
from kit.traffic import create
from nsqadmin_cli.cli import cli


def consume(nsqd: Daemon, topic: str, count: int) -> list[bytes]:
    """The bodies of that many messages of a topic."""
    with Client(nsqd.tcp_address) as client:
        client.subscribe(topic, "c", rdy=100)
        bodies = []
        for _ in range(count):
            message = client.message()
            bodies.append(message.body)
            client.command(b"FIN " + message.id)
        assert client.nothing_arrives(0.05)
    return bodies


def test_messages_given_are_published_as_they_are(nsqd: Daemon) -> None:
    result = gnsqadmin("pub", "t", "first", "zweite ö", "a\nb", *at(nsqd))
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Published 3 messages (17 B) to t at {address(nsqd)}")  # and the pace, if slow
    no_text = subprocess.run([*COMMAND, "pub", "t", b"\xff\xfe", *at(nsqd)], env=environment(), timeout=DEADLINE)
    assert no_text.returncode == 0
    assert sorted(consume(nsqd, "t", 4)) == [b"a\nb", b"first", "zweite ö".encode(), b"\xff\xfe"]


def test_each_line_of_standard_input_is_a_message(nsqd: Daemon) -> None:
    result = gnsqadmin("pub", "t", "--json", *at(nsqd), stdin="one\n\ntwo\r\nthree")
    assert (result.code, result.err) == (0, "")
    document = json.loads(result.out)
    assert document.pop("seconds") > 0
    nodes = [{"address": address(nsqd), "messages": 3}]
    assert document == {"topic": "t", "messages": 3, "bytes": 12, "nodes": nodes}
    assert sorted(consume(nsqd, "t", 3)) == [b"one", b"three", b"two\r"]
    assert gnsqadmin("pub", "t", *at(nsqd)) == (0, "Published 0 messages (0 B) to t\n", "")


def test_lines_are_published_as_they_come(gnsqd: Daemon) -> None:
    command = [*COMMAND, "pub", "t", *at(gnsqd)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment()) as process:
        assert process.stdin is not None
        for number in range(1, 4):
            process.stdin.write(b"%d\n" % number)
            process.stdin.flush()
            eventually(lambda: _count(gnsqd, "t") == number, "published without waiting for more")  # noqa: B023
        process.stdin.close()
        assert process.wait(DEADLINE) == 0


def _count(nsqd: Daemon, topic: str) -> int:
    return sum(found["message_count"] for found in nsqd.stats(topic)["topics"])


def test_a_file_is_cut_at_the_delimiter(gnsqd: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "messages"
    for topic, (delimiter, separator) in enumerate([(r"\0", b"\0"), (",", b","), (r"\x1e", b"\x1e")]):
        file.write_bytes(separator.join([b"a\nb", b"", b"c", b"d"]))
        assert gnsqadmin("pub", f"t{topic}", "--file", str(file), "--delimiter", delimiter, *at(gnsqd)).code == 0
        assert sorted(consume(gnsqd, f"t{topic}", 3)) == [b"a\nb", b"c", b"d"]


def test_a_whole_file_is_one_message(gnsqd: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "picture"
    file.write_bytes(bytes(range(256)) * 1000)
    assert gnsqadmin("pub", "t", "--whole", "--file", str(file), *at(gnsqd)).code == 0
    assert consume(gnsqd, "t", 1) == [file.read_bytes()]


def test_many_messages_go_in_large_batches_and_all_arrive(nsqd: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "many"
    file.write_bytes(b"".join(b"%d\n" % number for number in range(30_000)))
    create(nsqd, "t", "c")
    assert gnsqadmin("pub", "t", "--file", str(file), *at(nsqd)).code == 0
    assert topic_stats(nsqd, "t")["message_count"] == 30_000
    assert topic_stats(nsqd, "t")["message_bytes"] == file.stat().st_size - 30_000


def test_messages_are_deferred(nsqd: Daemon) -> None:
    create(nsqd, "t", "c")
    assert gnsqadmin("pub", "t", "later", "much later", "--defer", "1h", *at(nsqd)).code == 0
    eventually(lambda: nsqd.channel_stats("t", "c")["deferred_count"] == 2, "deferred")


def test_the_rate_is_kept(gnsqd: Daemon) -> None:
    result = gnsqadmin("pub", "t", "x", "--repeat", "60", "--rate", "100", "--json", *at(gnsqd))
    assert json.loads(result.out)["messages"] == 60
    assert json.loads(result.out)["seconds"] >= 0.45  # nothing holds back the first tenth of a second


def test_several_nodes_take_turns(nsqd_factory: DaemonFactory) -> None:
    nodes = [nsqd_factory(), nsqd_factory()]
    result = gnsqadmin("pub", "t", "x", "--repeat", "8000", "-o", "csv", *at(*nodes))
    assert result.out == "node,messages\n" + "".join(sorted(f"{address(node)},4000\n" for node in nodes))
    assert [topic_stats(node, "t")["message_count"] for node in nodes] == [4000, 4000]


@pytest.mark.peer
def test_nodes_are_found_by_nsqlookupd(cluster: Cluster) -> None:
    assert gnsqadmin("pub", "t", "x", cluster.flag).code == 0
    assert sum(_count(node, "t") for node in cluster.nodes) == 1


def test_a_node_that_is_down_is_left_out(gnsqd: Daemon) -> None:
    down = f"--nsqd-http-address=127.0.0.1:{free_port()}"
    result = gnsqadmin("pub", "t", "x", "--repeat", "6000", DOWN, *at(gnsqd))
    assert (result.code, result.err) == (0, "")
    assert topic_stats(gnsqd, "t")["message_count"] == 6000
    at_once = gnsqadmin("pub", "t", "x", down)
    assert at_once == (
        1,
        "",
        f"Error: nsqd at {down.partition('=')[2]}: connection refused; 0 messages were published\n",
    )


def test_a_draining_node_is_named(gnsqd: Daemon) -> None:
    create(gnsqd, "t", "c")
    assert gnsqadmin("pub", "t", "held", *at(gnsqd)).code == 0
    assert gnsqd.http("POST", "/drain")[0] == 200
    code, out, err = gnsqadmin("pub", "t", "x", *at(gnsqd))
    assert (code, out) == (1, "")
    assert err == f"Error: nsqd at {address(gnsqd)}: answered HTTP 503 (DRAINING); 0 messages were published\n"


def test_a_message_too_big_is_named_and_those_before_it_are_published(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--max-msg-size=100")
    lines = "\n".join(["small"] * 10 + ["x" * 101])
    code, out, err = gnsqadmin("pub", "t", *at(nsqd), stdin=lines)
    assert (code, out) == (1, "")
    expected = (
        f"Error: a message of 101 bytes is larger than nsqd at {address(nsqd)} accepts; 10 messages were published\n"
    )
    assert err == expected
    assert topic_stats(nsqd, "t")["message_count"] == 10


def test_batches_that_a_node_finds_too_large_are_halved(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--max-body-size=5000", "--max-msg-size=1000")
    assert gnsqadmin("pub", "t", "x" * 90, "--repeat", "500", *at(nsqd)).code == 0
    assert topic_stats(nsqd, "t")["message_count"] == 500


@pytest.mark.parametrize(
    "args, reason",
    [
        (["t", ""], "A message cannot be empty."),
        (["t", "x", "--file", "y"], "Give messages or a file, not both."),
        (["t", "--repeat", "3"], "--repeat requires a MESSAGE."),
        (["t", "--delimiter", "ab"], "is not a single byte"),
        (["t:x", "x"], "is not a valid topic name"),
        (["t", "x", "--rate", "0"], "0 is not in the range"),
        (["t", "x", "--defer", "soon"], "is not a duration"),
    ],
)
def test_wrong_usage_is_told(args: list[str], reason: str) -> None:
    with pytest.raises(click.UsageError) as error:
        cli.main(["pub", *args], standalone_mode=False)
    assert reason in error.value.format_message()


def test_a_file_that_cannot_be_read_is_one_line_of_error(gnsqd: Daemon, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    code, out, err = gnsqadmin("pub", "t", "--file", str(missing), *at(gnsqd))
    assert (code, out) == (1, "")
    assert err == f"Error: cannot read {missing}: no such file or directory; 0 messages were published\n"


def test_a_node_that_hangs_is_given_up_after_the_timeout() -> None:
    with FakeNode(hangs=True) as silent:
        started = time.monotonic()
        result = gnsqadmin("pub", "t", "x", "--timeout=0.4", *at(silent))
    reason = f"Error: nsqd at {silent.address}: no complete answer within 0.4 s; 0 messages were published\n"
    assert result == (1, "", reason)
    assert time.monotonic() - started < DEADLINE / 2


def test_a_node_that_refuses_with_hostile_text_is_shown_harmlessly() -> None:
    with FakeNode(http_answer(b"\x1b[31m" * 10, "500 Oops", "text/plain")) as hostile:
        # The fake node takes the end of this body for the end of the request's head.
        code, out, err = gnsqadmin("pub", "t", "x\r\n\r\n", *at(hostile))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert r"\x1b[31m" in err
    assert "\x1b" not in err


def test_a_terminal_is_typed_at_and_shows_progress_of_pipes(gnsqd: Daemon) -> None:
    with Terminal(80, 24, "pub", "t", *at(gnsqd)) as terminal:
        terminal.wait_for("Type one message per line; Ctrl-D ends.")
        terminal.type("hello\n")
        eventually(lambda: _count(gnsqd, "t") == 1, "published")
        terminal.type("\x04")
        terminal.wait_for("Published 1 message (5 B) to t")
        assert terminal.end() == 0
    with Terminal(80, 24, "pub", "t", "x", "--repeat", "300", "--rate", "200", *at(gnsqd)) as terminal:
        terminal.wait_for("publishing", "/ 300 messages")
        assert terminal.end() == 0


def test_ctrl_c_says_what_was_published(gnsqd: Daemon) -> None:
    with Terminal(80, 24, "pub", "t", "x", "--repeat", "100000", "--rate", "50", *at(gnsqd)) as terminal:
        eventually(lambda: _count(gnsqd, "t") > 0, "some are published")
        terminal.type("\x03")
        terminal.wait_for("Interrupted: ", "published")
        assert terminal.end() == 130
