"""The output of the log: a reader that does not read, lines of JSON for machines, and warnings of ours."""

import http.client
import json
import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from kit.daemons import DEADLINE, Instance, address_of, eventually, free_port, open_socket, own_command, run_to_end
from kit.http_api import ask, read_all
from kit.lookupds import EMBEDDED, LookupdInside, own_lookupd_command
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory

LINE = re.compile(rb"\[nsq(?:lookup)?d\] [\d/]{10} [\d:.]{15} (?:INFO|WARNING): .*")
LONG = "x" * 8000  # characters of a request's path


@contextmanager
def unread(kind: str, command: list[str], *flags: str) -> Iterator[tuple[int, Callable[[], bytes]]]:
    """Runs a daemon that logs to a pipe or socket; yields its HTTP port, and a function that reads all there is."""
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


def test_client_at_the_wrong_port_is_a_warning_once_a_minute(gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory(*EMBEDDED)
    lookupd = LookupdInside(nsqd)
    of_lookupd = address_of(lookupd.tcp_address), address_of(lookupd.http_address)
    expected = []
    for daemon, magic, (tcp, web) in (
        ("nsqd", b"  V2", (nsqd.tcp_address, nsqd.http_address)),
        ("nsqlookupd", b"  V1", of_lookupd),
    ):
        for kind, protocol, here, there, sent in (
            ("HTTP", "the TCP protocol", web, tcp, (magic, magic + b"IDENTIFY\n\0\0\0\2{}")),
            ("TCP", "HTTP", tcp, web, (b"POST /pub HTTP/1.1\r\n\r\n", b"GET /ping HTTP/1.1\r\n\r\n")),
        ):
            names = []
            for data in sent:
                with open_socket(here, DEADLINE) as client:
                    names.append("{}:{}".format(*client.getsockname()))
                    client.sendall(data)
                    read_all(client)
            where = "{}:{}".format(*there)
            expected.append((daemon, f"{kind}: client({names[0]}) uses {protocol}, which is at {where}"))
    assert re.findall(r"\[(\w+)\] \S+ \S+ WARNING: (.* uses .*)", nsqd.log()) == expected
    assert nsqd.log().count(" bad protocol magic 'GET '\n") == nsqd.log().count(" bad protocol magic 'POST'\n") == 2


def objects(log: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in log.splitlines()]


def fields(log: str, text: str) -> dict[str, str]:
    """Returns the only line with this text, without what every line has."""
    (line,) = (line for line in objects(log) if line["text"] == text)
    return {name: value for name, value in line.items() if name not in ("time", "daemon", "text")}


def test_json_lines_have_what_the_text_names(tmp_path: Path) -> None:
    flags = "--log-format=json", "--log-prefix=[node-7] ", "--channel-idle-timeout=1ms"
    with Instance(own_command(), tmp_path / "data", *flags) as nsqd:
        with NSQClient(nsqd.tcp_address) as client:
            client.subscribe("t", "c")
            local = "{}:{}".format(*client.sock.getsockname())
            client.command(b"BOGUS")
            client.recv_until_closed()
        ask(nsqd, "GET /TOPIC(forged)%0a[127.0.0.1:1]")
        eventually(lambda: "CHANNEL(t:c): paused" in nsqd.log())
        nsqd.terminate()
        log = nsqd.log()
    (idle,) = (line for line in objects(log) if line["text"].startswith("CHANNEL(t:c): paused"))
    assert (idle["level"], idle["topic"], idle["channel"]) == ("WARNING", "t", "c")
    assert fields(log, "TOPIC(t): created") == {"level": "INFO", "topic": "t"}
    assert fields(log, "TOPIC(t): new channel(c)") == {"level": "INFO", "topic": "t", "channel": "c"}
    assert fields(log, f"TCP: new client({local})") == {"level": "INFO", "client": local}
    assert fields(log, f"[{local}] - E_INVALID invalid command BOGUS") == {"level": "ERROR", "client": local}
    assert fields(log, f"PROTOCOL(V2): [{local}] exiting ioloop") == {"level": "INFO", "client": local}
    (forged,) = (line for line in objects(log) if "forged" in line["text"])
    assert set(forged) == {"time", "level", "daemon", "client", "text"}
    for line in objects(log):
        assert line["daemon"] == "node-7"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}[+-]\d\d:\d\d", line["time"])
        assert abs(datetime.now().astimezone() - datetime.fromisoformat(line["time"])) < timedelta(minutes=5)


@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd"])
def test_reason_not_to_start_is_json_when_the_options_are_known(program: str, tmp_path: Path) -> None:
    command = own_command() if program == "nsqd" else own_lookupd_command()
    result = run_to_end(command, "--log-format=json", "--tcp-address=bogus:bogus", cwd=tmp_path)
    assert result.returncode == 1
    last = objects(result.stderr)[-1]
    assert (last["level"], last["daemon"]) == ("FATAL", program)
    assert "lookup tcp/bogus: unknown port" in last["text"]
    result = run_to_end(command, "--log-format=xml", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.endswith(' - --log-format must be text or json, not "xml"\n')
