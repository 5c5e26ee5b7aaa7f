"""`gnsqadmin web` and `gnsqd --admin-http-address` as processes: start, live updates, limits, exit."""

import http.client
import json
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from cli.fake_nsqd import FakeServer, node, topic
from cli.gnsqadmin import FakeNode, gnsqadmin
from cli.test_answer_sizes import ENDLESS, pouring
from conftest import DaemonFactory
from daemons import DEADLINE, Daemon, eventually, own_command, run_to_end
from lookupds import DEV
from nsqadmin_web.monitor import INTERVAL, SHARED
from web.wsgi import WebProcess, shown

STATS = "/stats"


class Stream:
    """The events of a live page."""

    def __init__(self, address: str, at: str = "/") -> None:
        self._connection = http.client.HTTPConnection(address, timeout=DEADLINE)
        self._connection.request("GET", f"/live?at={at}", headers={"Sec-Fetch-Site": "same-origin"})
        self.response = self._connection.getresponse()

    def event(self) -> str:
        """The text of the next one."""
        while True:
            line = self.response.readline().decode()
            assert line, "the stream has ended"
            if line.startswith("data: "):
                return shown(json.loads(line.removeprefix("data: ")))

    def close(self) -> None:
        self.response.close()
        self._connection.close()


@pytest.fixture
def fake() -> FakeServer:
    count = iter(range(0, 10**9, 5))
    return FakeServer({STATS: [lambda: node(topic("t", message_count=next(count)))]})


def test_the_page_is_served_until_a_signal(gnsqd: Daemon, tmp_path: Path) -> None:
    flag = "--nsqd-http-address={}:{}".format(*gnsqd.http_address)
    with WebProcess(tmp_path, flag) as web:
        assert web.get("/ping") == (200, "OK")
        assert web.get("/")[0] == 200
        assert web.get("/topics/a%2Fb")[0] == 404  # one segment
        assert "the topic a/b" in web.get("/topics/a%2Fb")[1]
        assert web.end() == 0
        assert re.search(r"ADMIN: listening on 127\.0\.0\.1:\d+", web.log())


def test_live_pages_share_the_queries_and_nobody_looking_makes_none(fake: FakeServer, tmp_path: Path) -> None:
    with WebProcess(tmp_path, f"--nsqd-http-address={fake.address}") as web:
        streams = [Stream(web.address, at) for at in ("/", "/", "/topics/t", "/nodes")]
        for stream in streams:
            assert stream.response.headers["Content-Type"] == "text/event-stream"
        before, started = len([one for one in fake.asked if "include_clients=true" in one]), time.monotonic()
        texts = [streams[0].event() for _ in range(3)]
        assert "topics 1" in texts[0]
        assert re.search(r"in/s \d", texts[-1])
        assert "<" not in texts[0]
        asked = [one for one in fake.asked if "include_clients=true" in one][before:]
        # One for all streams in each interval, and those of doctor, which takes two.
        seconds = time.monotonic() - started
        assert len(asked) <= seconds / SHARED + 1 + 2 * (1 + seconds // 15), asked
        for stream in streams:
            stream.close()
        # A stream notices at its next event that its client has gone; what was asked last then stays the last.
        last = [len(fake.asked), time.monotonic()]

        def nobody_asks() -> bool:
            if len(fake.asked) != last[0]:
                last[:] = len(fake.asked), time.monotonic()
            return time.monotonic() - last[1] > 1.5 * INTERVAL

        eventually(nobody_asks)


def test_the_number_of_live_pages_is_limited(fake: FakeServer, tmp_path: Path) -> None:
    with WebProcess(tmp_path, f"--nsqd-http-address={fake.address}") as web:
        streams = [Stream(web.address) for _ in range(33)]
        assert [stream.response.status for stream in streams] == [200] * 32 + [503]
        assert web.get("/")[0] == 200
        for stream in streams:
            stream.close()


def test_a_slow_client_keeps_nobody_waiting(fake: FakeServer, tmp_path: Path) -> None:
    with WebProcess(tmp_path, f"--nsqd-http-address={fake.address}") as web:
        host, _, port = web.address.rpartition(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(b"POST /publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc")
            assert web.get("/")[0] == 200


def test_a_page_that_waits_for_a_node_delays_no_other_request(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        node = "{}:{}".format(*hanging.getsockname())
        with WebProcess(tmp_path, f"--nsqd-http-address={node}", f"--timeout={DEADLINE}") as web:
            web.get("/static/page.css")
            order: list[str] = []
            waiting = threading.Thread(target=lambda: order.append(web.get("/")[1]))
            waiting.start()
            with hanging.accept()[0] as asked:
                asked.recv(1)
                for _ in range(20):
                    assert web.get("/ping") == (200, "OK")
                order.append("pings")
                hanging.close()
            waiting.join(DEADLINE)
    assert order[0] == "pings"
    assert f"nsqd at {node}: " in order[1]  # its error


@pytest.mark.parametrize(
    "flags, reason",
    [
        (["--http-address=nonsense"], "missing port in address"),
        (["--http-address=127.0.0.1:99999"], "invalid port"),
        (["--http-auth-token-file=/nonexistent"], "must begin with read: or full:"),
        (["--http-auth-token-file=full:/nonexistent"], "no such file or directory"),
        (["--token-file=/nonexistent"], "cannot read the token"),
    ],
)
def test_wrong_options_are_one_line(flags: list[str], reason: str) -> None:
    result = gnsqadmin("web", "--http-address=127.0.0.1:0", *flags)
    assert result.code == 1
    assert reason in result.err
    assert result.err.count("\n") == 1, result.err


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = gnsqadmin("web", "--http-address={}:{}".format(*taken.getsockname()))
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "address already in use" in result.err


def test_another_address_without_a_token_is_warned_of(fake: FakeServer, tmp_path: Path) -> None:
    with WebProcess(tmp_path, f"--nsqd-http-address={fake.address}", "--http-address=0.0.0.0:0") as web:
        assert "everybody who reaches" in web.log()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_nodes_that_answer_without_end_take_little_memory_and_leave_none_behind(tmp_path: Path) -> None:
    with ExitStack() as stack:
        nodes = [stack.enter_context(FakeNode(pouring(b"200 OK", *ENDLESS["text"][:2]))) for _ in range(5)]
        flags = [f"--nsqd-http-address={node.address}" for node in nodes]
        web = stack.enter_context(WebProcess(tmp_path, *flags, f"--timeout={DEADLINE}"))

        def megabytes(name: str) -> float:
            status = Path(f"/proc/{web.process.pid}/status").read_text()
            return int(status.partition(f"{name}:")[2].split()[0]) / 1000

        web.get("/ping")
        before = megabytes("VmRSS")
        for _ in range(2):
            assert f"nsqd at {nodes[0].address}: answered a" in web.get("/nodes")[1]
        assert megabytes("VmHWM") < before + 150
        assert megabytes("VmRSS") < before + 50


# In the daemon


def admin_of(daemon: Daemon) -> str:
    found = re.search(r"ADMIN: listening on (\S+)", daemon.log())
    assert found, daemon.log()
    return f"http://{found[1]}"


def test_the_daemon_has_a_page_of_itself(gnsqd_factory: DaemonFactory) -> None:
    daemon = gnsqd_factory("--admin-http-address=127.0.0.1:0")
    assert daemon.http("POST", "/topic/create?topic=orders")[0] == 200
    page = urllib.request.urlopen(f"{admin_of(daemon)}/", timeout=DEADLINE).read().decode()
    assert "orders" in shown(page)
    stream = Stream(admin_of(daemon).removeprefix("http://"))
    assert "topics 1" in stream.event()
    assert daemon.terminate() == 0  # although somebody looks
    stream.close()


def test_the_page_of_the_daemon_can_be_read_only(gnsqd_factory: DaemonFactory) -> None:
    daemon = gnsqd_factory("--admin-http-address=127.0.0.1:0", "--admin-read-only")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{admin_of(daemon)}/api/topics", b'{"topic": "orders"}', timeout=DEADLINE)
    assert refused.value.code == 403
    assert daemon.stats()["topics"] == []
    page = urllib.request.urlopen(f"{admin_of(daemon)}/", timeout=DEADLINE).read().decode()
    assert "read-only" in shown(page)


@pytest.mark.parametrize(
    "address, protection, warned",
    [("0.0.0.0", "", True), ("127.0.0.1", "", False), ("0.0.0.0", "--admin-read-only", False),
     ("0.0.0.0", "--http-auth-token-file=full:{}", False)],
)  # fmt: skip
def test_the_daemon_warns_of_a_page_for_other_machines_that_needs_no_token(
    gnsqd_factory: DaemonFactory, tmp_path: Path, address: str, protection: str, warned: bool
) -> None:
    (tmp_path / "tokens").write_text("0123456789abcdef-full\n")
    protected = [protection.format(tmp_path / "tokens")] if protection else []
    daemon = gnsqd_factory(f"--admin-http-address={address}:0", *protected)
    assert ("everybody who reaches http://127.0.0.1:" in daemon.log()) is warned


def test_dev_has_the_page_and_nsqlookupd_in_it(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    daemon = gnsqd_factory(*DEV)
    (line,) = (line for line in daemon.log().splitlines() if "INFO: DEV: " in line)
    assert f"; page: {admin_of(daemon)}; data: " in line
    assert daemon.http("POST", "/topic/create?topic=orders")[0] == 200
    answer = json.load(urllib.request.urlopen(f"{admin_of(daemon)}/api/nodes", timeout=DEADLINE))
    (found,) = answer["nodes"]
    assert found["http_port"] == daemon.http_address[1]
    assert [one["topic"] for one in found["topics"]] == ["orders"]
    page = shown(urllib.request.urlopen(f"{admin_of(daemon)}/lookup", timeout=DEADLINE).read().decode())
    assert f"127.0.0.1:{daemon.http_address[1]}" in page


def test_the_page_is_loaded_when_it_is_asked_for() -> None:
    heavy = ("jinja2", "click", "urllib3", "gevent.pywsgi", "nsqadmin_cli")
    code = f"import sys, gnsqd.nsqd, nsqadmin_web.server; print(*[name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


@pytest.mark.parametrize(
    "flags, reason",
    [
        (["--admin-http-address=nonsense"], "listen (nonsense) failed"),
        (["--admin-http-address=127.0.0.1:0", "--http-address="], "--admin-http-address needs a port or path"),
    ],
)
def test_the_daemon_does_not_start_with_a_page_that_cannot_be(tmp_path: Path, flags: list[str], reason: str) -> None:
    result = run_to_end(
        own_command(), "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={tmp_path}", *flags
    )
    assert result.returncode == 1
    assert reason in result.stderr
    assert "Traceback" not in result.stderr


def test_a_page_that_nobody_looked_at_ends_with_the_daemon(gnsqd_factory: DaemonFactory) -> None:
    daemon = gnsqd_factory("--admin-http-address=127.0.0.1:0")
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert "ADMIN: closing" in daemon.log()


HOST = b"Host: localhost\r\n"
BAD_REQUESTS = [
    b"GARBAGE\r\n\r\n",
    b"\x16\x03\x01\x00\xa5\x01",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /%00%ff HTTP/1.1\r\n" + HOST + b"\r\n",
    b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n",
    b"POST /act HTTP/1.1\r\n" + HOST + b"Content-Length: abc\r\n\r\n",
    b"POST /act HTTP/1.1\r\n" + HOST + b"Content-Length: -5\r\n\r\n",
    b"POST /api/topics HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\n{",
    b"POST /api/topics HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nGET",
    b"POST /api/topics HTTP/1.1\r\n" + HOST + b"Content-Length: 5000000\r\n\r\n{",
    b"POST /api/topics HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\n[]",
    b"POST /api/topics HTTP/1.1\r\n" + HOST + b'Content-Length: 13\r\n\r\n{"topic": 17}',
    b"POST /api/topics HTTP/1.1\r\n" + HOST + b"Content-Length: 20000\r\n\r\n" + b"[" * 20_000,
]


def test_no_request_ends_the_daemon(gnsqd_factory: DaemonFactory) -> None:
    """Each is sent to its end, and once more to a connection that is closed at once, which a slow answer meets."""
    daemon = gnsqd_factory("--admin-http-address=127.0.0.1:0")
    host, _, port = admin_of(daemon).removeprefix("http://").rpartition(":")
    for request in BAD_REQUESTS:
        with socket.create_connection((host, int(port)), DEADLINE) as sock:
            sock.sendall(request)
            sock.shutdown(socket.SHUT_WR)
            try:
                answer = sock.recv(100)
            except ConnectionResetError:
                answer = b""
        assert not answer or re.match(rb"HTTP/1\.1 (4\d\d|200) ", answer), (request[:100], answer)
        for _ in range(3):
            with socket.create_connection((host, int(port)), DEADLINE) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.sendall(request)
    assert urllib.request.urlopen(f"{admin_of(daemon)}/ping", timeout=DEADLINE).read() == b"OK"
    assert daemon.running
    assert "died" not in daemon.log()
    assert "defect" not in daemon.log()
