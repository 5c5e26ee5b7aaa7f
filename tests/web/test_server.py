"""`gnsqadmin web` and `gnsqd --admin-http-address` as processes: start, live updates, limits, exit; and below a path of
a reverse proxy that passes the path on unchanged."""

import http.client
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest

from cli.fake_nsqd import FakeServer, channel, node, peeked, topic
from cli.gnsqadmin import failure
from cli.nodes import at
from kit.daemons import DEADLINE, Instance, address_of, eventually, open_socket, own_command, run_to_end
from kit.lookupds import DEV
from kit.observers import open_files
from kit.peer_program import PeerProgram
from kit.traffic import DaemonFactory, create
from nsqadmin_cli.http_client import Address
from nsqadmin_cli.web.monitor import INTERVAL, SHARED
from nsqadmin_cli.web.process import reachable
from web.app import App, WebProcess, admin_of, ask, shown, wait_until_quiet

HOST = b"Host: localhost\r\n"


class LiveStream:
    """The events of a live page."""

    def __init__(self, address: str, at: str = "/") -> None:
        self._connection = http.client.HTTPConnection(address, timeout=DEADLINE)
        headers = {"Accept": "text/event-stream", "Sec-Fetch-Site": "same-origin"}
        self._connection.request("GET", at, headers=headers)
        self.response = self._connection.getresponse()

    def event(self) -> str:
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
    return FakeServer({"/stats": [lambda: node(topic("t", message_count=next(count)))]})


def test_the_page_is_served_until_a_signal(gnsqd: Instance, tmp_path: Path) -> None:
    with WebProcess(tmp_path, *at(gnsqd)) as web:
        assert web.get("/ping") == (200, "OK")
        assert web.get("/")[0] == 200
        assert "the topic a/b" in web.get("/topics?topic=a%2Fb")[1]
        assert web.end() == 0
        assert re.search(r"ADMIN: listening on 127\.0\.0\.1:\d+", web.log())


def test_live_pages_share_the_queries_and_nobody_looking_makes_few(fake: FakeServer, tmp_path: Path) -> None:
    with WebProcess(tmp_path, *at(fake)) as web:
        streams = [LiveStream(web.address, at) for at in ("/", "/", "/topics/t", "/nodes")]
        for stream in streams:
            assert stream.response.headers["Content-Type"] == "text/event-stream"

        def asked() -> int:
            return sum("include_clients=true" in one for one in fake.asked)

        before, started = asked(), time.monotonic()
        texts = [streams[0].event() for _ in range(3)]
        assert "topics 1" in texts[0]
        assert re.search(r"in/s \d", texts[-1])
        assert "<" not in texts[0]
        # One for all streams in each interval, and those of doctor, which takes two.
        seconds = time.monotonic() - started
        assert asked() - before <= seconds / SHARED + 1 + 2 * (1 + seconds // 15)
        for stream in streams:
            stream.close()
        wait_until_quiet(fake, 1.5 * INTERVAL)  # a stream notices at its next event that its client has gone


def test_the_number_of_live_pages_is_limited(fake: FakeServer, tmp_path: Path) -> None:
    with WebProcess(tmp_path, *at(fake)) as web:
        streams = [LiveStream(web.address) for _ in range(33)]
        assert [stream.response.status for stream in streams] == [200] * 32 + [503]
        assert web.get("/")[0] == 200
        for stream in streams:
            stream.close()


def test_a_page_that_waits_for_a_node_delays_no_other_request(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        node = "{}:{}".format(*hanging.getsockname())
        with WebProcess(tmp_path, *at(node), f"--timeout={DEADLINE}") as web:
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


def test_a_wrong_address_is_one_line_and_one_for_all_is_warned_of(fake: FakeServer, tmp_path: Path) -> None:
    with WebProcess(tmp_path, *at(fake), "--http-address=0.0.0.0:0") as web:
        assert "everybody who reaches" in web.log()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for flag, reason in (
            ("--http-address=nonsense", "missing port in address"),
            ("--http-address=127.0.0.1:99999", "invalid port"),
            ("--http-auth-token-file=/nonexistent", "must begin with read: or full:"),
            ("--http-auth-token-file=full:/nonexistent", "no such file or directory"),
            ("--token-file=/nonexistent", "cannot read the token"),
            ("--http-address={}:{}".format(*taken.getsockname()), "address already in use"),
        ):
            assert reason in failure("web", "--http-address=127.0.0.1:0", flag)


# In the daemon


OWN_PAGE = "--admin-http-address=127.0.0.1:0"


def page_processes(daemon: Instance) -> list[int]:
    return [int(pid) for pid in re.findall(r"INFO: ADMIN: process (\d+) serves the page", daemon.log())]


def ping(daemon: Instance) -> str:
    return ask(admin_of(daemon), "GET", "/ping")[1]


@contextmanager
def pinging(daemon: Instance) -> Iterator[socket.socket]:
    """Gives a connection to its page that has asked for /ping, and is answered at the end."""
    with open_socket(address_of(admin_of(daemon)), DEADLINE) as waiting:
        waiting.sendall(b"GET /ping HTTP/1.1\r\n" + HOST + b"\r\n")
        yield waiting
        assert waiting.recv(15) == b"HTTP/1.1 200 OK"


@pytest.fixture
def viewed(gnsqd_factory: DaemonFactory) -> tuple[Instance, int]:
    """Starts a daemon and the process of its page."""
    daemon = gnsqd_factory(OWN_PAGE)
    assert ping(daemon) == "OK"
    (pid,) = page_processes(daemon)
    return daemon, pid


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_the_daemon_has_a_page_of_itself(gnsqd_factory: DaemonFactory) -> None:
    """Runs in a process that it starts when somebody looks."""
    daemon = gnsqd_factory(OWN_PAGE)
    create(daemon, "orders")
    assert "orders" in shown(ask(admin_of(daemon), "GET", "/")[1])
    stream = LiveStream(admin_of(daemon))
    assert "topics 1" in stream.event()
    assert daemon.terminate() == 0  # although somebody looks
    stream.close()
    daemon = gnsqd_factory(OWN_PAGE)
    assert (daemon.terminate(), page_processes(daemon)) == (0, [])
    assert "ADMIN: closing" in daemon.log()


def test_the_daemon_warns_of_a_page_for_all_that_needs_no_token(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("0123456789abcdef-full\n")
    for flags, warned in (
        (["--admin-http-address=0.0.0.0:0"], True),
        (["--admin-http-address=127.0.0.1:0"], False),
        (["--admin-http-address=0.0.0.0:0", f"--http-auth-token-file=full:{tmp_path / 'tokens'}"], False),
    ):
        assert ("everybody who reaches http://127.0.0.1:" in gnsqd_factory(*flags).log()) is warned, flags


def test_dev_has_the_page_and_nsqlookupd_in_it(gnsqd_factory: DaemonFactory) -> None:
    daemon = gnsqd_factory(*DEV)
    (line,) = (line for line in daemon.log().splitlines() if "INFO: DEV: " in line)
    assert f"; page: http://{admin_of(daemon)}; data: " in line
    create(daemon, "orders")
    (listed,) = json.loads(ask(admin_of(daemon), "GET", "/api/nodes")[1])["nodes"]
    assert listed["http_port"] == daemon.http_address[1]
    assert [one["topic"] for one in listed["topics"]] == ["orders"]
    assert f"127.0.0.1:{daemon.http_address[1]}" in shown(ask(admin_of(daemon), "GET", "/lookup")[1])


def test_the_daemon_does_not_start_with_a_page_that_cannot_be(tmp_path: Path) -> None:
    for flags, reason in (
        (["--admin-http-address=nonsense"], "listen (nonsense) failed"),
        ([OWN_PAGE, "--http-address="], "--admin-http-address needs a port or path"),
    ):
        places = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={tmp_path}"]
        result = run_to_end(own_command(), *places, *flags)
        assert (result.returncode, reason in result.stderr, "Traceback" in result.stderr) == (1, True, False)


def test_work_for_the_page_takes_nothing_from_the_daemon(viewed: tuple[Instance, int], tmp_path: Path) -> None:
    daemon, pid = viewed
    assert [file for file in open_files(pid) if str(tmp_path) in file and not file.endswith("log")] == []
    os.kill(pid, signal.SIGSTOP)
    with pinging(daemon):
        assert daemon.http("GET", "/ping")[0] == 200
        os.kill(pid, signal.SIGCONT)


def test_the_page_reaches_a_unix_socket_by_its_absolute_path() -> None:
    assert Address.parse(reachable("nsqd.sock")).path == os.path.abspath("nsqd.sock")
    assert (reachable(""), reachable("@nsqd")) == ("", "@nsqd")


def test_a_page_process_that_died_is_replaced_and_logs_as_the_daemon(viewed: tuple[Instance, int]) -> None:
    daemon, pid = viewed
    os.kill(pid, signal.SIGKILL)
    assert ping(daemon) == "OK"
    assert len(page_processes(daemon)) == 2
    (line,) = (line for line in daemon.log().splitlines() if "ERROR" in line)
    assert line.endswith("ERROR: ADMIN: the page's process ended by signal 9; the next one starts after 1 s")

    def logs() -> bool:
        before = daemon.log().count("ADMIN: 200 POST")
        assert ask(admin_of(daemon), "POST", "/api/topics", '{"topic": "t"}')[0] == 200
        return daemon.log().count("ADMIN: 200 POST") > before

    assert logs()
    for level, expected in ((b"error", False), (b"info", True)):
        assert daemon.http("PUT", "/config/log_level", level)[0] == 200
        eventually(lambda expected=expected: logs() is expected)  # type: ignore[misc]


def test_a_daemon_without_descriptors_has_its_page_later(gnsqd_factory: DaemonFactory) -> None:
    daemon = gnsqd_factory(OWN_PAGE)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = len(os.listdir(f"/proc/{daemon.pid}/fd"))
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (count, limits[1]))
    with pinging(daemon):
        eventually(lambda: "ERROR: ADMIN: the page's process cannot be started: too many open files" in daemon.log())
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("number, hangs", [(signal.SIGTERM, False), (signal.SIGKILL, False), (signal.SIGTERM, True)])
def test_the_page_ends_with_the_daemon(viewed: tuple[Instance, int], number: signal.Signals, hangs: bool) -> None:
    daemon, pid = viewed
    stream = LiveStream(admin_of(daemon))
    if hangs:
        os.kill(pid, signal.SIGSTOP)
    daemon.send_signal(number)
    assert daemon.wait() == (0 if number == signal.SIGTERM else -number)
    eventually(lambda: not running(pid))
    assert "ERROR" not in daemon.log() or hangs
    with pytest.raises(OSError):
        ping(daemon)
    stream.close()


def test_a_process_that_nobody_uses_ends_and_refuses_nobody() -> None:
    ours, its = socket.socketpair()
    with ours, socket.create_server(("127.0.0.1", 0)) as listener:
        with its:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "nsqadmin_cli.web"], stdin=its.fileno(), pass_fds=[listener.fileno()]
            )
        settings = {
            "descriptor": listener.fileno(), "nsqd": "127.0.0.1:1", "listed": ["", 1], "nsqlookupd": "",
            "token_files": [], "read_only": False, "log_prefix": "", "log_format": "text", "log_level": 2,
            "idle_seconds": 0.5,
        }  # fmt: skip
        ours.sendall(json.dumps(settings).encode() + b"\n")
        address = "http://{}:{}".format(*listener.getsockname())
        assert urllib.request.urlopen(f"{address}/ping", timeout=DEADLINE).read() == b"OK"
        assert process.wait(DEADLINE) == 0
        socket.create_connection(listener.getsockname(), DEADLINE).close()


POST = b"POST /api/topics HTTP/1.1\r\n" + HOST
# What cannot be HTTP is judged where gnsqd's HTTP is, which reads the page's requests.
BAD_REQUESTS = [
    b"\x16\x03\x01\x00\xa5\x01",
    b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /%00%ff HTTP/1.1\r\n" + HOST + b"\r\n",
    b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n",
    b"POST /change/topic/create HTTP/1.1\r\n" + HOST + b"Content-Length: -5\r\n\r\n",
    POST + b"Content-Length: 9\r\n\r\n{",
    POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nGET",
    POST + b"Content-Length: 5000000\r\n\r\n{",
    POST + b"Content-Length: 2\r\n\r\n[]",
    POST + b'Content-Length: 13\r\n\r\n{"topic": 17}',
    POST + b"Content-Length: 20000\r\n\r\n" + b"[" * 20_000,
]


def test_no_request_ends_the_daemon_or_floods_its_log(gnsqd_factory: DaemonFactory) -> None:
    """Sends each to its end, and once more to a connection that is closed at once, which a slow answer meets."""
    daemon = gnsqd_factory(OWN_PAGE)
    before, page = daemon.log().count("\n"), address_of(admin_of(daemon))
    for request in BAD_REQUESTS:
        answer = b""
        with open_socket(page, DEADLINE) as sock, suppress(ConnectionResetError):
            sock.sendall(request)
            sock.shutdown(socket.SHUT_WR)
            answer = sock.makefile("rb").read()
        assert not answer or re.match(rb"HTTP/1\.1 (4\d\d|501|505|200) ", answer), (request[:100], answer)
        for _ in range(3):
            with open_socket(page, DEADLINE) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.sendall(request)
    assert ping(daemon) == "OK"
    assert daemon.running
    assert daemon.stats()["topics"] == []
    lines = daemon.log().splitlines()[before:]
    assert [line for line in lines if not re.match(r"\[nsqd\] [\d/]+ [\d:.]+ INFO: ", line)] == []
    assert len(lines) <= 4 * len(BAD_REQUESTS)


def announced(address: str, path: str, **headers: str) -> http.client.HTTPConnection:
    """Opens a connection with the head of a request whose body is not sent."""
    connection = http.client.HTTPConnection(address, timeout=DEADLINE)
    connection.putrequest("POST", path)
    for name, value in {"Origin": f"http://{address}", "Content-Length": str(4 << 20), **headers}.items():
        connection.putheader(name, value)
    connection.endheaders()
    return connection


def test_a_strangers_large_body_is_refused_before_it_is_sent(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("0123456789abcdef-full\n")
    daemon = gnsqd_factory(OWN_PAGE, f"--http-auth-token-file=full:{tmp_path / 'tokens'}")
    address = admin_of(daemon)
    for path, status in (("/login", 413), ("/publish", 401), ("/api/topics", 401), ("/nope", 401)):
        with closing(announced(address, path)) as stranger:
            assert stranger.getresponse().status == status, path


def test_all_unfinished_bodies_together_are_bounded(gnsqd_factory: DaemonFactory) -> None:
    daemon = gnsqd_factory(OWN_PAGE)
    address = admin_of(daemon)

    def accepted() -> http.client.HTTPConnection | None:
        """Returns a connection whose body may come; None if it was refused."""
        connection = announced(address, "/publish", Expect="100-continue")
        assert connection.sock is not None
        if connection.sock.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 100":
            return connection
        connection.close()
        return None

    held = [connection for connection in (accepted() for _ in range(5)) if connection is not None]
    assert len(held) == 2
    with closing(announced(address, "/publish")) as refused:
        answer = refused.getresponse()
        assert answer.status == 503
        assert b"too many large messages" in answer.read()
    form = urlencode({"topic": "t", "body": "small"}).encode()
    urllib.request.urlopen(urllib.request.Request(f"http://{address}/publish", form, {"Origin": f"http://{address}"}))
    held.pop().close()
    again = eventually(accepted)
    for connection in (*held, again):
        connection.close()


# Below a path


# Looks like an address of this site, but is a message.
BODY = '<a href="/nowhere" src="/nowhere">'


def addresses(markup: str) -> set[str]:
    """Returns the addresses in it, except those of places on the same page."""
    return {unescape(one) for one in re.findall(r'\s(?:href|action|src)="([^"#]+)"', markup)}


def test_every_address_on_every_page_is_below_the_base_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqadmin_cli.web.app.INTERVAL", 0.01)
    stats = node(topic("t", channel("c"), depth=3), topic("a/b"), topic("..", channel(".")))
    app = App([FakeServer({"/stats": [stats], "/channel/peek": [peeked(BODY)]}).address], base_path="/nsq")
    statuses: dict[str, int] = {}
    left = {"/nsq/", "/nsq/done/none", "/nsq/change/topic/delete?topic=t"}
    while left:
        target = left.pop()
        answer = app.get(target, Accept="text/html")
        statuses[target] = answer.status
        if answer.headers["Content-Type"].startswith("text/html"):
            assert [one for one in addresses(answer.text) if not one.startswith("/nsq/")] == [], target
            left |= addresses(answer.text) - statuses.keys()
    assert {target for target, status in statuses.items() if status == 404} == {"/nsq/done/none"}
    assert {"/nsq/static/page.js", "/nsq/topics/t/c", "/nsq/topics?topic=a%2Fb", "/nsq/doctor"} <= statuses.keys()
    assert "Channel ." in app.page("/nsq/topics?topic=..&channel=.")
    assert BODY in app.page("/nsq/peek?topic=t&channel=c")
    with app.live("/nsq/topics/t", whole=True) as parts:
        assert "/nsq/topics/t/c" in addresses(next(parts))


def answer_of(address: str, path: str) -> int:
    """Returns the status, after redirections."""
    try:
        return int(urllib.request.urlopen(f"http://{address}{path}", timeout=DEADLINE).status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.peer
@pytest.mark.parametrize("base", ["/nsq", "/nsq/", "/ops/n.s_q-1~", "/", ""])
def test_the_same_paths_are_served_as_by_nsqadmin(
    peer_binary: Callable[[str], Path], tmp_path: Path, gnsqd: Instance, base: str
) -> None:
    create(gnsqd, "Te", "Ch")
    flags = [*at(gnsqd), f"--base-path={base}"]
    paths = ["/", "/ping", "/topics", "/topics/", "/api/topics", "/api/topics/", "/api/nope", "/nope", "/TOPICS/Te/Ch/"]
    paths += ["/nsq", "/nsqx", "/NSQ", *(base.rstrip("/") + path for path in paths)]
    theirs = PeerProgram(peer_binary("nsqadmin"), tmp_path / "admin", "--http-address=127.0.0.1:0", *flags)
    with theirs, WebProcess(tmp_path, *flags) as web:
        for path in paths:
            assert answer_of(web.address, path) == answer_of(theirs.address["HTTP"], path), path
