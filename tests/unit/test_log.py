"""Log lines and where they end up."""

import io
import os
import re
import sys

import pytest

from gnsqd.log import Level, Logger

LINE = r"\[x\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} "


def test_line_has_the_shape_of_gos_log_package() -> None:
    stream = io.StringIO()
    Logger("[x] ", Level.INFO, stream).info("TOPIC(%s): %d", "t", 3)
    assert re.fullmatch(LINE + r"INFO: TOPIC\(t\): 3\n", stream.getvalue())


def test_time_is_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_012_345_678)
    monkeypatch.setenv("TZ", "UTC-5:30")
    import time

    time.tzset()
    try:
        Logger("", Level.INFO, stream).info("x")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert stream.getvalue() == "2023/11/15 03:43:20.012345 INFO: x\n"


def test_lines_below_the_level_are_dropped_and_the_level_can_change() -> None:
    stream = io.StringIO()
    log = Logger("", Level.WARN, stream)

    def say_everything() -> list[str]:
        stream.seek(0)
        stream.truncate()
        for method in (log.debug, log.info, log.warn, log.error, log.fatal):
            method("x")
        return re.findall(r" ([A-Z]+): x\n", stream.getvalue())

    assert say_everything() == ["WARNING", "ERROR", "FATAL"]
    log.level = Level.DEBUG
    assert say_everything() == ["DEBUG", "INFO", "WARNING", "ERROR", "FATAL"]
    log.level = Level.FATAL
    assert say_everything() == ["FATAL"]


def test_percent_sign_without_arguments_is_text() -> None:
    stream = io.StringIO()
    Logger("", Level.INFO, stream).info("100%s")
    assert stream.getvalue().endswith("INFO: 100%s\n")


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


def test_text_that_is_no_utf_8_is_escaped() -> None:
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as reader:
        with open(write_end, "w") as writer:
            Logger("", Level.INFO, writer).info("%s", b"\xff\xc3\xa9".decode("utf-8", "surrogateescape"))
        assert reader.read().endswith(b"INFO: \\udcff\xc3\xa9\n")


def test_control_characters_are_escaped_and_all_else_is_as_it_came() -> None:
    stream = io.StringIO()
    Logger("", Level.INFO, stream).info("%s", '\n\r\t\0\x1b[2J\x7f\x9b\x85\u2028 \\ "\xa0\u00e9\U0001f600')
    text = stream.getvalue().partition("INFO: ")[2]
    assert text == '\\n\\r\\t\\x00\\x1b[2J\\x7f\\x9b\\x85\\u2028 \\ "\xa0\u00e9\U0001f600\n'


def test_stack_keeps_its_lines() -> None:
    stream = io.StringIO()
    Logger("", Level.INFO, stream).error("%s died", "a\nb", stack="Traceback:\n  x")
    assert stream.getvalue().endswith("ERROR: a\\nb died\nTraceback:\n  x\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_full_stream_loses_the_line_only() -> None:
    with open("/dev/full", "w") as stream:
        Logger("", Level.INFO, stream).info("lost")


def test_closed_stream_loses_the_line_only(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = open(os.devnull, "w")  # noqa: SIM115 - closed on purpose
    log = Logger("", Level.INFO, stream)
    stream.close()
    log.info("lost")
    monkeypatch.setattr(sys, "stderr", None)
    Logger("", Level.INFO).info("lost")


def test_broken_pipe_loses_the_line_only() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "w") as stream:
        Logger("", Level.INFO, stream).info("lost")
