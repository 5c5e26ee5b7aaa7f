"""Daemons of the test kit: how they are started, and how one is emptied between tests."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnsqd import testing
from gnsqd.testing import GNSQD, Daemon, StartFailed
from kit.daemons import DEADLINE, address_of, eventually, free_port
from kit.nsq_client import NSQClient

COLD = ["env", *GNSQD]  # as a new interpreter


def ask(address: str, path: str, method: str = "GET") -> Any:
    request = urllib.request.Request(f"http://{address}{path}", method=method)
    with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
        body = answer.read()
    return json.loads(body) if body else None


def client(daemon: Daemon) -> NSQClient:
    host, _, port = daemon.tcp_address.partition(":")
    return NSQClient((host, int(port)))


def pid_of(daemon: Daemon) -> int:
    assert daemon._process is not None
    return daemon._process.pid


def parent_of(daemon: Daemon) -> int:
    """Returns the pid of the process that has forked it (proc(5), stat, 4)."""
    return int(Path(f"/proc/{pid_of(daemon)}/stat").read_text("utf-8").rpartition(")")[2].split()[1])


@pytest.fixture
def nsq(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path / "data", lookupd=True)
    daemon.start()
    yield daemon
    daemon.kill()


# Reset


def test_reset_leaves_nothing_of_clients_and_ends_their_consumers(nsq: Daemon) -> None:
    pid = pid_of(nsq)
    with client(nsq) as consumer, client(nsq) as publisher:
        consumer.subscribe("t", "c", rdy=1)
        publisher.publish("t", *(b"%d" % number for number in range(10)))
        publisher.command(b"DPUB t 3600000", b"later")
        assert publisher.response() == b"OK"
        publisher.publish("scratch#ephemeral", b"gone")
        ask(nsq.http_address, "/channel/create?topic=t&channel=paused", "POST")
        ask(nsq.http_address, "/channel/pause?topic=t&channel=paused", "POST")
        ask(nsq.lookupd_http_address, "/channel/create?topic=elsewhere&channel=c", "POST")
        assert consumer.message()
        nsq.reset()
        assert ask(nsq.http_address, "/stats?format=json")["topics"] == []
        assert ask(nsq.lookupd_http_address, "/debug").keys() == {"client::"}
        consumer.recv_until_closed()
        publisher.publish("t", b"the next test")
        (topic,) = ask(nsq.http_address, "/stats?format=json")["topics"]
        assert (topic["message_count"], topic["depth"], topic["channels"]) == (1, 1, [])
    assert pid_of(nsq) == pid
    nsq.restart()
    nsq.reset()
    nsq.restart()
    assert ask(nsq.http_address, "/stats?format=json")["topics"] == [], "it came back from the disk"


@pytest.mark.parametrize("ending", ["kill", "exit", "drain"])
def test_reset_replaces_a_daemon_that_cannot_go_on(nsq: Daemon, ending: str) -> None:
    addresses = (nsq.tcp_address, nsq.lookupd_http_address)
    with client(nsq) as publisher:
        publisher.publish("t", b"a message")
        if ending == "kill":
            nsq.kill()
        elif ending == "exit":
            os.kill(pid_of(nsq), signal.SIGTERM)
        else:
            ask(nsq.http_address, "/drain", "POST")
        nsq.reset()
    assert (nsq.tcp_address, nsq.lookupd_http_address) == addresses
    with client(nsq) as publisher:
        publisher.publish("other", b"a message")
    topics = ask(nsq.http_address, "/stats?format=json")["topics"]
    assert [topic["topic_name"] for topic in topics] == ["other"]


# Starts


def test_daemon_that_cannot_start_has_its_log_in_one_error(tmp_path: Path) -> None:
    for command in (GNSQD, COLD):
        with pytest.raises(StartFailed, match=r"exited with code 1\n.*--node-id must be \[0,1024\)"):
            Daemon(tmp_path / "data", ["--node-id=5000"], command).start()
    with testing.running() as first, pytest.raises(StartFailed, match="bind: address already in use"):
        Daemon(tmp_path / "data", [f"--tcp-address={first.tcp_address}"]).start()


def test_daemon_that_answers_no_ping_with_200_serves(tmp_path: Path) -> None:
    """Knows it by an error, the log of a daemon without HTTP, a silent daemon at a port that it has."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{32 * 't'}\n")
    tokens.chmod(0o600)
    with testing.running(f"--http-auth-token-file=full:{tokens}") as daemon:
        assert daemon.http_address
    with testing.running("--http-address=", f"--tcp-address={tmp_path / 'sock'}") as daemon:
        assert (daemon.tcp_address, daemon.http_address) == (str(tmp_path / "sock"), "")
    with testing.running("--log-level=fatal") as daemon:
        assert daemon.log() == ""
        NSQClient(address_of(daemon.tcp_address)).close()


def test_ports_are_kept_for_a_daemon_that_does_not_run(nsq: Daemon) -> None:
    nsq.stop()
    port = int(nsq.tcp_address.rpartition(":")[2])
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    nsq.start()


def serve_in_a_fork(directory: str) -> None:
    with testing.running() as daemon:
        (Path(directory) / "parent").write_text(str(parent_of(daemon)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of a process with threads, which this is about
def test_fork_of_the_test_process_has_daemons_of_its_own(nsq: Daemon, tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork").Process(target=serve_in_a_fork, args=(str(tmp_path),))
    fork.start()
    fork.join(DEADLINE)
    assert fork.exitcode == 0
    assert int((tmp_path / "parent").read_text()) not in (parent_of(nsq), os.getpid())
    nsq.restart()


SCRIPT = """
import os, sys, threading
{before}
from pathlib import Path
from gnsqd.testing import Daemon
threading.Thread(target=threading.Event().wait, daemon=True).start()
daemons = [Daemon(Path(sys.argv[1]) / port, [f"--http-address=127.0.0.1:{{port}}"]) for port in sys.argv[2:]]
for daemon in daemons:
    daemon.start()
    daemon.restart()
print(daemons[1].http_address, daemons[1]._process.pid, flush=True)
{after}
"""


@pytest.mark.parametrize(
    "before, after",
    [
        pytest.param("from gevent import monkey; monkey.patch_all()", "", id="gevent"),
        pytest.param("", "os.kill(os.getpid(), 9)", id="killed"),
    ],
)
def test_daemons_end_with_the_process_of_the_tests(tmp_path: Path, before: str, after: str) -> None:
    """Tries processes that are not at all fit for being forked."""
    script = SCRIPT.format(before=before, after=after)
    command = [sys.executable, "-Werror", "-c", script, str(tmp_path), str(free_port()), str(free_port())]
    run = subprocess.run(command, capture_output=True, text=True, timeout=2 * DEADLINE)
    assert run.returncode == (-signal.SIGKILL if after else 0), run.stderr
    assert run.stderr == ""
    address, pid = run.stdout.split()
    eventually(lambda: not os.path.exists(f"/proc/{pid}"), "its end")
    with pytest.raises(OSError, match="refused"):
        ask(address, "/ping")


def test_daemons_start_as_usual_when_the_parent_has_ended(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from gnsqd import testing
first, second = (testing.Daemon(Path(sys.argv[1]) / name) for name in "ab")
first.start()
with open(f"/proc/{first._process.pid}/stat") as file:
    parent = int(file.read().rpartition(")")[2].split()[1])
os.kill(parent, 9)
os.waitpid(parent, 0)
second.start()
print(second.stop())
"""
    run = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=100)
    assert (run.stdout, run.stderr) == ("0\n", "")


def test_workers_of_xdist_have_daemons_of_their_own(tmp_path: Path) -> None:
    source = """
import pytest, urllib.request

@pytest.mark.parametrize("turn", range(4))
def test_publish(nsq, nsq_session, turn):
    for daemon in (nsq, nsq_session):
        with urllib.request.urlopen(f"http://{daemon.http_address}/pub?topic=t", data=b"x") as answer:
            assert answer.read() == b"OK"
"""
    (tmp_path / "test_project.py").write_text(source)
    command = [sys.executable, "-Werror", "-m", "pytest", "-q", "-n2", "-p", "xdist", "-p", "gnsqd.pytest_plugin"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TMPDIR": str(tmp_path)}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert "4 passed" in run.stdout, run.stdout + run.stderr
