"""With GNSQD_PRELOAD=1 a command stands for a fork of its parent, as if it were the daemon itself."""

import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gnsqd import quick_start
from kit.daemons import DEADLINE, Daemon, eventually, wait_until_stopped

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the variable has no effect")

SCRIPT = f"#!{sys.executable}\nimport sys\nfrom gnsqd.quick_start import gnsqd\nsys.exit(gnsqd())\n"


def read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # of a process that has ended
        return b""


def parents() -> list[int]:
    directory = os.environ["XDG_RUNTIME_DIR"].encode() + b"/gnsqd-"
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [pid for pid in pids if directory in read(f"/proc/{pid}/cmdline")]


def forks() -> list[int]:
    return [int(pid) for parent in parents() for pid in read(f"/proc/{parent}/task/{parent}/children").split()]


def start_parent(command: str) -> None:
    """By two commands at once."""
    for started in [subprocess.Popen([command, "--version"], stdout=subprocess.DEVNULL) for _ in range(2)]:
        assert started.wait(DEADLINE) == 0
    (lock,) = Path(os.environ["XDG_RUNTIME_DIR"], f"gnsqd-{os.geteuid()}").glob("*.lock")

    def listens() -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            return client.connect_ex(str(lock.with_suffix(""))) == 0

    eventually(listens, "a parent that listens")
    assert len(parents()) == 1


@pytest.fixture(scope="module")
def command() -> Iterator[str]:
    """The command by the name of nsqd; its parent listens, and ends by itself after the tests."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GNSQD_PRELOAD", "1")
        patch.setenv("XDG_RUNTIME_DIR", directory)
        link = Path(directory, "nsqd")
        link.write_text(SCRIPT)
        link.chmod(0o755)
        start_parent(str(link))
        yield str(link)
        for pid in parents():
            os.kill(pid, signal.SIGTERM)
        eventually(lambda: not parents(), "the end of the idle parent")
        assert os.listdir(f"{directory}/gnsqd-{os.geteuid()}") == []


@pytest.fixture
def daemon(command: str, tmp_path: Path) -> Iterator[Daemon]:
    with Daemon([command], tmp_path / "data") as started:
        yield started


@pytest.mark.parametrize("name, code", [("TERM", 0), ("INT", 0), ("HUP", 0), ("QUIT", 2), ("KILL", -9), ("ABRT", -6)])
def test_signal_to_the_command_ends_both(daemon: Daemon, name: str, code: int) -> None:
    (fork,) = forks()
    assert read(f"/proc/{fork}/cmdline").rstrip(b"\0") == b"NSQ daemon of process %d" % daemon.pid
    daemon.send_signal(signal.SIGUSR1)
    daemon.send_signal(getattr(signal, f"SIG{name}"))
    assert daemon.wait() == code
    assert daemon.log().endswith("NSQ: bye\n") == (code == 0)
    assert ("Greenlet" in daemon.log()) == (name == "QUIT")
    daemon.restart(f"--tcp-address=127.0.0.1:{daemon.tcp_address[1]}")  # at once
    assert forks() != [fork]


def test_signal_to_the_fork_ends_the_command(daemon: Daemon) -> None:
    os.kill(forks()[0], signal.SIGKILL)
    assert daemon.wait() == -signal.SIGKILL


def test_fork_stops_and_continues_with_the_command(daemon: Daemon) -> None:
    daemon.send_signal(signal.SIGSTOP)
    wait_until_stopped(forks()[0])
    daemon.send_signal(signal.SIGCONT)
    assert daemon.http("GET", "/ping")[0] == 200


def test_command_ends_with_its_parent_and_the_next_has_another(daemon: Daemon, command: str) -> None:
    (parent,), (fork,) = parents(), forks()
    os.kill(parent, signal.SIGKILL)
    assert daemon.wait() == -signal.SIGKILL
    eventually(lambda: not read(f"/proc/{fork}/cmdline"), "the end of the fork")
    start_parent(command)
    assert parents() != [parent]


def test_fork_has_what_the_command_has(command: str, tmp_path: Path) -> None:
    """Standard streams, working directory, environment, umask, arguments, limits."""
    (tmp_path / "sub").mkdir()
    arguments = [command, "--config=/dev/stdin", "--tcp-address=127.0.0.1:0", "--data-path=sub"]
    read_end, write_end = os.pipe()
    os.write(write_end, b'log_prefix = "at "\nhttp_address = "127.0.0.1:0"\n')
    os.close(write_end)
    process = subprocess.Popen(
        arguments, stdin=read_end, stderr=subprocess.PIPE, cwd=tmp_path, env=os.environ | {"TZ": "XYZ-9"}, umask=0o077
    )
    os.close(read_end)
    eventually((tmp_path / "sub" / "nsqd.dat").exists, "the start")
    (fork,) = forks()
    for name in ("limits", "cgroup", "oom_score_adj"):
        assert read(f"/proc/{fork}/{name}") == read(f"/proc/{process.pid}/{name}")
    process.terminate()
    log = process.communicate(timeout=DEADLINE)[1].decode()
    assert (tmp_path / "sub" / "nsqd.dat").stat().st_mode & 0o777 == 0o600
    local = datetime.strptime(log[:22], "at %Y/%m/%d %H:%M:%S")
    assert abs(local - datetime.utcnow() - timedelta(hours=9)) < timedelta(hours=1)


@pytest.mark.parametrize("flag", ["--version", "--no-such-flag", "--node-id=-1"])
def test_output_and_exit_code_are_those_of_an_ordinary_start(command: str, tmp_path: Path, flag: str) -> None:
    results = []
    for value in ("1", "0"):
        environment = os.environ | {"GNSQD_PRELOAD": value}
        run = subprocess.run([command, flag], capture_output=True, cwd=tmp_path, env=environment, check=False)
        results.append((run.returncode, run.stdout, run.stderr.rpartition(b" FATAL")[2]))
    assert results[0] == results[1]


@pytest.fixture
def requests(command: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parents that this process would start as a command."""
    started: list[str] = []
    monkeypatch.setattr(quick_start, "_start_parent", started.append)
    monkeypatch.setattr(sys, "argv", ["nsqd"])
    return started


def test_parent_has_the_context_and_the_installation_of_its_commands(
    requests: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def request() -> None:
        quick_start._run_as_fork("gnsqd")

    for _ in range(2):
        request()
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    request()
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0 if soft else 4096, hard))
    request()
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    monkeypatch.setattr(quick_start, "__file__", str(tmp_path / "quick_start.py"))
    (tmp_path / "sub").mkdir()
    for time in (1, 2):
        (tmp_path / "sub" / "module.py").touch()
        os.utime(tmp_path / "sub" / "module.py", (time, time))
        request()
    assert [requests.index(path) for path in requests] == [0, 0, 2, 3, 4, 5]


@pytest.mark.parametrize("reason", ["0", "LISTEN_FDS", "NOTIFY_SOCKET", "/dev/fd/3", "others"])
def test_ordinary_start(requests: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reason: str) -> None:
    if reason == "0":
        monkeypatch.setenv("GNSQD_PRELOAD", "0")
    elif reason == "others":
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        (tmp_path / f"gnsqd-{os.geteuid()}").mkdir(0o755)
    elif reason.startswith("/"):
        monkeypatch.setattr(sys, "argv", ["nsqd", f"--config={reason}"])
    else:
        monkeypatch.setenv(reason, "1")
    quick_start._run_as_fork("gnsqd")
    assert requests == []
