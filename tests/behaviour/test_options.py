"""Every option does what it says: a test for each, here or where its subject is tested."""

import itertools
import json
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread

import pytest

from gnsqd.options import OPTIONS
from kit.daemons import DEADLINE, Instance, eventually
from kit.http_api import ask
from kit.nsq_client import ERROR, Frame, NSQClient, sized, split_frames
from kit.traffic import DaemonFactory

TESTS = Path(__file__).parents[1]
EXAMPLE = TESTS.parent / "contrib" / "nsqd.cfg.example"

LOGGED_AT = r"\[nsqd\] (\S+ \S+) "


def test_every_option_is_set_by_a_test() -> None:
    # test_http_config sets all options of nsqd, but only to see them again.
    texts = [path.read_text("utf-8") for path in TESTS.rglob("*.py") if path.name != "test_http_config.py"]
    flags = {option.flag: re.compile(rf"--{option.flag}\b(?!-)|\b{option.name}=") for option in OPTIONS if option.flag}
    assert [flag for flag, form in flags.items() if not any(map(form.search, texts))] == []


# Logging, names and places


def test_log_shows_what_is_severe_enough(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    def log(level: str) -> str:
        sockets = [f"--{kind}-address={tmp_path}/{level}-{kind}" for kind in ("tcp", "http")]  # no port to wait for
        nsqd = nsqd_factory(*sockets, f"--log-level={level}")
        with NSQClient(nsqd.tcp_address) as client:
            client.command(b"NOP\nBOGUS")
            client.recv_until_closed()
        nsqd.terminate()
        return nsqd.log()

    shown = {
        level: set(re.findall(r" (DEBUG|INFO|WARNING|ERROR): ", log(level))) for level in ("Debug", "info", "error")
    }
    assert shown == {"Debug": {"DEBUG", "INFO", "ERROR"}, "info": {"INFO", "ERROR"}, "error": {"ERROR"}}
    assert log("FATAL") == ""


def shown_options(nsqd: Instance) -> dict[str, str]:
    keys = [option.cfg for option in OPTIONS if option.cfg and not option.ours]
    # nsqd calls a list that the config file left empty null
    shown = {key: ask(nsqd, f"GET /config/{key}")[1].replace("null", "[]") for key in keys}
    own = {"tcp_address", "http_address", "broadcast_tcp_port", "broadcast_http_port", "data_path", "statsd_prefix"}
    return {key: value for key, value in shown.items() if key not in own}


def test_deprecated_flags_change_nothing(nsqd_factory: DaemonFactory) -> None:
    with_them, without = nsqd_factory("--verbose", "--worker-id=true"), nsqd_factory()
    assert shown_options(with_them) == shown_options(without)
    with NSQClient(with_them.tcp_address) as client:
        client.publish("t", b"x")
    assert " DEBUG: " not in with_them.log()


def test_example_config_file_changes_nothing(nsqd_factory: DaemonFactory) -> None:
    assert shown_options(nsqd_factory(f"--config={EXAMPLE}")) == shown_options(nsqd_factory())


def test_every_message_id_contains_the_node_id(nsqd_factory: DaemonFactory) -> None:
    with NSQClient(nsqd_factory("--node-id=677").tcp_address) as client:
        client.subscribe("t", "c", rdy=10)
        client.send(b"PUB t\n\x00\x00\x00\x01x" * 10)
        frames = [client.frame() for _ in range(20)]
    ids = [int(frame.data[10:26], 16) for frame in frames if len(frame.data) > 26]
    assert [id >> 12 & 1023 for id in ids] == [677] * 10


def test_there_is_no_http_without_an_address(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--http-address=")
    with NSQClient(nsqd.tcp_address) as client:
        client.publish("t", b"x")
    nsqd.terminate()
    assert "TCP: listening on " in nsqd.log()
    assert "HTTP: " not in nsqd.log()


def test_data_is_in_the_data_path_or_else_in_the_working_directory(nsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for flag, directory in (("--data-path=", None), (f"--data-path={elsewhere}", elsewhere)):
        nsqd = nsqd_factory(flag)  # in a working directory of its own
        with NSQClient(nsqd.tcp_address) as client:
            client.publish("t", b"x")
        nsqd.terminate()
        names = {path.name for path in (directory or nsqd.data_path).iterdir()}
        assert names >= {"nsqd.dat", "t.diskqueue.000000.dat", "t.diskqueue.meta.dat"}


# Disk


def data_files(nsqd: Instance, topic: str) -> list[int]:
    return [path.stat().st_size for path in sorted(nsqd.data_path.glob(f"{topic}.diskqueue.0*.dat"))]


@pytest.mark.parametrize(("limit", "sizes"), [(180, [180, 120]), (179, [120, 120, 60]), (-1, [60] * 5)])
def test_files_are_as_long_as_the_option_allows(nsqd_factory: DaemonFactory, limit: int, sizes: list[int]) -> None:
    nsqd = nsqd_factory("--mem-queue-size=0", f"--max-bytes-per-file={limit}")
    with NSQClient(nsqd.tcp_address) as client:
        for _ in range(5):
            client.publish("t", b"x" * 30)  # with 30 bytes before it on disk
    assert data_files(nsqd, "t") == sizes


def synced_depth(nsqd: Instance, topic: str) -> int:
    """Returns the depth in the meta file, which is written when the queue is synced."""
    try:
        return int((nsqd.data_path / f"{topic}.diskqueue.meta.dat").read_text().split()[0])
    except FileNotFoundError:
        return 0


def test_queues_are_synced_by_number_and_by_time(nsqd_factory: DaemonFactory) -> None:
    by_number = nsqd_factory("--mem-queue-size=1", "--sync-every=10", "--sync-timeout=1h")
    by_time = nsqd_factory("--mem-queue-size=1", "--sync-every=1000000", "--sync-timeout=100ms")
    for nsqd in (by_number, by_time):
        with NSQClient(nsqd.tcp_address) as client:
            for topic, count in (("few", 4), ("many", 26)):  # one of them in memory
                for _ in range(count):
                    client.publish(topic, b"x")
    eventually(lambda: synced_depth(by_number, "many") >= 10)
    eventually(lambda: (synced_depth(by_time, "few"), synced_depth(by_time, "many")) == (3, 25))
    with NSQClient(by_number.tcp_address) as clock:  # longer than the default of --sync-timeout
        clock.subscribe("clock", "c", rdy=1)
        clock.command(b"DPUB clock 3000", b"x")
        assert clock.response() == b"OK"
        clock.message()
    assert synced_depth(by_number, "few") == 0


# Clients


def test_clients_may_ask_for_what_the_options_allow(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory(
        "--max-heartbeat-interval=5m", "--max-output-buffer-size=524288", "--max-output-buffer-timeout=1s",
        "--min-output-buffer-timeout=100ms", "--max-msg-timeout=30s",
    )  # fmt: skip
    for field, value, other, name in (
        ("heartbeat_interval", 300_000, 300_001, "heartbeat interval"),
        ("output_buffer_size", 524_288, 524_289, "output buffer size"),
        ("output_buffer_timeout", 1000, 1001, "output buffer timeout"),
        ("output_buffer_timeout", 100, 99, "output buffer timeout"),
        ("msg_timeout", 30_000, 30_001, "msg timeout"),
    ):
        with NSQClient(nsqd.tcp_address) as client:
            assert client.identify(**{field: value}).data == b"OK"
            client.command(b"IDENTIFY", json.dumps({field: other}).encode())
            text = f"E_BAD_BODY IDENTIFY {name} ({other}) is invalid".encode()
            assert split_frames(client.recv_until_closed()) == [Frame(ERROR, text)]


def test_messages_leave_with_the_daemons_own_flush_tick(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--output-buffer-timeout=1s")
    with NSQClient(nsqd.tcp_address) as client, NSQClient(nsqd.tcp_address) as publisher:
        began = time.monotonic()
        assert client.identify().data == b"OK"
        client.subscribe("t", "c", rdy=10)
        eventually(lambda: nsqd.channel_stats("t", "c")["clients"][0]["ready_count"] == 10)
        publisher.publish("t", b"buffered")
        assert client.message().body == b"buffered"
        assert time.monotonic() - began > 0.9


# nsqlookupd


@contextmanager
def lookupd(http_port: int) -> Iterator[str]:
    """Serves an nsqlookupd that answers every command, and gives `http_port` for where to ask for channels."""

    class Conversation(StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.read(4)
            while line := self.rfile.readline():
                answer = b"OK"
                if line == b"IDENTIFY\n":
                    self.rfile.read(*struct.unpack(">i", self.rfile.read(4)))
                    info = {"broadcast_address": "127.0.0.1", "http_port": http_port, "tcp_port": 1}
                    answer = json.dumps(info | {"version": "1.3.0"}).encode()
                self.wfile.write(sized(answer))

    with ThreadingTCPServer(("127.0.0.1", 0), Conversation) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(DEADLINE)


@pytest.mark.parametrize(
    ("what", "flags", "seconds"),
    [
        ("request", ["--http-client-request-timeout=1s", "--http-client-connect-timeout=20s"], (0.9, 4.5)),
        ("connect", ["--http-client-request-timeout=20s", "--http-client-connect-timeout=1s"], (0.9, 15.0)),
    ],
)
def test_nsqlookupd_that_hangs_is_given_up_in_time(
    nsqd_factory: DaemonFactory, what: str, flags: list[str], seconds: tuple[float, float]
) -> None:
    with ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0 if what == "connect" else 5))
        if what == "connect":  # the kernel takes no more connections when some wait
            for _ in range(4):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(silent.getsockname())
        address = stack.enter_context(lookupd(silent.getsockname()[1]))
        nsqd = nsqd_factory(f"--lookupd-tcp-address={address}", *flags)
        names = itertools.count()

        def gave_up() -> float | None:
            """Returns the seconds after which it gave up the first question of a topic, once its log has that."""
            if "querying nsqlookupd" not in nsqd.log():
                assert ask(nsqd, f"POST /topic/create?topic=t{next(names)}")[0] == 200
            if (failed := re.search(rf"{LOGGED_AT}WARNING: failed to query .* topic (t\d+) - ", nsqd.log())) is None:
                return None
            asked = re.search(rf"{LOGGED_AT}INFO: CI: querying nsqlookupd .*\?topic={failed[2]}$", nsqd.log(), re.M)
            assert asked is not None
            began, ended = (datetime.strptime(line[1], "%Y/%m/%d %H:%M:%S.%f") for line in (asked, failed))
            return (ended - began).total_seconds()

        least, most = seconds
        assert least < eventually(gave_up) < most


# Values that mean nothing


def test_numbers_below_zero_do_no_harm(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--sync-every=-1", "--mem-queue-size=0", "--max-bytes-per-file=-1", "--max-rdy-count=-1")
    with NSQClient(nsqd.tcp_address) as client:
        for _ in range(20):
            client.publish("t", b"x")
    nsqd.restart("--mem-queue-size=0", "--sync-every=-1")
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=20)
        assert [client.message().body for _ in range(20)] == [b"x"] * 20
    assert nsqd.terminate() == 0


def test_no_message_is_small_enough_for_a_size_below_zero(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--max-msg-size=-1")
    with NSQClient(nsqd.tcp_address) as client:
        client.command(b"PUB t", b"x")
        assert split_frames(client.recv_until_closed()) == [Frame(ERROR, b"E_BAD_MESSAGE PUB message too big 1 > -1")]
    assert nsqd.http("GET", "/ping")[0] == 200
    assert nsqd.terminate() == 0
