"""Defects, brought about in greenlets of every kind: one that serves a client ends with that client alone, every other
ends the daemon by its clean exit, and no message that was acknowledged is lost by it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from behaviour.test_https import https_address
from interop.cluster import Pretender
from kit.buggy_gnsqd import Bugs
from kit.certificates import issue
from kit.daemons import DEADLINE, Instance, eventually, interpreter, open_socket, own_command
from kit.exposition import labels, series
from kit.http_api import head, read_all
from kit.nsq_client import NSQClient
from kit.upgraded_client import tls_client_context
from unit.cluster.fake_lookupd import answer, info

BODIES = [b"first", b"second", b"third"]


@pytest.fixture
def bugs(tmp_path: Path) -> Bugs:
    return Bugs(tmp_path / "bugs", interpreter(own_command()))


def nothing(nsqd: Instance) -> None:
    """Does nothing, as the greenlet runs already."""


def ask(request: str) -> Callable[[Instance], None]:
    """Returns a function that makes a greenlet start by a request, which may never be answered."""

    def send(nsqd: Instance) -> None:
        open_socket(nsqd.http_address, DEADLINE).sendall(head(request, "Content-Length: 0"))

    return send


def leave(nsqd: Instance) -> None:
    """Leaves an ephemeral channel without a client."""
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("other", "c#ephemeral")


def ask_nsqlookupd(nsqd: Instance) -> None:
    """Makes the daemon ask for the channels of a new topic."""
    eventually(lambda: "): peer info " in nsqd.log())
    ask("POST /topic/create?topic=new")(nsqd)


def answer_as_nsqlookupd(line: bytes) -> list[bytes]:
    return [info() if b"IDENTIFY" in line else answer(b"OK")]


@pytest.mark.parametrize(
    ("bug", "name", "then"),
    [
        ("throw tcpServer", "tcpServer", nothing),
        ("throw httpServer", "httpServer", nothing),
        ("throw queueScanLoop", "queueScanLoop", nothing),
        ("throw queueScanWorker", "queueScanWorker", nothing),
        ("throw syncLoop", "syncLoop", nothing),
        ("throw persistLoop", "persistLoop", nothing),
        ("throw healthLoop", "healthLoop", nothing),
        ("throw journalLoop", "journalLoop", nothing),
        ("throw compactionLoop", "compactionLoop", nothing),
        ("throw lookupLoop:127.0.0.1:9", "lookupLoop:127.0.0.1:9", nothing),
        ("throw statsdLoop", "statsdLoop", nothing),
        ("throw messagePump:t", "messagePump:t", nothing),
        ("throw drainLoop", "drainLoop", ask("POST /drain")),
        ("start precreate", "precreate:new", ask("POST /topic/create?topic=new")),
        ("start delete", "delete:other:c#ephemeral", leave),
        ("start query", "query:127.0.0.1:1", ask_nsqlookupd),
        ("resolve localhost", "lookUp:localhost", nothing),
        ("fsync t.diskqueue", "sync:t", nothing),
    ],
)
def test_a_defect_of_the_daemon_ends_it_and_no_message_is_lost(
    bugs: Bugs, tmp_path: Path, bug: str, name: str, then: Callable[[Instance], None]
) -> None:
    flags = [
        "--lookupd-tcp-address=127.0.0.1:9",
        "--statsd-address=localhost:9" if "resolve" in bug else "--statsd-address=127.0.0.1:9",
        "--statsd-interval=1001ms" if "resolve" in bug else "--statsd-interval=1h",
        "--mem-queue-size=1",
        "--sync-timeout=50ms" if "fsync" in bug else "--sync-timeout=1h",
    ]
    nsqlookupd = Pretender(answer_as_nsqlookupd)
    daemon = Instance(bugs.command, tmp_path / "data", *flags, nsqlookupd.flag)
    with nsqlookupd, daemon:
        if "fsync" in bug:
            bugs.bring_about(bug)
        with NSQClient(daemon.tcp_address) as client:
            client.publish("t", *BODIES)
        if "fsync" not in bug:
            bugs.bring_about(bug)
        then(daemon)
        assert daemon.wait() == 1, daemon.log()
    assert bugs.done()
    assert f" FATAL: greenlet {name} died\nTraceback (most recent call last):\n" in daemon.log()
    tracebacks = 2 if "resolve" in bug else 1  # the thread's
    assert daemon.log().count("Traceback") == tracebacks, daemon.log()
    assert daemon.log().endswith(" INFO: NSQ: bye\n")
    daemon.command = own_command()
    with daemon, NSQClient(daemon.tcp_address) as client:
        client.subscribe("t", "c", rdy=10)
        assert sorted(client.message().body for _ in BODIES) == sorted(BODIES)


def test_a_defect_in_serving_a_client_is_the_end_of_that_client_alone(bugs: Bugs, tmp_path: Path) -> None:
    cert, key = issue("server").write(tmp_path / "server")
    daemon = Instance(bugs.command, tmp_path / "data", f"--tls-cert={cert}", f"--tls-key={key}")

    with daemon:
        healthy = NSQClient(daemon.tcp_address)
        for kind in ("IOLoop", "messagePump"):
            unlucky = NSQClient(daemon.tcp_address)
            unlucky.identify(msg_timeout=1000)
            unlucky.subscribe("t", "c", rdy=1)
            healthy.publish("t", kind.encode())
            assert unlucky.message().body == kind.encode()
            unlucky.command(b"RDY 0")  # so that it is not delivered to this one again
            host, port = unlucky.sock.getsockname()
            bugs.bring_about(f"throw {kind}:{host}:{port}")
            read_all(unlucky.sock)  # up to its end
            # What it had in flight times out, as after every end of a connection.
            with NSQClient(daemon.tcp_address) as other:
                other.subscribe("t", "c", rdy=1)
                message = other.message()
                assert (message.body, message.attempts) == (kind.encode(), 2)
                other.command(b"FIN " + message.id)
                other.command(b"CLS")
                assert other.response() == b"CLOSE_WAIT"
        plain = open_socket(daemon.http_address, DEADLINE)
        secure = tls_client_context("tls1.3").wrap_socket(open_socket(https_address(daemon), DEADLINE))
        for kind, sock in (("http", plain), ("https", secure)):
            sock.sendall(head("GET /ping"))
            assert sock.recv(65536).endswith(b"OK")
            bugs.bring_about(f"throw {kind}:")
            read_all(sock)
        page = series(daemon.http("GET", "/metrics")[2])
        for kind in ("IOLoop", "messagePump", "http", "https"):
            assert page["gnsqd_greenlet_crashes_total", labels(greenlet=kind)] == 1
            assert re.search(rf" ERROR: greenlet {kind}:127\.0\.0\.1:\d+ died\nTraceback", daemon.log())
        eventually(lambda: daemon.channel_stats("t", "c")["client_count"] == 0)
        healthy.publish("t", b"x")
        assert daemon.terminate() == 0
    assert " FATAL: " not in daemon.log()
