"""With GNSQD_PRELOAD=1 a command stands for a fork of its parent, as if it were the daemon itself."""

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gnsqd import preloaded, quick_start
from kit.daemons import DEADLINE, Instance, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the variable has no effect")

# SIGINT and SIGQUIT are ignored, as in background jobs of a shell.
SCRIPT = f"""#!{sys.executable}
import signal, sys
from gnsqd import quick_start
[signal.signal(number, signal.SIG_IGN) for number in (2, 3)]
sys.exit(quick_start.%s())
"""
TITLE = re.compile(rb"gnsqd|.*/preloaded\.py")
MARK = f"PYTHON_OF_TEST_{os.getpid()}"  # in the environment of what these tests start, and so part of the address


def processes() -> dict[int, int]:
    """Returns the parents and their forks, each with the pid of its own parent (proc(5), stat, 4)."""
    result = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if MARK.encode() in (path / "environ").read_bytes() and TITLE.match((path / "cmdline").read_bytes()):
                result[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    return result


def parents() -> list[int]:
    pids = processes()
    return [pid for pid in pids if pids[pid] not in pids]


def forks() -> list[int]:
    pids = processes()
    return [pid for pid in pids if pids[pid] in pids]


def address_of(parent: int) -> str:
    inodes = [os.readlink(path).strip("socket:[]") for path in Path(f"/proc/{parent}/fd").iterdir()]
    for line in Path("/proc/net/unix").read_text().splitlines():
        if line.split()[6] in inodes and "@gnsqd-" in line:
            return line.split()[7].replace("@", "\0")
    raise AssertionError("it does not listen")


def start_parent(command: str) -> None:
    """Starts it by two commands together."""
    for started in [subprocess.Popen([command, "--version"], stdout=subprocess.DEVNULL) for _ in range(2)]:
        assert started.wait(DEADLINE) == 0
    assert len(parents()) == 1


@pytest.fixture(scope="module")
def command() -> Iterator[str]:
    """Returns the command by the name of nsqd, with nsqlookupd beside it."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GNSQD_PRELOAD", "1")
        patch.setenv(MARK, "1")
        for name in ("nsqlookupd", "nsqd"):
            link = Path(directory, name)
            link.write_text(SCRIPT % f"g{name}")
            link.chmod(0o755)
        start_parent(str(link))
        yield str(link)
        for pid in parents():
            os.kill(pid, signal.SIGTERM)


@pytest.fixture
def daemon(command: str, tmp_path: Path) -> Iterator[Instance]:
    with Instance([command], tmp_path / "data") as started:
        assert len(forks()) == 1
        yield started


@pytest.mark.parametrize("name, code", [("TERM", 0), ("INT", 0), ("HUP", 0), ("QUIT", 2), ("KILL", -9), ("ABRT", -6)])
def test_signal_to_the_command_ends_both_and_frees_the_port(daemon: Instance, name: str, code: int) -> None:
    daemon.send_signal(signal.SIGUSR1)
    daemon.send_signal(signal.Signals[f"SIG{name}"])
    assert daemon.wait() == code
    assert daemon.log().endswith("NSQ: bye\n") == (code == 0)
    assert ("Greenlet" in daemon.log()) == (name == "QUIT")
    _ports = daemon._started  # stay reserved as long as this exists
    daemon.restart(f"--tcp-address=127.0.0.1:{daemon.tcp_address[1]}")
    assert len(forks()) == 1


def test_fork_runs_nothing_before_the_command_confirms(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The command may have given up, and runs the daemon itself.
    monkeypatch.setattr(socket.socket, "send", lambda *_: 0)
    monkeypatch.setattr(preloaded, "Process", lambda _, connection: os.close(connection))
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as printed:
        preloaded.start(address_of(parents()[0]), ["gnsqd"], "gnsqd", ["--version"], [0, write_end, 2])
        os.close(write_end)
        assert printed.read() == b""


def test_fork_ends_whose_command_has_gone_or_that_cannot_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send_and_go(connection: socket.socket, *given: Any) -> None:
        send(connection, *given)
        connection.close()

    send, request = socket.send_fds, (address_of(parents()[0]), ["gnsqd"], "gnsqd", ["--version"])
    with open(tmp_path / "log", "wb") as log:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "send_fds", send_and_go)
            with pytest.raises(OSError, match="Bad file descriptor"):
                preloaded.start(*request, [0, log, log])
        assert preloaded.start(*request, [0, log, log], cwd=tmp_path / "none").wait(DEADLINE) == 1
    assert (tmp_path / "log").read_text().endswith("/none'\n")
    eventually(lambda: not forks(), "the end of both")


def test_command_ends_with_its_fork(daemon: Instance) -> None:
    os.kill(forks()[0], signal.SIGKILL)
    assert daemon.wait() == -signal.SIGKILL


def test_daemon_goes_on_without_its_parent_and_later_ones_have_another(daemon: Instance, command: str) -> None:
    ((fork, parent),) = ((fork, processes()[fork]) for fork in forks())
    os.kill(parent, signal.SIGKILL)
    eventually(lambda: parent not in processes(), "the end of the parent")
    assert daemon.http("GET", "/ping")[0] == 200
    daemon.send_signal(signal.SIGTERM)
    daemon.wait()
    assert daemon.log().endswith("NSQ: bye\n")
    eventually(lambda: fork not in processes(), "the end of the fork")
    start_parent(command)


def test_fork_has_what_the_command_has(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Standard streams, working directory, environment, umask, arguments, limits.
    (tmp_path / "data" / "sub").mkdir(parents=True)
    (tmp_path / "data" / "config").write_text('log_prefix = "from stdin "')
    script = 'cd sub && umask 077 && exec "$0" "$@" --config=/dev/stdin <../config'
    monkeypatch.setenv("TZ", "XYZ-9")
    hours = [time.strftime("from stdin %Y/%m/%d %H:", time.gmtime(time.time() + 3600 * 9 + more)) for more in (0, 60)]
    with Instance(["sh", "-c", script, command], tmp_path / "data", "--data-path=.") as daemon:
        fork, process = (Path(f"/proc/{pid}") for pid in (*forks(), daemon.pid))
        assert (fork / "limits").read_text() == (process / "limits").read_text()
        assert "\nUmask:\t0077\n" in (fork / "status").read_text()
        assert daemon.http("GET", "/debug/pprof/cmdline")[2] == (process / "cmdline").read_bytes().rstrip(b"\0")
    assert (tmp_path / "data" / "sub" / "nsqd.dat").exists()
    assert daemon.log().startswith(tuple(hours))


@pytest.mark.parametrize("name, flag", [("nsqd", "--no-such-flag"), ("nsqlookupd", "--version")])
def test_output_and_exit_code_are_those_of_an_ordinary_start(command: str, name: str, flag: str) -> None:
    line = [str(Path(command).with_name(name)), flag]
    runs = [subprocess.run(line, capture_output=True, env=os.environ | {"GNSQD_PRELOAD": value}) for value in "10"]
    assert len({(run.returncode, run.stdout, run.stderr) for run in runs}) == 1


def test_parent_serves_one_context_and_one_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    addresses = {quick_start._address(), quick_start._address()}
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    addresses.add(quick_start._address())
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0 if soft else 4096, hard))
    addresses.add(quick_start._address())
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    (packages := tmp_path / "site-packages").mkdir()
    monkeypatch.syspath_prepend(str(packages))
    addresses.add(quick_start._address())
    os.utime(packages, (1, 1))
    addresses.add(quick_start._address())
    assert len(addresses) == 5


@pytest.mark.parametrize("reason", ["", "GNSQD_PRELOAD", "LISTEN_FDS", "NOTIFY_SOCKET", "/dev/fd/3", "-O"])
def test_ordinary_start(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    started: list[str] = []
    monkeypatch.setattr(preloaded, "start_parent", lambda address, _: started.append(address))
    monkeypatch.setattr(sys, "argv", ["nsqd", f"--config={reason}"])
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, *["-O"] * (reason == "-O"), *sys.argv])
    monkeypatch.setattr(quick_start, "_address", lambda: f"\0gnsqd-{os.getpid()}")
    monkeypatch.setenv("GNSQD_PRELOAD", "1")
    if reason.isupper():
        monkeypatch.setenv(reason, "3")
    quick_start._run_as_fork("gnsqd")
    assert len(started) == (reason == "")
