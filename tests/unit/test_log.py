"""Log lines and where they end up."""

import io
import json
import os
import re
import sys
import time
from pathlib import Path
from threading import Timer
from unittest.mock import Mock

import pytest

from gnsqd.log import JSONLogger, Level, Logger


def info(*arguments: object) -> str:
    """Returns the text of the line, behind its level."""
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


@pytest.mark.parametrize("kind, opens", [("terminal", True), ("terminal", False), ("pipe", False)])
def test_stream_that_nobody_reads_drops_lines(monkeypatch: pytest.MonkeyPatch, kind: str, opens: bool) -> None:
    master, slave = os.openpty() if kind == "terminal" else os.pipe()
    if not opens:  # as a system other than Linux does for a pipe
        monkeypatch.setattr(os, "open", Mock(side_effect=PermissionError))
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
