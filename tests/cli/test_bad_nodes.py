"""Nodes that hang, lie or are something else: one plain error line that names what was wrong, whatever they do."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from errno import ECONNRESET
from pathlib import Path
from typing import Any

import click
import pytest

from cli.fake_nsqd import FakeServer, channel, client, node, peeked, topic
from cli.gnsqadmin import (
    COMMAND,
    FakeNode,
    RunResult,
    Terminal,
    ctrl_c,
    document,
    environment,
    failure,
    gnsqadmin,
    http_answer,
    ok,
    on_terminal,
    plain,
    start,
)
from cli.nodes import at
from documentation.writers import load_writer
from kit.daemons import DEADLINE
from nsqadmin_cli.cli import main

RunHere = Callable[[str], RunResult]

COMMANDS = load_writer("write_gnsqadmin").all_commands()
NOT_JSON = "answered something that is not JSON; is this the HTTP address of an nsqd?"
NOT_HTTP = "does not answer in HTTP; is this the TCP address of an nsqd?"
NOT_NSQD = "answered JSON that is not an nsqd's:"
CUT = "closed the connection in the middle of its answer"
OK = b"HTTP/1.1 200 OK\r\n"


def as_json(document: object) -> bytes:
    return http_answer(json.dumps(document).encode())


BAD_ANSWERS = {
    "nothing": (b"", NOT_HTTP),
    "no HTTP": (b"\0\0\0\x12\0\0\0\x01E_BAD_PROTOCOL\n", NOT_HTTP),
    "cut short": (OK + b"Content-Length: 99\r\n\r\n{}", CUT),
    "cut chunk": (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", CUT),
    "many headers": (OK + b"X: y\r\n" * 200, "does not answer in valid HTTP (HTTPException)"),
    "HTML": (http_answer(b"<html>\x1b[31m</html>"), NOT_JSON),
    "bytes": (http_answer(b"\xff\xfe\xfd"), NOT_JSON),
    "compressed": (OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b" " * 10_000_000), NOT_JSON),
    "deep JSON": (http_answer(b'{"x":' + b"[" * 100_000), NOT_JSON),
    "half a surrogate pair": (as_json(node(version="\ud800")), NOT_JSON),
    "nsqlookupd": (http_answer(b'{"message":"NOT_FOUND"}', "404 Not Found"), "answered HTTP 404 (NOT_FOUND)"),
    "TLS required, no port": (
        http_answer(b'{"message": "TLS_REQUIRED", "https_port": 0}', "403 Forbidden"),
        "answered HTTP 403 (TLS_REQUIRED)",
    ),
    "HTTPS": (
        http_answer(b"Client sent an HTTP request to an HTTPS server.\n", "400 Bad Request", "text/plain"),
        "answered HTTP 400 (Client sent an HTTP request to an HTTPS server.)",
    ),
    "control bytes": (http_answer(b'{"message":"a\\u001b[2J\\nb"}', "500 X"), r"answered HTTP 500 (a\x1b[2J\nb)"),
    "redirect": (http_answer(b"<html>", "301 Moved", "text/html"), "answered HTTP 301 (Moved)"),
    "list": (as_json([]), f"{NOT_NSQD} Expected `object`, got `array`"),
    "other JSON": (as_json({"status_code": 200}), f"{NOT_NSQD} Object missing required field `version`"),
    "no topics": (
        as_json({"version": "", "health": "", "start_time": 1}),
        f"{NOT_NSQD} Object missing required field `topics`",
    ),
    "topics": (as_json(node(topics={})), f"{NOT_NSQD} Expected `array | null`, got `object` - at `$.topics`"),
    "depth": (
        as_json(node(topic("t"), topic("u", depth=True))),
        f"{NOT_NSQD} Expected `int`, got `bool` - at `$.topics[1].depth`",
    ),
    "huge depth": (
        as_json(node(topic("t", depth=10**4000))),
        f"{NOT_NSQD} Expected `int` <= 9223372036854775807 - at `$.topics[0].depth`",
    ),
    "channel": (
        as_json(node(topic("t", {}))),
        f"{NOT_NSQD} Object missing required field `channel_name` - at `$.topics[0].channels[0]`",
    ),
}


@pytest.mark.parametrize("answer, reason", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_a_bad_answer_is_one_line_of_error(answer: bytes, reason: str) -> None:
    with FakeNode(answer) as bad:
        assert failure("stats", *at(bad)) == f"nsqd at {bad.address}: {reason}"


DRAIN = {"draining": True, "remaining": 1, "messages": 0, "holding": []}
HOLDER = {"topic": 1, "channel": "", "messages": 1, "remark": ""}
MESSAGE = {"id": "1", "timestamp": 1, "attempts": 1, "size": 1, "body": None, "body_base64": "?"}
RULES = {"rate": 1.5, "burst": 1, "ordered": True, "idle_timeout": 10**400}
LOG = {"epoch": "0e", "first": 1, "next": 2, "first_published": None, "last_published": None, "bytes": 0, "at": None}
# A command, what it asks for, an answer that is something else, and the reason.
OTHER_ANSWERS: list[tuple[str, str, object, str]] = [
    ("drain status", "/drain", DRAIN | {"messages": -1}, "Expected `int` >= 0 - at `$.messages`"),
    ("drain status", "/drain", DRAIN | {"holding": [HOLDER]}, "Expected `str`, got `int` - at `$.holding[0].topic`"),
    ("channel deferred t c", "/channel/deferred", {"deferred": 1, "due": [{"within": 1}], "messages": []},
     "Object missing required field `messages` - at `$.due[0]`"),
    ("peek t c", "/channel/peek", {"depth": 1, "backend_depth": 0, "messages": [MESSAGE]},
     "Invalid base64 encoded string - at `$.messages[0].body_base64`"),
    ("channel rules t c", "/channel/rules", RULES, "Expected `int` <= 9223372036854775807 - at `$.idle_timeout`"),
    ("channel rewind t c --to first --dry-run", "/channel/rewind", {"messages": 1, "first": "x"},
     "Expected `int | null`, got `str` - at `$.first`"),
    ("topic show t", "/topic/retention", {"bytes": 1, "time": 0, "messages": 1},
     "Object missing required field `since`"),
    ("topic range t --at first", "/topic/range", LOG, "Expected `int`, got `null` - at `$.at`"),
]  # fmt: skip


@pytest.mark.parametrize("words, path, other, reason", OTHER_ANSWERS)
def test_an_answer_of_another_form_is_an_error_with_the_path_of_the_value(
    words: str, path: str, other: object, reason: str
) -> None:
    bad = FakeServer({"/stats": [node(topic("t", channel("c")))], path: [other]})
    code, _, err = gnsqadmin(*words.split(), *at(bad.address))
    assert (code, err) == (1, f"Error: nsqd at {bad.address}: {NOT_NSQD} {reason}\n")


def test_an_unknown_host_and_a_lost_connection_are_errors(run_here: RunHere, monkeypatch: pytest.MonkeyPatch) -> None:
    error = failure("stats", *at("no-such-host.invalid:4151"))
    assert error.startswith("nsqd at no-such-host.invalid:4151: cannot resolve the host name: ")

    def reset(*args: object) -> None:
        raise ConnectionResetError(ECONNRESET, "Connection reset by peer")

    monkeypatch.setattr("socket.create_connection", reset)
    code, out, err = run_here("stats")
    assert code == 1
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith(f": {NOT_HTTP}\n")


def test_a_terminal_shows_that_answers_take_long() -> None:
    with FakeNode(hangs=True) as hanging, FakeNode(as_json(node(topic("t")))) as fine:
        with Terminal(100, 24, "stats", f"--timeout={DEADLINE}", *at(hanging, fine)) as slow:
            slow.wait_for("waiting for answers", "1 / 2 nodes")
        quick = on_terminal(100, "stats", *at(fine))
        in_a_pipe = gnsqadmin("stats", "--timeout=1.5", *at(hanging, fine))
    assert (quick.code, "waiting" in quick.out) == (0, False)
    assert "waiting" not in in_a_pipe.out + in_a_pipe.err


def test_unknown_keys_are_ignored_and_go_nulls_are_empty_lists() -> None:
    latency = {"e2e_processing_latency": {"count": 0, "percentiles": []}, "oldest_message_age_seconds": None}
    with FakeNode(as_json(node(topic("t", new=[], channels=None), new=1))) as newer:
        assert document("stats", *at(newer))["nodes"][0]["topics"] == [topic("t", channels=[], **latency)]


def test_wide_characters_keep_the_columns_straight_and_fail_in_no_encoding() -> None:
    with FakeNode(as_json(node(topic("日本語"), topic("abcdef")))) as foreign:
        lines = ok("stats", *at(foreign)).splitlines()
        assert r"\u65e5\u672c" in ok("stats", *at(foreign), PYTHONIOENCODING="ascii")
    wide, narrow = (next(line for line in lines if name in line) for name in ("日本語", "abcdef"))
    assert wide.replace("日本語", "abcdef") == narrow


@pytest.mark.parametrize("words", ["stats --timeout=3600", "doctor --interval=60", "counter --watch=60"])
def test_ctrl_c_ends_it_at_once_and_quietly(words: str) -> None:
    hangs = "--timeout" in words
    with FakeNode(as_json(node()), hangs=hangs) as asked, start(*words.split(), *at(asked)) as process:
        assert asked.asked.wait(DEADLINE)
        code, out, err = ctrl_c(process)
    assert (code, out if hangs else "", err.strip()) == (130, "", "")


HOSTILE = "[bold red]\x1b[2J\x9b0m\r\n\u202e:bomb:[/]\x1b]0;owned\x07宽$(reboot)"
SEEING = {
    "stats": 3,
    "stats --by=channel": 2,
    "stats --by=client": 3,
    "nodes": 1,
    "tree": 4,
    "status": 2,
    "doctor --interval=0.1": 4,
    "channel show t c": 3,
    "peek t c": 1,
    "peek t c --hex": 0,
}


def saying(text: str, name: str = "x") -> FakeServer:
    """Starts a node that says `text` of itself, its consumer and its message, with a topic and a channel of this
    name."""
    texts: Any = dict.fromkeys(("hostname", "remote_address", "version", "user_agent"), text)
    message = peeked(text, id=text, on_disk=True, **dict.fromkeys(("timestamp", "attempts", "size"), 2**63 - 1))
    topics = topic("t", channel("c", client(text, **texts), depth=3)), topic(name, channel(f"-{name}", depth=3))
    return FakeServer({"/stats": [node(*topics, health=f"NOK - {text}")], "/ping": ["OK"], "/channel/peek": [message]})


@pytest.mark.parametrize("words", SEEING)
def test_hostile_texts_are_shown_harmlessly(words: str) -> None:
    """Counts the texts, which every command shows that often at least."""
    with saying(HOSTILE, HOSTILE) as hostile:
        command = [*words.split(), *at(hostile)]
        printed = [gnsqadmin(*command, "-o", form).out for form in ("table", "csv", "json")]
        drawn = plain(on_terminal(200, *command, NO_COLOR="1").out).replace("\r", "")  # of what counts down
    for out in (*printed, drawn):
        assert all(char == "\n" or char.isprintable() for char in out)
    assert printed[0].count(HOSTILE.encode("unicode_escape").decode().replace(r"\u5bbd", "宽")) >= SEEING[words]
    topics = json.loads(printed[2])["totals"]["topics"] if words == "stats" else []
    assert not topics or topics[0]["topic_name"] == HOSTILE


@pytest.mark.parametrize("words", ["stats --by=client", "tree", "channel show t c"])
def test_endless_texts_are_cut_off(words: str) -> None:
    with saying("x" * 1_000_000) as hostile:
        out = ok(*words.split(), *at(hostile))
    assert "xxx…" in out
    assert len(out) < 20_000


# Standard streams


@pytest.fixture
def fine() -> Iterator[list[str]]:
    """Yields the option that names a node with a topic."""
    with FakeNode(as_json(node(topic("t", depth=3)))) as found:
        yield at(found)


def run(*command: str, stdout: Any = subprocess.PIPE) -> tuple[int, str]:
    """Returns the exit code, and standard error."""
    done = subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, env=environment(), timeout=DEADLINE, text=True
    )
    return done.returncode, done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("option", [[], ["--json"]])
def test_output_that_cannot_be_written(fine: list[str], option: list[str]) -> None:
    """Writes on a full disk, to nobody, and where there is no output."""
    command = [*COMMAND, "stats", *fine, *option]
    with open("/dev/full", "wb") as full:
        assert run(*command, stdout=full) == (1, "Error: cannot write the output: no space left on device\n")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as unread:
        assert run(*command, stdout=unread) == (1, "")
    assert run("sh", "-c", '"$@" >&-', "sh", *command) == (0, "")


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


@pytest.fixture
def run_here(fine: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunHere:
    """Runs gnsqadmin in this process, with its streams."""

    def run_here(words: str) -> RunResult:
        monkeypatch.setattr(sys, "argv", ["gnsqadmin", *words.split(), *([] if words.startswith("data") else fine)])
        with pytest.raises(SystemExit) as end:
            main()
        assert isinstance(end.value.code, int)
        return RunResult(end.value.code, *capsys.readouterr())

    return run_here


def test_a_closed_input_is_an_error(run_here: RunHere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    for words, (expected, error) in CLOSED_INPUT.items():
        code, out, err = run_here(words)
        assert (code, out, err.count("\n")) == (expected, "", 1), words
        assert err.endswith(f"{error}\n"), words


def test_a_closed_output_is_an_error(run_here: RunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nsqd.dat").write_text('{"topics": [], "version": "1.3.0"}')
    monkeypatch.setattr(sys, "stdout", None)
    for words in CLOSED_OUTPUT:
        found = run_here(words.format(tmp_path))
        assert found == (1, "", "Error: cannot write standard output: it is closed\n"), words
    parameters = [(words, param.type) for words, command in COMMANDS.items() for param in command.params]
    dashed = {words for words, kind in parameters if isinstance(kind, click.File) or getattr(kind, "allow_dash", False)}
    listed = " ".join([*CLOSED_INPUT, *CLOSED_OUTPUT])
    assert dashed
    assert [words for words in dashed if words not in listed] == []
