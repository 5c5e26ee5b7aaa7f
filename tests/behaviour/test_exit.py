"""The clean exit, with requests still coming in: what was answered is kept, and nothing that is not wanted stays."""

import json
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from daemons import DEADLINE, Daemon, eventually, open_socket
from nsq_client import Client


def metadata(daemon: Daemon) -> dict[str, bool]:
    """What nsqd.dat says: names of topics, and whether they are paused."""
    topics = json.loads((daemon.data_path / "nsqd.dat").read_bytes())["topics"] or []
    return {topic["name"]: topic["paused"] for topic in topics}


TOPICS = [f"topic{number}" for number in range(50)]


@pytest.fixture
def laden(gnsqd_factory: Callable[..., Daemon]) -> Daemon:
    """A daemon with much to write at its exit."""
    daemon = gnsqd_factory()
    for name in TOPICS:
        assert daemon.http("POST", f"/pub?topic={name}", b"x")[0] == 200
    return daemon


def terminate_while_answering(daemon: Daemon, requests: list[str]) -> int:
    """Send all requests at once on one connection, let the daemon exit, and count the requests that it had done."""
    answers = b""
    with open_socket(daemon.http_address, DEADLINE) as client:
        sender = threading.Thread(target=send_all, args=(client, "".join(requests).encode()))
        sender.start()
        while answers.count(b"HTTP/1.1 200 OK\r\n") < 20:
            answers += client.recv(65536)
        daemon.send_signal(signal.SIGTERM)
        try:
            while data := client.recv(65536):
                answers += data
        except ConnectionError:
            pass
        sender.join()
    assert daemon.wait() == 0
    return answers.count(b"HTTP/1.1 200 OK\r\n")


def send_all(client: socket.socket, data: bytes) -> None:
    try:
        client.sendall(data)
    except OSError:
        pass  # the daemon has gone


def test_pause_requests_that_come_during_the_exit_do_not_spoil_the_metadata(laden: Daemon) -> None:
    requests = [f"POST /topic/pause?topic={name} HTTP/1.1\r\nHost: x\r\n\r\n" for name in TOPICS] * 100
    done = terminate_while_answering(laden, requests)
    assert done < len(requests)
    paused = metadata(laden)
    assert sorted(paused) == sorted(TOPICS)
    assert [name for name in TOPICS[:done] if not paused[name]] == []


def test_every_message_that_was_answered_is_kept_though_its_topic_was_new(laden: Daemon) -> None:
    names = [f"new{number}" for number in range(20_000)]
    head = " HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"
    done = terminate_while_answering(laden, [f"POST /pub?topic={name}{head}" for name in names])
    assert done < len(names)
    kept = metadata(laden)
    assert [name for name in names[:done] if name not in kept] == []
    sizes = {path.name: path.stat().st_size for path in laden.data_path.glob("*.diskqueue.000000.dat")}
    assert [name for name in names[:done] if sizes.get(f"{name}.diskqueue.000000.dat") != 4 + 26 + 1] == []


def test_slow_reader_of_an_answer_does_not_hold_up_the_exit(gnsqd_factory: Callable[..., Daemon]) -> None:
    daemon = gnsqd_factory()
    with open_socket(daemon.http_address, DEADLINE) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 2000)
        assert client.recv(1)
        assert daemon.terminate() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ordinary_channel_of_an_ephemeral_topic_leaves_no_files(
    gnsqd_factory: Callable[..., Daemon], number: signal.Signals
) -> None:
    """NSQD-COMPAT 0.1, item 11: the real daemon leaves orphans."""
    daemon = gnsqd_factory("--mem-queue-size=2")
    assert daemon.http("POST", "/topic/create?topic=t%23ephemeral")[0] == 200
    assert daemon.http("POST", "/channel/create?topic=t%23ephemeral&channel=c")[0] == 200
    for _ in range(5):
        assert daemon.http("POST", "/pub?topic=t%23ephemeral", b"x")[0] == 200
    daemon.send_signal(number)
    assert daemon.wait() == 0
    assert [path.name for path in daemon.data_path.iterdir()] == ["nsqd.dat"]


def test_topic_is_deleted_past_a_channel_whose_files_cannot_be_removed(gnsqd_factory: Callable[..., Daemon]) -> None:
    daemon = gnsqd_factory("--mem-queue-size=0")
    for channel in ("a", "b"):
        assert daemon.http("POST", "/topic/create?topic=t")[0] == 200
        assert daemon.http("POST", f"/channel/create?topic=t&channel={channel}")[0] == 200
    assert daemon.http("POST", "/pub?topic=t", b"x")[0] == 200
    eventually(lambda: daemon.channel_stats("t", "b")["depth"] == 1)
    stubborn = daemon.data_path / "t:a.diskqueue.000000.dat"
    replace_by_directory(stubborn)
    with Client(daemon.tcp_address) as consumer:
        consumer.subscribe("t", "b")
        assert daemon.http("POST", "/topic/delete?topic=t")[0] == 500
        consumer.recv_until_closed()
    assert daemon.stats()["topics"] == []
    assert [path.name for path in daemon.data_path.glob("t*")] == [stubborn.name]


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
