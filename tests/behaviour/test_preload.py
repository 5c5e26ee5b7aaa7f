"""With GNSQD_PRELOAD=1 a command stands for a fork of its parent, as if it were the daemon itself."""

import os
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

import pytest

from gnsqd import quick_start
from kit.daemons import DEADLINE, Daemon, eventually, wait_until_stopped

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the variable has no effect")

# SIGINT and SIGQUIT are ignored, as in background jobs of a shell.
SCRIPT = f"""#!{sys.executable}
import signal, sys
from gnsqd import quick_start
[signal.signal(number, signal.SIG_IGN) for number in (2, 3)]
sys.exit(quick_start.%s())
"""


def processes(title: bytes) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            found += [int(path.parent.name)] if title in path.read_bytes() else []
    return found


def parents() -> list[int]:
    return processes(os.environ["XDG_RUNTIME_DIR"].encode() + b"/gnsqd-")


def fork_of(daemon: Daemon) -> int:
    (pid,) = processes(b"NSQ daemon of process %d\0" % daemon.pid)
    return pid


def connection_to_parent() -> socket.socket:
    (lock,) = Path(os.environ["XDG_RUNTIME_DIR"]).glob("*/*.lock")
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(DEADLINE)
    eventually(lambda: client.connect_ex(str(lock.with_suffix(""))) == 0, "a parent that listens")
    return client


def start_parent(command: str) -> None:
    """By two commands at once."""
    for started in [subprocess.Popen([command, "--version"], stdout=subprocess.DEVNULL) for _ in range(2)]:
        assert started.wait(DEADLINE) == 0
    connection_to_parent().close()
    assert len(parents()) == 1


@pytest.fixture(scope="module")
def command() -> Iterator[str]:
    """The command by the name of nsqd, with nsqlookupd beside it; their parent ends by itself after the tests."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GNSQD_PRELOAD", "1")
        patch.setenv("XDG_RUNTIME_DIR", directory)
        for name in ("nsqlookupd", "nsqd"):
            link = Path(directory, name)
            link.write_text(SCRIPT % f"g{name}")
            link.chmod(0o755)
        start_parent(str(link))
        yield str(link)
        for pid in parents():
            os.kill(pid, signal.SIGTERM)
        eventually(lambda: not parents(), "the end of the idle parent")
        assert list(Path(directory).glob("*/*")) == []


@pytest.fixture
def daemon(command: str, tmp_path: Path) -> Iterator[Daemon]:
    with Daemon([command], tmp_path / "data") as started:
        yield started


@pytest.mark.parametrize("name, code", [("TERM", 0), ("INT", 0), ("HUP", 0), ("QUIT", 2), ("KILL", -9), ("ABRT", -6)])
def test_signal_to_the_command_ends_both_and_frees_the_port(daemon: Daemon, name: str, code: int) -> None:
    fork_of(daemon)
    daemon.send_signal(signal.SIGUSR1)
    daemon.send_signal(signal.Signals[f"SIG{name}"])
    assert daemon.wait() == code
    assert daemon.log().endswith("NSQ: bye\n") == (code == 0)
    assert ("Greenlet" in daemon.log()) == (name == "QUIT")
    _ports = daemon._started  # stay reserved as long as this exists
    fork_of(daemon.restart(f"--tcp-address=127.0.0.1:{daemon.tcp_address[1]}"))


@pytest.mark.parametrize("data, code", [(b"", 1), (bytes([signal.SIGTERM]), -signal.SIGTERM)])
def test_fork_runs_nothing_before_the_command_confirms(command: str, data: bytes, code: int) -> None:
    """The command may have given up, and runs the daemon itself; and a signal is as deadly as to Python."""
    read_end, write_end = os.pipe()
    with connection_to_parent() as connection, open(read_end), open(write_end, "w") as pipe:
        quick_start._ask(connection, "gnsqd", read_end)
        connection.send(data) if data else pipe.close()
        assert int(connection.recv(16)) == code


def test_fork_stops_and_continues_with_the_command_which_ends_with_it(daemon: Daemon) -> None:
    daemon.send_signal(signal.SIGSTOP)
    wait_until_stopped(fork_of(daemon))
    daemon.send_signal(signal.SIGCONT)
    assert daemon.http("GET", "/ping")[0] == 200
    os.kill(fork_of(daemon), signal.SIGKILL)
    assert daemon.wait() == -signal.SIGKILL


def test_command_ends_with_its_parent_and_later_ones_have_another(daemon: Daemon, command: str) -> None:
    os.kill(parents()[0], signal.SIGKILL)
    assert daemon.wait() == -signal.SIGKILL
    eventually(lambda: not processes(b"NSQ daemon of process %d\0" % daemon.pid), "the end of the fork")
    start_parent(command)


def test_fork_has_what_the_command_has(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard streams, working directory, environment, umask, arguments, limits."""
    (tmp_path / "data" / "sub").mkdir(parents=True)
    (tmp_path / "data" / "config").write_text('log_prefix = "from stdin "')
    script = 'cd sub && umask 077 && exec "$0" "$@" --config=/dev/stdin <../config'
    monkeypatch.setenv("TZ", "XYZ-9")
    hours = [time.strftime("from stdin %Y/%m/%d %H:", time.gmtime(time.time() + 3600 * 9 + more)) for more in (0, 60)]
    with Daemon(["sh", "-c", script, command], tmp_path / "data", "--data-path=.") as daemon:
        fork, process = (Path(f"/proc/{pid}") for pid in (fork_of(daemon), daemon.pid))
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
    contexts = {quick_start._context(), quick_start._context()}
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    contexts.add(quick_start._context())
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0 if soft else 4096, hard))
    contexts.add(quick_start._context())
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    monkeypatch.setattr(quick_start, "__file__", str(tmp_path / "quick_start.py"))
    (module := tmp_path / "package" / "module.py").parent.mkdir()
    module.touch()
    installations = {quick_start.installation()}
    os.utime(module, (1, 1))
    installations.add(quick_start.installation())
    assert (len(contexts), len(installations)) == (3, 2)


@pytest.mark.parametrize("reason", ["", "GNSQD_PRELOAD", "LISTEN_FDS", "NOTIFY_SOCKET", "/dev/fd/3", "directory"])
def test_ordinary_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reason: str) -> None:
    parents: list[str] = []
    monkeypatch.setattr(quick_start, "_start_parent", parents.append)
    monkeypatch.setattr(sys, "argv", ["nsqd", f"--config={reason}"])
    monkeypatch.setenv("GNSQD_PRELOAD", "1")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    if reason == "directory":  # that others may enter
        (tmp_path / f"gnsqd-{os.geteuid()}").mkdir(0o755)
    elif reason.isupper():
        monkeypatch.setenv(reason, "3")
    quick_start._run_as_fork("gnsqd")
    assert len(parents) == (reason == "")
