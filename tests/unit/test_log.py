"""Log lines and where they end up."""

import io
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import TextIO

import pytest

from gnsqd.log import JSONLogger, Level, Logger


def info(*arguments: object) -> str:
    """The text of the line, behind its level."""
    stream = io.StringIO()
    Logger("[x] ", Level.INFO, stream).info(*arguments)  # type: ignore[arg-type]
    match = re.fullmatch(r"\[x\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: (.*)\n", stream.getvalue())
    assert match is not None, stream.getvalue()
    return match[1]


CONTROL = "\n\r\t\0\x1b[2J\x7f\x9b\x85"
FORMAT = "\u200b\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff\xad\U000e0041\xa0\u3000\ud800"


def test_line_has_the_shape_of_gos_log_package_and_no_character_that_does_not_print() -> None:
    assert info("TOPIC(%s): %d", "t", 3) == "TOPIC(t): 3"
    assert info("100%s") == "100%s"
    assert info("%s", CONTROL) == r"\n\r\t\x00\x1b[2J\x7f\x9b\x85"
    assert info("%s", FORMAT) == FORMAT.encode("unicode_escape").decode()
    assert info("%s", ' \\ "\u00e9\U0001f600') == ' \\ "\u00e9\U0001f600'


def test_time_is_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_012_345_678)
    monkeypatch.setenv("TZ", "UTC-5:30")
    time.tzset()
    try:
        Logger("", Level.INFO, stream).info("x")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert stream.getvalue() == "2023/11/15 03:43:20.012345 INFO: x\n"


def test_level_names_in_any_case() -> None:
    assert [Level.parse(name) for name in ("debug", "Info", "WARN", "error", "fatal")] == list(Level)
    for name in ("trace", "warning", "", "2"):
        with pytest.raises(ValueError) as caught:
            Level.parse(name)
        assert str(caught.value) == f"invalid log level '{name}' (debug, info, warn, error, fatal)"


def test_a_line_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []

    def record(descriptor: int, data: bytes) -> int:
        writes.append(data)
        return len(data)

    with open(os.devnull, "w") as stream:
        log = Logger("", Level.INFO, stream)
        monkeypatch.setattr(os, "write", record)
        log.info("%s", "a" * 100_000)
        log.info("b")
    assert [len(data) > 100_000 for data in writes] == [True, False]
    assert all(data.count(b"\n") == 1 and data.endswith(b"\n") for data in writes)


def test_text_that_is_not_utf_8_is_escaped(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        Logger("", Level.INFO, stream).info("%s", b"\xff\xc3\xa9".decode("utf-8", "surrogateescape"))
    assert (tmp_path / "log").read_bytes().endswith(b"INFO: \\udcff\xc3\xa9\n")


def test_stack_keeps_its_lines() -> None:
    stream = io.StringIO()
    Logger("", Level.INFO, stream).error("%s died", "a\nb", stack="Traceback:\n  x\r\u202e")
    assert stream.getvalue().endswith("ERROR: a\\nb died\nTraceback:\n  x\\r\\u202e\n")


def test_broken_stream_loses_the_line_only(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open("/dev/full", "w") as full, open(write_end, "w") as pipe, open(os.devnull, "w") as closed:
        closed.close()
        for stream in (full, pipe, closed, None):
            monkeypatch.setattr(sys, "stderr", stream)
            Logger("", Level.INFO).info("lost")


@pytest.fixture(params=[True, False], ids=["reopened", "polled"])
def opened(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a pipe or terminal can be opened once more, and as elsewhere."""
    if not request.param:

        def refuse(*_: object) -> int:
            raise PermissionError

        monkeypatch.setattr(os, "open", refuse)


@pytest.fixture
def pipe(opened: None) -> Iterator[tuple[int, TextIO]]:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    with open(write_end, "w") as stream:
        yield read_end, stream
    os.close(read_end)


def read_all(descriptor: int) -> bytes:
    pieces = []
    with suppress(BlockingIOError):
        while True:
            pieces.append(os.read(descriptor, 1 << 16))
    return b"".join(pieces)


def test_full_pipe_drops_lines_and_has_none_in_parts(pipe: tuple[int, TextIO]) -> None:
    log = Logger("", Level.INFO, pipe[1])
    sizes = [10, 3000, 9000, 100_000]  # also more than a pipe takes at once
    lengths = [sizes[number % 4] + number for number in range(100)]
    for length in lengths:
        log.info("%s", "x" * length)
    dropped = log.dropped
    assert dropped
    assert os.get_blocking(pipe[1].fileno())
    text = read_all(pipe[0])
    log.info("%s", "again")
    text += read_all(pipe[0])
    bodies = [line.partition(b" INFO: ")[2] for line in text.splitlines() if b" INFO: " in line]
    assert len(bodies) + dropped == len(lengths) + 1
    assert {len(body) for body in bodies[:-1]} <= set(lengths)
    assert text.splitlines()[-2].endswith(b"WARNING: LOG: %d lines were dropped, as stderr did not take them" % dropped)
    assert bodies[-1] == b"again"


def test_terminal_that_nobody_reads_drops_lines(opened: None) -> None:
    master, slave = os.openpty()
    with open(slave, "w") as stream:
        log = Logger("", Level.INFO, stream)
        in_time = Timer(2, lambda: list(iter(lambda: os.read(master, 1 << 16), b"")))  # a reader, after all
        in_time.daemon = True
        in_time.start()
        for _ in range(1000):
            log.info("%s", "x" * 100)
        assert in_time.is_alive()
        in_time.cancel()
        assert log.dropped
    os.close(master)


@pytest.mark.parametrize(
    "format, arguments, named",
    [
        ("JOURNAL(%s): %d", ("t:c#ephemeral", 1), {"topic": "t", "channel": "c#ephemeral"}),
        ("DISKQUEUE(%s) failed to sync - %s", ("t", "TOPIC(x)"), {"topic": "t"}),
        ("DB: client(%s) %s category:%s key:%s subkey:%s", ("1:2", "REGISTER", "client", "", ""), {"client": "1:2"}),
        ("TOPIC(%s): deleting channel %s", ("t", "c"), {"topic": "t", "channel": "c"}),
        ("CHANNEL(%s): closing", ("c",), {"channel": "c"}),
        ("CHANNEL(%s): paused", ("t:c",), {"topic": "t", "channel": "c"}),
        ("%d %s %s (%s) %s", (200, "GET", "/?channel (x)", "a:1", "1s"), {"client": "a:1"}),
        ("table [%s] is ignored", ("x",), {}),
        ("TOPIC(%s)", (), {}),
    ],
)
def test_json_has_names_from_the_arguments_of_the_format(
    format: str, arguments: tuple[object, ...], named: dict[str, str]
) -> None:
    stream = io.StringIO()
    JSONLogger("", Level.INFO, stream).info(format, *arguments)
    fields = json.loads(stream.getvalue())
    assert fields.pop("text") == (format % arguments if arguments else format)
    assert {name: value for name, value in fields.items() if name not in ("time", "level")} == named


def test_json_has_no_character_that_does_not_print() -> None:
    stream = io.StringIO()
    text = f"{CONTROL}{FORMAT[:-1]}"
    JSONLogger(text, Level.INFO, stream).error("client(%s): %s", text, text, stack=text)
    line = stream.getvalue().removesuffix("\n")
    fields = json.loads(line)
    assert line.isprintable()
    assert (fields["daemon"], fields["client"]) == (text, text)


def test_json_is_one_line_of_unicode_also_with_a_stack(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        JSONLogger("[x] ", Level.INFO, stream).error("%s", '\udcff"\u00e9\n', stack="Traceback:\n  x\n")
    (line,) = (tmp_path / "log").read_text("utf-8").splitlines()
    fields = json.loads(line)
    assert (fields["text"], fields["stack"], fields["daemon"]) == ('\\udcff"\u00e9\\n', "Traceback:\n  x\n", "x")
    assert "\u00e9" in line
