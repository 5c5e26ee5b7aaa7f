"""Notifications of gnsqd for systemd, to a socket that stands in for its own, and the unit.

The texts are those of sd_notify(3): lines of `NAME=value`, a datagram for lines that belong together.
"""

import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from configparser import RawConfigParser, SectionProxy
from pathlib import Path

import pytest

from kit.daemons import DEADLINE, Instance, NotStarted, eventually, interpreter, open_socket, own_command
from kit.faulty_gnsqd import Faults
from kit.http_api import ask
from kit.nsq_client import NSQClient, mpub_body
from kit.traffic import DaemonFactory

UNIT = Path(__file__).parents[2] / "contrib" / "systemd" / "gnsqd.service"

PING = "WATCHDOG=1"


class Manager:
    """systemd's end of the socket, and the environment of its service."""

    def __init__(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0", 1) if address.startswith("@") else address)
        self._environment = monkeypatch
        for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("NOTIFY_SOCKET", address)

    def watch(self, seconds: float, pid: int | None = None) -> None:
        """Sets the environment as WatchdogSec= does."""
        self._environment.setenv("WATCHDOG_USEC", str(int(seconds * 1_000_000)))
        if pid is not None:
            self._environment.setenv("WATCHDOG_PID", str(pid))

    def hear(self, timeout: float = DEADLINE) -> list[str]:
        """Returns the lines of the next datagram; raises TimeoutError."""
        self._socket.settimeout(timeout)
        return self._socket.recv(65536).decode().split("\n")

    def hear_until(self, line: str) -> list[str]:
        """Returns all lines up to this one."""
        lines: list[str] = []
        deadline = time.monotonic() + DEADLINE
        while line not in lines:
            assert time.monotonic() < deadline, lines
            lines += self.hear()
        return lines

    def heard(self) -> list[str]:
        """Returns all lines that came meanwhile, without waiting."""
        lines: list[str] = []
        while True:
            try:
                lines += self.hear(0)
            except BlockingIOError:
                return lines

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    found = Manager(str(tmp_path / "notify"), monkeypatch)
    yield found
    found.close()


# What it hears


@pytest.mark.parametrize("address", ["{}/notify", "@{}"], ids=["file", "abstract"])
def test_systemd_hears_when_it_serves_and_when_it_stops(
    address: str, gnsqd_factory: DaemonFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Manager(address.format(tmp_path), monkeypatch)
    nsqd = gnsqd_factory()
    assert manager.hear() == ["READY=1", "STATUS=serving"]
    nsqd.terminate()
    assert manager.heard() == ["STOPPING=1", "STATUS=writing to disk what is left"]
    manager.close()


def test_it_serves_as_soon_as_it_says_so(manager: Manager, tmp_path: Path) -> None:
    address = str(tmp_path / "http")
    flags = [f"--data-path={tmp_path}", "--tcp-address=127.0.0.1:0", f"--http-address={address}"]
    with subprocess.Popen([*own_command(), *flags], stderr=subprocess.DEVNULL) as process:
        try:
            assert manager.hear()[0] == "READY=1"
            with open_socket(address, DEADLINE) as client:
                client.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
                assert client.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")
        finally:
            process.terminate()
        assert process.wait(DEADLINE) == 0


def test_a_daemon_that_cannot_start_is_never_ready(manager: Manager, gnsqd_factory: DaemonFactory) -> None:
    with pytest.raises(NotStarted):
        gnsqd_factory("--node-id=5000")
    assert manager.heard() == []


def test_the_status_follows_a_drain(manager: Manager, gnsqd_factory: DaemonFactory) -> None:
    manager.watch(0.2)
    nsqd = gnsqd_factory("--sigterm=drain", "--drain-timeout=1h")
    with NSQClient(nsqd.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=1)
        assert ask(nsqd, "POST /pub?topic=t", b"kept") == (200, "OK")
        got = consumer.message()
        nsqd.send_signal(signal.SIGTERM)
        lines = manager.hear_until("STATUS=draining, 1 messages left")
        assert "STOPPING=1" not in lines
        assert PING in manager.hear(), "not fed while it drains"
        consumer.command(b"FIN " + got.id)
        lines = manager.hear_until("STOPPING=1")
    assert nsqd.wait() == 0


def test_the_exit_is_the_last_that_it_reports(manager: Manager, tmp_path: Path) -> None:
    manager.watch(0.2)
    faults = Faults(tmp_path / "faults", interpreter(own_command()))
    with Instance(faults.command, tmp_path / "data", "--mem-queue-size=0") as nsqd:
        assert ask(nsqd, "POST /pub?topic=t", b"kept") == (200, "OK")
        faults.set({"call": "fsync", "name": "*", "hold": True})  # in a thread, so that greenlets go on
        manager.heard()  # what its socket holds unread is limited
        nsqd.send_signal(signal.SIGTERM)
        manager.hear_until("STOPPING=1")
        eventually(faults.hits)
        with pytest.raises(TimeoutError):
            manager.hear(0.3)
        faults.set()
        assert nsqd.wait() == 0


# The watchdog


def test_the_watchdog_is_fed(manager: Manager, gnsqd_factory: DaemonFactory) -> None:
    manager.watch(0.2)
    nsqd = gnsqd_factory()
    manager.hear_until("READY=1")
    for _ in range(3):
        assert manager.hear() == [PING]
    assert nsqd.running


def test_the_watchdog_starves_when_nothing_gets_its_turn(manager: Manager, tmp_path: Path) -> None:
    manager.watch(0.1)
    faults = Faults(tmp_path / "faults", interpreter(own_command()))
    with (
        Instance(faults.command, tmp_path / "data", "--mem-queue-size=0") as nsqd,
        NSQClient(nsqd.tcp_address) as publisher,
    ):
        faults.set({"call": "pwrite", "name": "*.diskqueue.*", "hold": True})
        publisher.command(b"MPUB t", mpub_body(b"kept"))
        eventually(faults.hits)  # the disk hangs, and everything with it
        manager.heard()
        with pytest.raises(TimeoutError):
            manager.hear(0.5)
        faults.set()
        assert manager.hear() == [PING]


def test_the_watchdog_of_another_process_is_not_fed(manager: Manager, gnsqd_factory: DaemonFactory) -> None:
    manager.watch(0.002, pid=1)
    nsqd = gnsqd_factory()
    for _ in range(10):
        assert ask(nsqd, "GET /ping") == (200, "OK")
    nsqd.terminate()
    assert PING not in manager.hear_until("STOPPING=1")


# When there is no systemd


NOWHERE = ["/nowhere/notify", "vsock:2:1234", "@nobody", "/" + "x" * 200]


@pytest.mark.parametrize("address", [None, "", *NOWHERE])
def test_a_socket_that_leads_nowhere_is_a_warning_and_none_is_not(
    address: str | None, gnsqd_factory: DaemonFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    nsqd = gnsqd_factory()
    assert ask(nsqd, "GET /ping") == (200, "OK")
    assert nsqd.terminate() == 0
    lines = re.findall("SYSTEMD.*", nsqd.log())
    where = rf"SYSTEMD: failed to send (\S+) to {re.escape(address or '')} - \S.*"
    sent = ["READY=1", "STOPPING=1"] if address else []
    assert [match[1] for line in lines if (match := re.fullmatch(where, line))] == sent
    assert len(lines) == len(sent)


# The unit


def copied(source: Path, copy: Path) -> Path:
    """Copies a unit or a drop-in, with a program that exists."""
    program = copy.parent / "true"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = source.read_text("utf-8")
    assert text.count("ExecStart=/usr/local/bin/gnsqd ") == 1
    copy.write_text(text.replace("=/usr/local/bin/gnsqd ", f"={program} "))
    return copy


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    return copied(UNIT, tmp_path / UNIT.name)


def test_the_command_of_the_unit_serves_drains_and_keeps_messages(
    manager: Manager, gnsqd_factory: DaemonFactory, tmp_path: Path
) -> None:
    manager.watch(0.2)
    _, *flags = service()["ExecStart"].replace("/var/lib/gnsqd", str(tmp_path)).split()
    nsqd = gnsqd_factory(*flags)
    assert manager.hear() == ["READY=1", "STATUS=serving"]
    assert ask(nsqd, "POST /pub?topic=t", b"kept") == (200, "OK")
    nsqd.send_signal(signal.SIGTERM)
    manager.hear_until("STATUS=draining, 1 messages left")
    nsqd.send_signal(signal.SIGINT)  # as `systemctl kill -s INT gnsqd`, which need not wait for the drain
    assert nsqd.wait() == 0
    assert nsqd.start().topic_stats("t")["depth"] == 1
    nsqd.kill()  # it would drain for a minute


def service() -> SectionProxy:
    unit = RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text("utf-8"))
    return unit["Service"]


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=DEADLINE)


@pytest.mark.parametrize("name", ["gnsqd.service", "gnsqd@1.service"])
def test_systemd_takes_the_unit_as_it_is_and_its_template(name: str, unit: Path, tmp_path: Path) -> None:
    shutil.copy(unit, tmp_path / "gnsqd@.service")
    drop_ins = tmp_path / "gnsqd@.service.d"
    drop_ins.mkdir()
    copied(UNIT.with_name("instance.conf"), drop_ins / "instance.conf")
    result = analyze("verify", str(tmp_path / name))
    # It also looks at what the unit requires, which is not ours.
    assert (result.returncode, [line for line in result.stderr.splitlines() if "gnsqd" in line]) == (0, [])


def test_the_unit_is_sandboxed(unit: Path) -> None:
    # 9.2 is a service without any sandbox; what is left here is the network and the file system that it reads.
    result = analyze("security", "--offline=true", "--threshold=20", str(unit))
    if "unrecognized option" in result.stderr:
        pytest.skip("this systemd-analyze judges no files")
    assert result.returncode == 0, result.stdout


def test_the_unit_waits_for_what_gnsqd_reports() -> None:
    unit = service()
    assert unit["Type"] == "notify"
    assert int(unit["WatchdogSec"]) >= 30  # a disk that hangs for some seconds costs no daemon
    # SIGQUIT prints the stacks of all greenlets and ends with code 2, which Restart= takes for a failure.
    assert (unit["WatchdogSignal"], unit["Restart"]) == ("SIGQUIT", "on-failure")


def test_the_unit_leaves_client_certificates_their_callbacks() -> None:
    # pyOpenSSL calls back from C into Python, by code that cffi writes into memory.
    assert "\nMemoryDenyWriteExecute=" not in UNIT.read_text("utf-8")
