"""`gnsqadmin pub`: messages that are typed, piped or in a file, to one node or several."""

import os
import subprocess
from pathlib import Path

from cli.gnsqadmin import COMMAND, Terminal, document, environment, failure, ok
from cli.nodes import DOWN, address, at, bodies
from kit.daemons import DEADLINE, Instance, eventually
from kit.traffic import DaemonFactory, create, post, wait_for


def count(nsqd: Instance, topic: str = "t") -> int:
    return sum(found["message_count"] for found in nsqd.stats(topic)["topics"])


def test_messages_given_are_published_as_they_are(nsqd: Instance) -> None:
    out = ok("pub", "t", "first", "zweite ö", "a\nb", *at(nsqd))
    assert out.startswith(f"Published 3 messages (17 B) to t at {address(nsqd)}")  # and the pace, if slow
    no_text = subprocess.run([*COMMAND, "pub", "t", b"\xff\xfe", *at(nsqd)], env=environment(), timeout=DEADLINE)
    assert no_text.returncode == 0
    assert bodies(nsqd, "t", 4) == [b"a\nb", b"first", "zweite ö".encode(), b"\xff\xfe"]
    ok("pub", "t", "later", "much later", "--defer", "1h", *at(nsqd))
    wait_for(nsqd, "t", "c", deferred_count=2)


def test_each_line_of_standard_input_is_a_message(nsqd: Instance) -> None:
    found = document("pub", "t", *at(nsqd), stdin="one\n\ntwo\r\nthree")
    assert found.pop("seconds") > 0
    assert found == {"topic": "t", "messages": 3, "bytes": 12, "nodes": [{"address": address(nsqd), "messages": 3}]}
    assert bodies(nsqd, "t", 3) == [b"one", b"three", b"two\r"]
    assert ok("pub", "t", *at(nsqd)) == "Published 0 messages (0 B)\n"


def test_lines_are_published_as_they_come(gnsqd: Instance) -> None:
    command = [*COMMAND, "pub", "t", *at(gnsqd)]
    reader, writer = os.pipe()
    with os.fdopen(reader) as stdin, subprocess.Popen(command, stdin=stdin, env=environment()) as process:
        for number in range(1, 4):
            os.write(writer, b"%d\n" % number)
            eventually(lambda: count(gnsqd) == number, "published without waiting for more")  # noqa: B023
        os.close(writer)
        assert process.wait(DEADLINE) == 0


def test_a_file_is_cut_at_the_delimiter(gnsqd: Instance, tmp_path: Path) -> None:
    file = tmp_path / "messages"
    for topic, delimiter, separator in (("t", r"\0", b"\0"), ("u", ",", b","), ("v", r"\x1e", b"\x1e")):
        file.write_bytes(separator.join([b"a\nb", b"", b"c", b"d"]))
        ok("pub", topic, "--file", str(file), "--delimiter", delimiter, *at(gnsqd))
        assert bodies(gnsqd, topic, 3) == [b"a\nb", b"c", b"d"]
    ok("pub", "whole", "--whole", "--file", str(file), *at(gnsqd))
    assert bodies(gnsqd, "whole", 1) == [file.read_bytes()]


def test_nodes_take_turns_at_the_rate_and_draining_ones_are_named(gnsqd_factory: DaemonFactory) -> None:
    nodes = [gnsqd_factory(), gnsqd_factory()]
    found = document("pub", "rated", "x", "--repeat", "60", "--rate", "100", *at(*nodes))
    assert found["messages"] == 60
    assert found["seconds"] >= 0.45
    out = ok("pub", "t", "x", "--repeat", "8000", "-o", "csv", *at(*nodes))
    assert out == "node,messages\n" + "".join(sorted(f"{address(node)},4000\n" for node in nodes))
    assert [count(node) for node in nodes] == [4000, 4000]
    ok("pub", "t", "x", "--repeat", "6000", *at(DOWN, nodes[1]))
    assert count(nodes[1]) == 10_000
    post(nodes[0], "/drain")
    for node, reason in ((DOWN, "connection refused"), (address(nodes[0]), "answered HTTP 503 (DRAINING)")):
        assert failure("pub", "t", "x", *at(node)) == f"nsqd at {node}: {reason}; 0 messages were published"


def test_a_message_too_big_is_named_and_batches_too_large_are_halved(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--max-body-size=5000", "--max-msg-size=100")
    error = failure("pub", "t", *at(nsqd), stdin="\n".join(["small"] * 10 + ["x" * 101]))
    reason = f"a message of 101 bytes is larger than nsqd at {address(nsqd)} accepts"
    assert error == f"{reason}; 10 messages were published"
    assert count(nsqd) == 10
    ok("pub", "u", "x" * 90, "--repeat", "500", *at(nsqd))
    assert count(nsqd, "u") == 500


def test_a_file_that_is_missing_is_one_line_of_error(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    error = failure("pub", "t", "--file", str(missing), *at(DOWN))
    assert error == f"cannot read {missing}: no such file or directory; 0 messages were published"


def test_a_terminal_is_typed_at_and_shows_progress_of_pipes(gnsqd: Instance) -> None:
    create(gnsqd, "t")
    with Terminal(80, 24, "pub", "t", *at(gnsqd)) as terminal:
        terminal.wait_for("Type one message per line; Ctrl-D ends.")
        terminal.type("hello\n")
        eventually(lambda: count(gnsqd) == 1, "published")
        terminal.type("\x04")
        terminal.wait_for("Published 1 message (5 B) to t")
        assert terminal.end() == 0
    with Terminal(80, 24, "pub", "t", "x", "--repeat", "300", "--rate", "200", *at(gnsqd)) as terminal:
        terminal.wait_for("publishing", "/ 300 messages")
        assert terminal.end() == 0
    before = count(gnsqd)
    with Terminal(80, 24, "pub", "t", "x", "--repeat", "100000", "--rate", "50", *at(gnsqd)) as terminal:
        eventually(lambda: count(gnsqd) > before, "some are published")
        terminal.type("\x03")
        terminal.wait_for("Interrupted: ", "published")
        assert terminal.end() == 130
