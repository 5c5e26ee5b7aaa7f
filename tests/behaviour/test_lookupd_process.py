"""Flags, config file, exit codes and signals of nsqlookupd: the same words and codes from ours and the real one."""

import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from kit.daemons import DEADLINE, accepted_at_end, address_of, eventually, free_port, run_to_end
from kit.http_api import read_all
from kit.lookupds import (
    REAL_COMMAND,
    LookupdPair,
    Registrant,
    RunningLookupd,
    handles_signals,
    normal,
    own_lookupd_command,
)

pytestmark = pytest.mark.peer

Result = subprocess.CompletedProcess[str]
Run = Callable[..., tuple[Result, Result]]

EXTRA = re.compile(r"%!\(EXTRA \*\w+\.\w+=(.*)\)")  # an error that the real one does not format
ANY_PORTS = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]


@pytest.fixture
def run(tmp_path: Path, peer_binary: Callable[[str], Path]) -> Run:
    """Runs both to their end, with the same flags, in an empty directory; ours comes first."""
    peer_binary("nsqlookupd")

    def run_both(*flags: str) -> tuple[Result, Result]:
        ours, real = (run_to_end(command, *flags, cwd=tmp_path) for command in (own_lookupd_command(), REAL_COMMAND))
        return ours, real

    return run_both


def shown(result: Result) -> tuple[int, str, str]:
    """Returns exit code, stdout and stderr, without dates and our own flags."""
    lines = re.sub(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(\.\d{6})?", "DATE", normal(result.stderr))
    theirs = lines.partition("\nFlags of gnsqlookupd alone:\n")[0]
    return result.returncode, normal(result.stdout), EXTRA.sub(r" - \1", theirs)


@pytest.mark.parametrize(
    "flags",
    [
        ["--help"], ["-h"], ["--version", "--config=/nonexistent"], ["--bogus"], ["---x"], ["--tcp-address"],
        ["--inactive-producer-timeout=60"], ["--inactive-producer-timeout=1x"], ["--tombstone-lifetime", "abc"],
        ["--log-level=trace"], ["--verbose=maybe"], ["--version=2"], ["--config=/nonexistent"], ["--tcp-address=bogus"],
        ["--tcp-address=/tmp/socket"], ["--tcp-address=127.0.0.1:0", "--http-address=bogus", "--log-prefix=x "],
        ["--http-address=127.0.0.1:99999"], ["--tcp-address=999.1.1.1:1"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_ends_at_once_prints_and_exits_as_nsqlookupd(run: Run, flags: list[str]) -> None:
    ours, real = run(*flags)
    assert shown(ours) == shown(real)


def test_address_in_use_is_a_fatal_line(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flag in (f"--tcp-address={address}", f"--http-address={address}"):
            ours, real = run(*ANY_PORTS, flag)
            assert shown(ours) == shown(real)
            assert ours.returncode == 1


@pytest.mark.parametrize("text", [
    'log_level = "trace"', '\ufefflog_level = "trace"', "log_level = 3", "tombstone_lifetime = 1.5",
    "tombstone_lifetime = true", 'inactive_producer_timeout = "60"', 'inactive_producer_timeout = "x"',
])  # fmt: skip
def test_bad_value_in_the_config_file_prints_and_exits_as_nsqlookupd(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "lookupd.cfg").write_text(text)
    ours, real = run("--config=lookupd.cfg")
    assert shown(ours) == shown(real)
    assert ours.returncode == 1


# While it runs


@pytest.fixture
def start(tmp_path: Path, peer_binary: Callable[[str], Path]) -> Iterator[Callable[..., LookupdPair]]:
    peer_binary("nsqlookupd")
    with ExitStack() as stack:

        def start_both(*flags: str) -> LookupdPair:
            ours, real = (
                stack.enter_context(RunningLookupd(command, tmp_path / name, *flags))
                for command, name in ((own_lookupd_command(), "gnsqlookupd"), (REAL_COMMAND, "nsqlookupd"))
            )
            return ours, real

        yield start_both


Start = Callable[..., LookupdPair]


def test_values_of_the_config_file_take_effect_and_flags_win(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "lookupd.cfg"
    config.write_text(
        'broadcast_address = "b"\nlog_prefix = "p "\nlog_level = "debug"\nunknown = 1\nverbose = true\n'
        f'tcp_address = "127.0.0.1:{free_port()}"\ntombstone_lifetime = 300\ninactive_producer_timeout = "1m"\n'
    )
    ours, real = start(f"--config={config}", "--broadcast-address=c", "--log-prefix=q ")
    for lookupd in (ours, real):
        assert lookupd.log().startswith("q ")
        with Registrant(lookupd) as nsqd:
            assert nsqd.identity["broadcast_address"] == "c"
            nsqd.register("t")
            lookupd.ask("/topic/tombstone?topic=t&node=b:2", "POST")
            eventually(lambda one=lookupd: one.found("t") == {1})  # type: ignore[misc]  # after 300 ms
    keys = re.findall(r"WARNING: config file \S+: unknown key (\w+) is ignored\n", ours.log())
    assert keys == ["unknown", "verbose"]


def test_addresses_of_the_config_file_are_listened_on(tmp_path: Path, peer_binary: Callable[[str], Path]) -> None:
    peer_binary("nsqlookupd")
    for name, command in (("ours", own_lookupd_command()), ("real", REAL_COMMAND)):
        tcp, http = free_port(), free_port()
        config = tmp_path / f"{name}.cfg"
        config.write_text(f'tcp_address = "127.0.0.1:{tcp}"\nhttp_address = "127.0.0.1:{http}"\nlog_level = "error"\n')
        with subprocess.Popen([*command, f"--config={config}"], stderr=subprocess.PIPE, text=True) as process:
            for port in (tcp, http):
                eventually(lambda port=port: _listens(port))  # type: ignore[misc]
            if name == "real":
                eventually(lambda http=http: handles_signals(f"127.0.0.1:{http}"))  # type: ignore[misc]
            process.terminate()
            _, log = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0
        assert set(re.findall(r" ([A-Z]+): ", log)) <= {"ERROR"}, log


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), DEADLINE).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_connections_and_exits_with_0(start: Start, number: signal.Signals) -> None:
    for lookupd in start():
        greetings = [(address_of(lookupd.tcp_address), b"  V1PING\n")]
        greetings.append((address_of(lookupd.http_address), b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"))
        with Registrant(lookupd) as nsqd:
            accepted = accepted_at_end(greetings, partial(lookupd.terminate, number))
            assert accepted == [], "connected again as soon as they were closed"
            assert lookupd.process is not None
            assert lookupd.process.wait(DEADLINE) == 0
            assert nsqd.reply() == b""
        closed = " ERROR: client(ADDRESS) - read tcp ADDRESS->ADDRESS: use of closed network connection"
        assert {" INFO: HTTP: closing ADDRESS", " INFO: TCP: closing ADDRESS", closed} <= {
            re.sub(r"^\S+ \S+ \S+", "", line) for line in normal(lookupd.log()).splitlines()
        }


def test_exit_does_not_wait_for_clients_without_magic(lookupd: RunningLookupd) -> None:
    # The real nsqlookupd does.
    with lookupd.connect() as sock:
        eventually(lambda: "new client" in lookupd.log())
        started = time.monotonic()
        assert lookupd.terminate() == 0
        assert time.monotonic() - started < DEADLINE / 2
        assert read_all(sock) == b""


# How it is called


def test_link_named_nsqlookupd_is_enough(tmp_path: Path) -> None:
    script = tmp_path / "nsqlookupd"
    module = tmp_path / "gnsqlookupd"
    module.write_text(f'#!/bin/sh\nexec {" ".join(own_lookupd_command())} "$@"\n')
    module.chmod(0o755)
    script.symlink_to(module)
    result = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=DEADLINE)
    assert re.fullmatch(r"nsqlookupd v1\.3\.0 \(built w/gnsqd-[\d.]+-py[\d.]+-\w+\)\n", result.stdout), result
