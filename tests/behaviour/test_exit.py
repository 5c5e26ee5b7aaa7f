"""The clean exit, with requests still coming in: what was answered is kept, and nothing superfluous stays."""

import contextlib
import ctypes
import errno
import json
import os
import re
import signal
import socket
import ssl
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random

import pytest

from kit.certificates import issue
from kit.daemons import DEADLINE, Address, Instance, accepted_at_end, address_of, eventually, open_socket, own_command
from kit.http_api import read_all
from kit.lookupds import DEV, LookupdInside
from kit.nsq_client import RESPONSE, Frame, NSQClient, mpub_body, sized, split_frames
from kit.traffic import DaemonFactory, create, post, publish, wait_for
from kit.upgraded_client import (
    SNAPPY_BLOCK,
    SNAPPY_IDENTIFIER,
    UPGRADES,
    UpgradedClient,
    best_chunk,
    tls_client_context,
)


def metadata(daemon: Instance) -> dict[str, bool]:
    """Returns the topics of nsqd.dat, and whether they are paused."""
    topics = json.loads((daemon.data_path / "nsqd.dat").read_bytes())["topics"] or []
    return {topic["name"]: topic["paused"] for topic in topics}


TOPICS = [f"topic{number}" for number in range(50)]


@pytest.fixture(autouse=True)
def interpreters_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets Python itself also end, which may complain in the log."""
    monkeypatch.setattr(Instance, "preloaded", False)


@pytest.fixture
def laden(gnsqd_factory: DaemonFactory) -> Instance:
    """Starts a daemon with much to write at its exit."""
    daemon = gnsqd_factory()
    for name in TOPICS:
        publish(daemon, name, b"x")
    return daemon


def terminate_while_answering(daemon: Instance, requests: list[str]) -> int:
    """Sends all requests at once on one connection, lets the daemon exit, and counts the answers."""
    answers = b""
    with open_socket(daemon.http_address, DEADLINE) as client:
        sender = threading.Thread(target=send_all, args=(client, "".join(requests).encode()))
        sender.start()
        while answers.count(b"HTTP/1.1 200 OK\r\n") < 20:
            answers += client.recv(65536)
        daemon.send_signal(signal.SIGTERM)
        answers += read_all(client)
        sender.join()
    assert daemon.wait() == 0
    return answers.count(b"HTTP/1.1 200 OK\r\n")


def send_all(client: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the daemon has gone
        client.sendall(data)


def test_pause_requests_that_come_during_the_exit_do_not_spoil_the_metadata(laden: Instance) -> None:
    requests = [f"POST /topic/pause?topic={name} HTTP/1.1\r\nHost: x\r\n\r\n" for name in TOPICS] * 100
    done = terminate_while_answering(laden, requests)
    assert done < len(requests)
    paused = metadata(laden)
    assert sorted(paused) == sorted(TOPICS)
    assert [name for name in TOPICS[:done] if not paused[name]] == []


def test_every_message_that_was_answered_is_kept_though_its_topic_was_new(laden: Instance) -> None:
    names = [f"new{number}" for number in range(20_000)]
    head = " HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"
    done = terminate_while_answering(laden, [f"POST /pub?topic={name}{head}" for name in names])
    assert done < len(names)
    kept = metadata(laden)
    assert [name for name in names[:done] if name not in kept] == []
    sizes = {path.name: path.stat().st_size for path in laden.data_path.glob("*.diskqueue.000000.dat")}
    assert [name for name in names[:done] if sizes.get(f"{name}.diskqueue.000000.dat") != 4 + 26 + 1] == []


def test_exit_closes_and_flushes_in_the_documented_order(nsqd_factory: DaemonFactory) -> None:
    # NSQD-COMPAT 3, exit order.
    daemon = nsqd_factory()
    with NSQClient(daemon.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        client.publish("t", b"in flight")
        assert client.message().body == b"in flight"
        client.publish("t", b"memory")
        post(daemon, "/pub?topic=t&defer=60000", b"deferred")
        wait_for(daemon, "t", "c", depth=1, deferred_count=1)
        post(daemon, "/topic/pause?topic=t")
        client.publish("t", b"topic")
        assert daemon.terminate() == 0
        assert client.recv_until_closed() == b""
    steps = [
        "INFO: NSQ: persisting topic/channel metadata to ",
        "INFO: NSQ: closing topics\n",
        "INFO: TOPIC(t): closing\n",
        "INFO: CHANNEL(c): closing\n",
        "INFO: CHANNEL(c): flushing 1 memory 1 in-flight 1 deferred messages to backend\n",
        "INFO: TOPIC(t): flushing 1 memory messages to backend\n",
        "INFO: NSQ: stopping subsystems\n",
        "INFO: QUEUESCAN: closing\n",
        "INFO: NSQ: bye\n",
    ]
    log = daemon.log()
    assert [step for step in steps if step not in log] == []
    places = [log.rindex(step) for step in steps]
    assert places == sorted(places)
    assert log.endswith(steps[-1])
    assert records(daemon.data_path / "t:c.diskqueue.000000.dat") == [b"memory", b"in flight", b"deferred"]
    assert records(daemon.data_path / "t.diskqueue.000000.dat") == [b"topic"]


def records(path: Path) -> list[bytes]:
    """Returns the bodies in a disk queue's file: each has its length and 26 bytes before it (NSQD-COMPAT 4.3)."""
    data = path.read_bytes()
    bodies = []
    while data:
        (size,) = struct.unpack_from(">i", data)
        bodies.append(data[4 + 26 : 4 + size])
        data = data[4 + size :]
    return bodies


V2 = b"  V2IDENTIFY\n\0\0\0\2{}"
PING = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"


def test_client_that_connects_again_at_once_is_refused(
    nsqd_factory: DaemonFactory, tmp_path: Path, daemon_command: list[str]
) -> None:
    # A client reads that the exit has begun from its connection: so nobody may accept it any more by then.
    cert, key = issue("server").write(tmp_path / "server")
    flags = [f"--tls-cert={cert}", f"--tls-key={key}", "--https-address=127.0.0.1:0"]
    own = daemon_command == own_command()
    daemon = nsqd_factory(*flags, *(DEV[1:] if own else ()))
    greetings: list[tuple[Address, bytes]] = [(daemon.tcp_address, V2), (daemon.http_address, PING)]
    if own:
        lookupd = LookupdInside(daemon)
        greetings += [(address_of(lookupd.tcp_address), b"  V1PING\n"), (address_of(lookupd.http_address), PING)]
    for kind in ("HTTPS", "ADMIN")[: 1 + own]:
        found = eventually(lambda kind=kind: re.search(rf" {kind}: listening on (.*)", daemon.log()))  # type: ignore[misc]
        greetings.append((address_of(found[1]), b""))
    assert accepted_at_end(greetings, lambda: daemon.send_signal(signal.SIGTERM)) == []
    assert daemon.wait() == 0


def test_client_that_connects_again_at_once_is_refused_on_a_unix_socket(
    nsqd_factory: DaemonFactory, tmp_path: Path
) -> None:
    daemon = nsqd_factory(f"--tcp-address={tmp_path}/t.sock", f"--http-address={tmp_path}/h.sock")
    greetings = [(daemon.tcp_address, V2), (daemon.http_address, PING)]
    assert accepted_at_end(greetings, lambda: daemon.send_signal(signal.SIGTERM)) == []


def test_slow_reader_of_an_answer_does_not_hold_up_the_exit(gnsqd_factory: DaemonFactory) -> None:
    daemon = gnsqd_factory()
    with open_socket(daemon.http_address, DEADLINE) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 2000)
        assert client.recv(1)
        assert daemon.terminate() == 0


# What clients do, whatever it is, does not delay the writing of queues.

STOP_SECONDS = 10.0  # that container managers give a daemon before they kill it
PUBS = 10_000
WAIT = "GET /topic/messages?topic=kept&from=1000&wait=60s HTTP/1.1\r\nHost: x\r\n\r\n"
READ = "GET /topic/messages?topic=large HTTP/1.1\r\nHost: x\r\n\r\n"
STATS = "GET /stats HTTP/1.1\r\nHost: x\r\n\r\n"
HALF_POST = "POST /pub?topic=half HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx"


def deflate_nops(megabytes: int) -> bytes:
    """Returns a thousandth of that size."""
    compress = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    plain = b"NOP\n" * 250_000
    return b"".join(compress.compress(plain) for _ in range(megabytes)) + compress.flush(zlib.Z_SYNC_FLUSH)


def snappy_nops() -> bytes:
    """Returns 10 MB, in 500 kB."""
    return SNAPPY_IDENTIFIER + best_chunk(b"NOP\n" * (SNAPPY_BLOCK // 4)) * 160


def consumer(daemon: Instance) -> NSQClient:
    client = NSQClient(daemon.tcp_address)
    client.subscribe("large", "readers")
    return client


def crowd(daemon: Instance, journal: bool) -> Iterator[tuple[NSQClient, bytes]]:
    """Yields a hundred clients, each with what it sends."""
    upgraded = partial(UpgradedClient, daemon.tcp_address, tls_client_context())
    http = partial(NSQClient, daemon.http_address, magic=b"")
    https = address_of(eventually(lambda: re.search(r" HTTPS: listening on (.*)", daemon.log()))[1])
    large_mpub = b"MPUB many\n" + sized(mpub_body(*[b"x"] * 100_000))
    deflated, snappied, nops = deflate_nops(40), snappy_nops(), b"NOP\n" * (1 << 18)
    kinds: list[tuple[int, Callable[[], NSQClient], bytes]] = [
        (10, partial(upgraded, deflate=True), deflated),
        (10, partial(upgraded, snappy=True), snappied),
        (5, partial(upgraded, deflate=True, tls_v1=True), deflated),
        (5, partial(upgraded, snappy=True, tls_v1=True), snappied),
        (5, partial(upgraded, tls_v1=True), nops),
        (10, partial(NSQClient, daemon.tcp_address), nops),
        (5, partial(NSQClient, daemon.tcp_address), b"PUB many\n\0\0\0\1x" * PUBS),
        (5, partial(NSQClient, daemon.tcp_address), large_mpub * 4),
        (5, partial(consumer, daemon), b"RDY 2500\n"),
        (5, partial(NSQClient, daemon.tcp_address), b"PUB half\n\0\0\0\5x"),
        (5, partial(NSQClient, daemon.tcp_address, magic=b"  V"), b""),
        (
            5,
            partial(NSQClient, daemon.tcp_address),
            b"IDENTIFY\n" + sized(b'{"feature_negotiation":true,"tls_v1":true}'),
        ),
        (5, partial(NSQClient, https, magic=b""), b"\x16\3\1"),
        (5, http, HALF_POST.encode()),
        (10, http, STATS.encode() * 1000),
        (5, http, (WAIT if journal else STATS).encode()),
        (5, http, (READ if journal else STATS).encode()),
    ]
    assert sum(count for count, _, _ in kinds) >= 100
    # All of them connect before one of them begins.
    yield from [(connect(), data) for count, connect, data in kinds for _ in range(count)]


def send_what_is_accepted(client: NSQClient, data: bytes) -> None:
    client.sock.setblocking(False)
    with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError):
        while data:
            data = data[client.sock.send(data) :]


def stop(daemon: Instance) -> None:
    """Stops it as container managers do, except that the real daemon has as long as it needs."""
    daemon.send_signal(signal.SIGTERM)
    assert daemon.process is not None
    assert daemon.process.wait(STOP_SECONDS if daemon.command == own_command() else DEADLINE) == 0


def test_compressed_stream_does_not_delay_the_exit(nsqd_factory: DaemonFactory) -> None:
    daemon = nsqd_factory()
    publish(daemon, "kept", *[b"x"] * 1000)
    with UpgradedClient(daemon.tcp_address, deflate=True) as client:
        client.sock.sendall(deflate_nops(120))
        assert daemon.http("GET", "/ping")[0] == 200
        stop(daemon)
    daemon.restart()
    assert daemon.stats("kept")["topics"][0]["depth"] == 1000


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["none", "process"])
def test_no_client_delays_the_exit(gnsqd_factory: DaemonFactory, tls_flags: list[str], durability: str) -> None:
    # The real daemon waits for a client whose magic it has not read yet, as long as the client stays.
    daemon, journal = gnsqd_factory(*tls_flags, f"--durability={durability}"), durability != "none"
    publish(daemon, "kept", *(b"%d" % number for number in range(1000)))
    publish(daemon, "large", *[bytes(100_000)] * 40)
    for name in TOPICS:
        post(daemon, f"/topic/create?topic={name}")
    with ExitStack() as stack:
        clients = [(stack.enter_context(client), data) for client, data in crowd(daemon, journal)]
        publisher = next(client for client, data in clients if data.startswith(b"PUB many"))
        for client, data in clients:
            if client is not publisher:
                send_what_is_accepted(client, data)
        sender = threading.Thread(target=send_all, args=(publisher.sock, b"PUB many\n\0\0\0\1x" * PUBS))
        sender.start()
        assert publisher.response() == b"OK"
        stop(daemon)
        acknowledged = 1 + publisher.recv_until_closed().count(Frame(RESPONSE, b"OK").data)
        sender.join()
    daemon.restart()
    depths = {topic["topic_name"]: topic["depth"] for topic in daemon.stats()["topics"]}
    assert depths["kept"] == 1000
    assert depths["many"] >= acknowledged
    assert "half" not in depths or depths["half"] == 0
    assert daemon.channel_stats("large", "readers")["depth"] == 40


@pytest.mark.parametrize("fields", UPGRADES.values(), ids=UPGRADES)
def test_commands_that_have_arrived_are_executed_and_answered(
    gnsqd_factory: DaemonFactory, tls_flags: list[str], fields: dict[str, bool]
) -> None:
    # More than is received at once. The real daemon executes as much as its goroutines happen to have read.
    daemon = gnsqd_factory(*tls_flags)
    publish(daemon, "t", *[b"x"] * 10)
    filling = "".join(Random(1).choices("0123456789abcdef", k=9000)).encode()  # ignored; it hardly compresses
    upgraded = partial(UpgradedClient, daemon.tcp_address, tls_client_context(), **fields)
    with upgraded() as consumer, upgraded() as publisher:
        consumer.subscribe("t", "c", rdy=10)
        fins = [b"FIN %b %b\n" % (consumer.message().id, filling) for _ in range(10)]
        daemon.send_signal(signal.SIGSTOP)
        consumer.send(b"".join(fins))
        publisher.send(b"PUB t\n" + sized(filling * 10) + b"PUB t\n\0\0\0\5x")  # no refusal of the half one
        daemon.send_signal(signal.SIGTERM)
        daemon.send_signal(signal.SIGCONT)
        assert split_frames(publisher.recv_until_closed()) == [Frame(RESPONSE, b"OK")]
        assert consumer.recv_until_closed() == b""
        assert daemon.wait() == 0
    assert records(daemon.data_path / "t:c.diskqueue.000000.dat") == [filling * 10]


def test_ordinary_channel_of_an_ephemeral_topic_leaves_no_files(gnsqd_factory: DaemonFactory) -> None:
    # NSQD-COMPAT 0.1, item 11: the real daemon leaves orphans.
    daemon = gnsqd_factory("--mem-queue-size=2")
    create(daemon, "t%23ephemeral", "c")
    for _ in range(5):
        post(daemon, "/pub?topic=t%23ephemeral", b"x")
    assert daemon.terminate() == 0
    assert [path.name for path in daemon.data_path.iterdir()] == ["nsqd.dat"]


def test_topic_is_deleted_past_a_channel_whose_files_cannot_be_removed(gnsqd_factory: DaemonFactory) -> None:
    daemon = gnsqd_factory("--mem-queue-size=0")
    create(daemon, "t", "a", "b")
    publish(daemon, "t", b"x")
    wait_for(daemon, "t", "b", depth=1)
    stubborn = daemon.data_path / "t:a.diskqueue.000000.dat"
    stubborn.unlink()
    stubborn.mkdir()
    with NSQClient(daemon.tcp_address) as consumer:
        consumer.subscribe("t", "b")
        assert daemon.http("POST", "/topic/delete?topic=t")[0] == 500
        consumer.recv_until_closed()
    assert daemon.stats()["topics"] == []
    assert [path.name for path in daemon.data_path.glob("t*")] == [stubborn.name]


@pytest.mark.parametrize("kind, words", [("TCP", "listener.Accept()"), ("HTTP", "http.Serve()")])
def test_listener_that_breaks_ends_the_daemon_after_its_queues_are_on_disk(
    nsqd_factory: DaemonFactory, kind: str, words: str
) -> None:
    daemon = nsqd_factory()
    publish(daemon, "t", b"x")
    address = daemon.tcp_address if kind == "TCP" else daemon.http_address
    with listening_socket(daemon, address) as listener:
        listener.shutdown(socket.SHUT_RDWR)
    assert daemon.wait() == 1
    where = f"accept tcp 127.0.0.1:{address[1]}: accept4: invalid argument"
    assert f" FATAL: {words} error - {where}\n" in daemon.log()
    assert daemon.log().endswith("INFO: NSQ: bye\n")
    assert records(daemon.data_path / "t.diskqueue.000000.dat") == [b"x"]


def listening_socket(daemon: Instance, address: Address) -> socket.socket:
    """Returns the daemon's own socket, by another descriptor."""
    get_descriptor = 438  # the system call pidfd_getfd
    process = os.pidfd_open(daemon.pid)
    try:
        for number in map(int, os.listdir(f"/proc/{daemon.pid}/fd")):
            descriptor = ctypes.CDLL(None, use_errno=True).syscall(get_descriptor, process, number, 0)
            if descriptor < 0:
                assert ctypes.get_errno() == errno.EBADF  # closed since it was listed
                continue
            with contextlib.suppress(OSError):  # no socket
                found = socket.socket(fileno=descriptor)
                if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and found.getsockname() == address:
                    return found
                descriptor = found.detach()
            os.close(descriptor)
    finally:
        os.close(process)
    raise AssertionError(f"nobody listens on {address}")


def test_exit_asked_for_again_and_again_is_still_a_clean_one(nsqd_factory: DaemonFactory) -> None:
    daemon = nsqd_factory()
    for name in TOPICS:
        publish(daemon, name, b"x")
    daemon.send_signal(signal.SIGTERM)
    while daemon.running:
        for number in (signal.SIGINT, signal.SIGTERM):
            daemon.send_signal(number)
    assert daemon.wait() == 0
    assert daemon.log().endswith("INFO: NSQ: bye\n")
    assert [len(records(daemon.data_path / f"{name}.diskqueue.000000.dat")) for name in TOPICS] == [1] * len(TOPICS)
