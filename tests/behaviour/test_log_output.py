"""Where lines of the log go when nobody reads them."""

import http.client
import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit.daemons import DEADLINE, eventually, free_port, own_command
from kit.lookupds import own_lookupd_command

LINE = re.compile(rb"\[nsq(?:lookup)?d\] [\d/]{10} [\d:.]{15} (?:INFO|WARNING): .*")
LONG = "x" * 8000  # characters of a request's path


@contextmanager
def unread(kind: str, command: list[str], *flags: str) -> Iterator[tuple[int, Callable[[], bytes]]]:
    """A daemon that writes its log to a pipe or socket: its HTTP port, and what reads all that is there."""
    theirs, ours = [end.detach() for end in socket.socketpair()] if kind == "socket" else os.pipe()[::-1]
    port = free_port()
    flags = ("--tcp-address=127.0.0.1:0", f"--http-address=127.0.0.1:{port}", *flags)
    process = subprocess.Popen([*command, *flags], stderr=theirs)
    os.set_blocking(ours, False)

    def read() -> bytes:
        data = b""
        try:
            while piece := os.read(ours, 1 << 16):
                data += piece
        except BlockingIOError:
            pass
        return data

    try:
        yield port, read
        assert os.get_blocking(theirs), "the shell writes to the same pipe"
        process.terminate()
        assert process.wait(DEADLINE) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("program, kind", [("gnsqd", "pipe"), ("gnsqd", "socket"), ("gnsqlookupd", "pipe")])
def test_daemon_goes_on_without_lines_that_nobody_reads(program: str, kind: str, tmp_path: Path) -> None:
    is_nsqd = program == "gnsqd"
    command, flags = (own_command(), [f"--data-path={tmp_path}"]) if is_nsqd else (own_lookupd_command(), [])
    with unread(kind, command, *flags) as (port, read):
        log = b""

        def has(text: bytes) -> bool:
            nonlocal log
            log += read()
            return text in log

        eventually(lambda: has(b" HTTP: listening on "))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)

        def get(path: str) -> bytes:
            connection.request("GET", path)
            return connection.getresponse().read()

        count = 512  # four megabytes
        for number in range(count):
            get(f"/{number}/{LONG}")
        assert get("/ping") == b"OK"
        if is_nsqd:
            match = re.search(rb"^gnsqd_log_lines_dropped_total (\S+)$", get("/metrics"), re.MULTILINE)
            assert match is not None
            assert 0 < float(match[1]) <= count + 1
        log += read()
        get("/last")
        eventually(lambda: has(b" 404 GET /last "))
        connection.close()
    lines = log.removesuffix(b"\n").split(b"\n")
    assert all(map(LINE.fullmatch, lines))
    requests = [line for line in lines if b" GET /" in line]
    dropped = re.findall(rb" WARNING: LOG: (\d+) lines were dropped, as stderr did not take them$", log, re.MULTILINE)
    assert b" 404 GET /last " in lines[-1]
    assert all(LONG.encode() in line for line in requests if re.search(rb" /\d+/", line))
    assert dropped
    others = ["/ping", "/last", "/metrics"] if is_nsqd else ["/ping", "/last"]
    assert len(requests) + sum(map(int, dropped)) == count + len(others)
