"""The client of the Spark side, against gnsqd and the real nsqd, and against a peer that does what no nsqd should."""

import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnsqd.shared.client import PushedMessage
from kit import nsq_client
from kit.auth_server import EVERYTHING, AuthServer, grant, response
from kit.certificates import write_identities
from kit.daemons import DEADLINE, Instance, free_port
from kit.traffic import DaemonFactory, wait_for
from pyspark_nsq.client import SourceClient
from pyspark_nsq.errors import ConnectionLost, NotAgreed, NsqSourceError, Refused
from pyspark_nsq.option_values import Address
from pyspark_nsq.options import Settings

PLAIN = Settings()
Files = dict[str, tuple[str, str]]


def address(nsqd: Instance) -> Address:
    assert isinstance(nsqd.tcp_address, tuple)
    return nsqd.tcp_address


def connect(nsqd: Instance, settings: Settings = PLAIN) -> SourceClient:
    return SourceClient.connect(address(nsqd), settings)


def consumer(nsqd: Instance, rdy: int = 0, settings: Settings = PLAIN) -> SourceClient:
    client = connect(nsqd, settings)
    client.subscribe("t", "c")
    if rdy:
        client.ready(rdy)
    return client


def receive(client: SourceClient, count: int) -> list[PushedMessage]:
    messages: list[PushedMessage] = []
    deadline = time.monotonic() + DEADLINE
    while len(messages) < count:
        assert time.monotonic() < deadline, messages
        messages += client.receive(1.0)
    return messages


def receive_ids(client: SourceClient, count: int) -> list[bytes]:
    """Returns the ids of that many messages, each once however often it comes, in order."""
    ids: set[bytes] = set()
    while len(ids) < count:
        ids.update(message.id for message in receive(client, 1))
    return sorted(ids)


def await_counts(nsqd: Instance, depth: int, in_flight: int) -> None:
    wait_for(nsqd, "t", "c", depth=depth, in_flight_count=in_flight)


# Consuming


def test_no_more_are_in_flight_than_requested_and_allowed(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--max-rdy-count=5")
    with connect(nsqd) as client, consumer(nsqd, 3) as reader:
        assert reader.receive(0.0) == []
        client.publish("t", [b"x"] * 10)
        assert len(receive(reader, 3)) == 3
        assert reader.receive(0.1) == []
        await_counts(nsqd, 7, 3)
        assert reader.max_rdy_count == 5
        reader.ready(1000)
        assert len(receive(reader, 2)) == 2
        await_counts(nsqd, 5, 5)


def test_every_finished_message_is_known_to_the_daemon_when_finish_confirmed_returns(nsqd: Instance) -> None:
    with connect(nsqd) as publisher:
        for _ in range(20):
            publisher.publish("t", [b"x"] * 500)
            with consumer(nsqd, 500) as client:
                messages = receive(client, 500)
                client.finish(message.id for message in messages)
                assert client.finish_confirmed() == set()
                stats = nsqd.channel_stats("t", "c")
                assert (stats["depth"], stats["in_flight_count"]) == (0, 0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_identities(tmp_path_factory.mktemp("certificates"))


def tls(files: Files, identity: str | None = None, **fields: object) -> Settings:
    certificate, key = files[identity] if identity else (None, None)
    return Settings(
        **{"tls": True, "tls_ca": files["authority"][0], "tls_certificate": certificate, "tls_key": key, **fields}  # type: ignore[arg-type]
    )


@pytest.fixture
def tls_factory(nsqd_factory: DaemonFactory, files: Files) -> DaemonFactory:
    cert, key = files["server"]
    return lambda *flags: nsqd_factory(f"--tls-cert={cert}", f"--tls-key={key}", *flags)


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
def test_finish_confirmed_gives_back_the_rest(tls_factory: DaemonFactory, files: Files, secured: bool) -> None:
    nsqd = tls_factory()
    with connect(nsqd) as publisher, consumer(nsqd, 100, tls(files) if secured else PLAIN) as client:
        publisher.publish("t", [b"%d" % number for number in range(100)])
        await_counts(nsqd, 0, 100)
        client.poll()  # some are here, and some may be on their way
        assert client.finish_confirmed() == set()
        await_counts(nsqd, 100, 0)


def test_messages_that_timed_out_are_reported_as_unfinished(nsqd: Instance) -> None:
    with connect(nsqd) as publisher, consumer(nsqd, 2, Settings(msg_timeout_ms=1000)) as client:
        publisher.publish("t", [b"late", b"late too"])
        late = receive_ids(client, 2)
        client.ready(0)
        client.publish("other", [b"x"])  # the OK follows the RDY: from now on nothing is sent again
        await_counts(nsqd, 2, 0)
        client.receive(0.0)  # what was sent twice before that
        client.finish(late[:1])
        publisher.publish("t", [b"in time"])
        client.ready(3)
        in_time = receive_ids(client, 3)
        assert client.unfinished == {late[0]}
        assert client.finish_confirmed() == {late[0]}
        assert set(in_time) > set(late)


# Publishing


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
def test_more_than_the_sockets_hold_is_published_and_consumed(
    tls_factory: DaemonFactory, files: Files, secured: bool
) -> None:
    nsqd = tls_factory(*["--tls-required=tcp-https"] * secured)
    settings = tls(files) if secured else PLAIN
    bodies = [random.Random(number).randbytes(40_000) for number in range(100)]
    with connect(nsqd, settings) as client, consumer(nsqd, 100, settings) as reader:
        client.publish("t", bodies)
        messages = receive(reader, 100)
        assert sorted(message.body for message in messages) == sorted(bodies)
        reader.finish(message.id for message in messages)
        assert reader.finish_confirmed() == set()
        await_counts(nsqd, 0, 0)


BAD_CHANNEL = 'E_BAD_CHANNEL SUB channel name "c:d" is not valid'


@pytest.mark.parametrize(
    "call, error",
    [
        (lambda client: client.subscribe("t", "c:d"), f"{BAD_CHANNEL}$"),
        (lambda client: client.publish("t:x", [b"x"]), "E_BAD_TOPIC "),
        (lambda client: client.publish("t", [b""]), "E_BAD_MESSAGE "),
        (lambda client: client.publish("t", [b"x", b"y" * 2_000_000]), "E_BAD_MESSAGE "),
        (lambda client: client.publish("t", [bytes(1_000_000)] * 20), "E_BAD_BODY "),  # refused while it is sent
    ],
)
def test_what_is_refused_has_the_reason(nsqd: Instance, call: Callable[[SourceClient], None], error: str) -> None:
    with connect(nsqd) as client, pytest.raises(Refused, match=f"^nsqd 127.0.0.1:{address(nsqd)[1]} refused: {error}"):
        call(client)


def test_what_the_client_says_of_itself(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--max-msg-timeout=2s")
    with consumer(nsqd, settings=Settings(client_id="me", user_agent="mine/1")):
        (shown,) = nsqd.channel_stats("t", "c")["clients"]
        assert (shown["client_id"], shown["user_agent"]) == ("me", "mine/1")
        assert shown["hostname"] == socket.gethostname()
    with pytest.raises(Refused, match="E_BAD_BODY IDENTIFY msg timeout"):
        connect(nsqd, Settings(msg_timeout_ms=3000))


# Connections that fail


@pytest.mark.parametrize("host, error", [("127.0.0.1", "connection refused"), ("x" * 70, ""), ("nosuch.invalid", "")])
def test_a_daemon_that_is_not_there_is_named(host: str, error: str) -> None:
    port = free_port()
    with pytest.raises(ConnectionLost, match=f"cannot connect to nsqd {host}:{port}: {error}"):
        SourceClient.connect((host, port), PLAIN)


CALLS: dict[str, Callable[[SourceClient], object]] = {
    "receive": lambda client: client.receive(1.0),
    "finish": lambda client: client.finish([b"0" * 16]),
    "finish_confirmed": SourceClient.finish_confirmed,
    "publish": lambda client: client.publish("t", [b"x"]),
}


def again_and_again(call: Callable[[], object]) -> None:
    """Calls until it fails: sending does not before the answer to something sent earlier has come."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        call()


@pytest.mark.parametrize("use", CALLS)
def test_a_daemon_that_went_away_is_noticed(nsqd: Instance, use: str) -> None:
    with consumer(nsqd, 1) as client:
        nsqd.kill()
        with pytest.raises(ConnectionLost, match=f"nsqd 127.0.0.1:{address(nsqd)[1]} "):
            again_and_again(lambda: CALLS[use](client))


# TLS and authorization


def test_a_certificate_of_ours_is_shown(tls_factory: DaemonFactory, files: Files) -> None:
    nsqd = tls_factory("--tls-client-auth-policy=require-verify", f"--tls-root-ca-file={files['authority'][0]}")
    with connect(nsqd, tls(files, "known")) as client:
        client.publish("t", [b"x"])
    for settings in (tls(files), tls(files, "unknown")):
        with pytest.raises(NotAgreed, match=f"nsqd 127.0.0.1:{address(nsqd)[1]}: TLS failed: "):
            connect(nsqd, settings)


def test_certificates_and_their_files_are_judged(tls_factory: DaemonFactory, files: Files, tmp_path: Path) -> None:
    nsqd = tls_factory()
    connect(nsqd, tls(files, tls_server_name="localhost")).close()
    connect(nsqd, tls(files, tls_ca=None, tls_verify=False)).close()
    missing, certificate = str(tmp_path / "missing.pem"), files["authority"][0]
    for settings, error in (
        (tls(files, tls_ca=files["unknown"][0]), "its certificate is not trusted: "),
        (tls(files, tls_server_name="elsewhere"), "its certificate is not trusted: .*elsewhere"),
        (tls(files, tls_ca=missing), f"cannot use {missing} for TLS: no such file or directory"),
        (tls(files, tls_certificate=missing), f"cannot use {missing} for TLS: no such file or directory"),
        (
            tls(files, tls_certificate=certificate, tls_key=missing),
            f"cannot use {certificate} and {missing} for TLS: no",
        ),
    ):
        with pytest.raises(NotAgreed, match=error):
            connect(nsqd, settings)


def test_tls_that_only_one_side_requires_is_reported(tls_factory: DaemonFactory, nsqd: Instance, files: Files) -> None:
    with pytest.raises(NotAgreed, match="offers no TLS"):
        connect(nsqd, tls(files))
    with connect(tls_factory("--tls-required")) as client, pytest.raises(Refused, match=r"\(TLS required\)"):
        client.subscribe("t", "c")


def test_the_secret_authorizes(nsqd_factory: DaemonFactory) -> None:
    def answer(target: str) -> bytes:
        return grant(EVERYTHING) if "secret=right" in target else response('{"message":"no"}', "403 Forbidden")

    with AuthServer(answer) as server:
        nsqd = nsqd_factory(f"--auth-http-address={server.address}")
        with connect(nsqd, Settings(auth_secret="right")) as client:
            client.publish("t", [b"x"])
        with pytest.raises(Refused) as raised:
            connect(nsqd, Settings(auth_secret="wrong"))
        assert raised.value.code == "E_AUTH_FAILED"
        with pytest.raises(NotAgreed, match="give the option 'nsq.auth.secret'"):
            connect(nsqd)
    # Nobody asks for it.
    with connect(nsqd_factory(), Settings(auth_secret="s")) as client:
        client.publish("t", [b"x"])


# A peer of the test's own


@pytest.fixture
def pair() -> Iterator[tuple[SourceClient, socket.socket]]:
    """Lends a client, and the socket of what it takes for an nsqd."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(DEADLINE)
    with SourceClient(ours, "peer", DEADLINE) as client, theirs:
        yield client, theirs


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(data), kind) + data


def pushed(message: PushedMessage) -> bytes:
    return frame(nsq_client.MESSAGE, struct.pack(">qH16s", *message[:3]) + message.body)


OK = frame(nsq_client.RESPONSE, b"OK")
HEARTBEAT = frame(nsq_client.RESPONSE, nsq_client.HEARTBEAT)
MESSAGES = [
    PushedMessage(1 << 60, 1, b"0123456789abcdef", b""),
    PushedMessage(2, 65535, b"f" * 16, bytes(1000)),
    PushedMessage(3, 3, b"e" * 16, b"x"),
]


@pytest.mark.parametrize("seed", range(30))
def test_frames_may_come_in_any_pieces(pair: tuple[SourceClient, socket.socket], seed: int) -> None:
    client, peer = pair
    chance = random.Random(seed)
    expected = [chance.choice(MESSAGES) for _ in range(20)]
    data = b"".join(pushed(message) + HEARTBEAT * chance.randrange(2) for message in expected)
    got: list[PushedMessage] = []
    while data:
        size = chance.choice((1, 3, 8, 30, 40, 2000))
        peer.sendall(data[:size])
        data = data[size:]
        got += client.receive(0.0)
    assert got + client.receive(0.0) == expected


def test_what_came_while_the_process_was_stopped_is_received(
    pair: tuple[SourceClient, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stops the process after its first look at the socket, for longer than it would have waited."""
    client, peer = pair
    look = client.poll

    def look_and_be_stopped() -> bool:
        monkeypatch.setattr(client, "poll", look)
        came = look()
        peer.sendall(pushed(MESSAGES[0]))
        time.sleep(0.02)
        return came

    monkeypatch.setattr(client, "poll", look_and_be_stopped)
    assert client.receive(0.01) == [MESSAGES[0]]


@pytest.mark.parametrize(
    "call, answer",
    [
        (lambda client: client.receive(0.0), b""),
        (lambda client: client.poll(), b""),
        (lambda client: client.publish("t", [b"x"]), OK),
    ],
)
def test_heartbeats_are_answered_by_whatever_is_called(
    pair: tuple[SourceClient, socket.socket], call: Callable[[SourceClient], object], answer: bytes
) -> None:
    client, peer = pair
    peer.sendall(HEARTBEAT + answer)
    call(client)
    assert peer.recv(100).endswith(b"NOP\n")


def test_messages_that_come_before_an_answer_are_kept(pair: tuple[SourceClient, socket.socket]) -> None:
    client, peer = pair
    peer.sendall(pushed(MESSAGES[0]))
    client.poll()
    peer.sendall(pushed(MESSAGES[1]) + OK)
    client.publish("t", [b"x"])
    assert client.receive(0.0) == MESSAGES[:2]


@pytest.mark.parametrize(
    "data, error, text",
    [
        (b"", ConnectionLost, "closed the connection"),
        (pushed(MESSAGES[0])[:-1], ConnectionLost, "closed the connection"),
        (frame(1, b"E_INVALID cannot SUB"), Refused, "refused: E_INVALID cannot SUB"),
        (frame(1, b"E_BAD_PROTOCOL"), Refused, "refused: E_BAD_PROTOCOL"),
        (frame(1, b"\xff"), Refused, "refused: \ufffd"),
        (frame(2, b"short") + bytes(50), ConnectionLost, "sent an invalid message"),
        (frame(3, b"x" * 50), ConnectionLost, "does not speak NSQ's protocol"),
        (struct.pack(">ii", 3, 0), ConnectionLost, "does not speak NSQ's protocol"),
        (struct.pack(">ii", -1, 2) + bytes(50), ConnectionLost, "does not speak NSQ's protocol"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ConnectionLost, "answers HTTP: expected its TCP port"),
    ],
)
@pytest.mark.parametrize("use", ["receive", "finish"])
def test_wrong_bytes_and_the_end_are_reported(
    pair: tuple[SourceClient, socket.socket], use: str, data: bytes, error: type[NsqSourceError], text: str
) -> None:
    client, peer = pair
    peer.sendall(data)
    peer.close()
    with pytest.raises(error) as raised:
        CALLS[use](client)
    assert str(raised.value) == f"nsqd peer {text}"


@pytest.mark.parametrize("timeout", [0.02, 0.0])
def test_silence_where_an_answer_is_due_is_reported(timeout: float) -> None:
    ours, theirs = socket.socketpair()
    with theirs, SourceClient(ours, "peer", 0.1) as client:
        with pytest.raises(ConnectionLost, match="nsqd peer does not answer"):
            client.publish("t", [b"x"])
        with pytest.raises(ConnectionLost, match="nsqd peer was silent for 0.1 s"):
            again_and_again(lambda: client.receive(timeout))


def test_a_daemon_that_reads_nothing_is_reported() -> None:
    ours, theirs = socket.socketpair()
    with theirs, SourceClient(ours, "peer", 1e6) as client:
        with pytest.raises(ConnectionLost, match="nsqd peer does not read what it is sent"):
            client.touch_joined(bytes(16 << 20), within=0.1)
        assert client.hangs


def test_an_answer_that_is_none_is_reported(pair: tuple[SourceClient, socket.socket]) -> None:
    client, peer = pair
    peer.sendall(frame(nsq_client.RESPONSE, b"CLOSE_WAIT"))
    with pytest.raises(ConnectionLost, match="answered b'CLOSE_WAIT' in place of OK"):
        client.publish("t", [b"x"])


# Sending more than the peer has room for


def drain(peer: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        received.extend(peer.recv(1 << 20))
    return bytes(received)


def test_a_peer_that_writes_before_it_reads_blocks_nobody(pair: tuple[SourceClient, socket.socket]) -> None:
    client, peer = pair
    command = b"FIN 0123456789abcdef\n" * 200_000
    received = []

    def write_then_read() -> None:
        peer.sendall(pushed(MESSAGES[1]) * 20_000)
        received.append(drain(peer, len(command)))

    thread = threading.Thread(target=write_then_read)
    thread.start()
    client.finish([b"0123456789abcdef"] * 200_000)
    thread.join(DEADLINE)
    assert received == [command]
    assert receive(client, 20_000) == [MESSAGES[1]] * 20_000


def test_an_answer_that_comes_while_it_still_sends_is_seen(pair: tuple[SourceClient, socket.socket]) -> None:
    client, peer = pair
    peer.sendall(pushed(MESSAGES[0]) + OK)
    thread = threading.Thread(target=drain, args=(peer, 4_000_000))
    thread.start()
    started = time.monotonic()
    client.publish("t", [bytes(4_000_000)])
    assert time.monotonic() < started + DEADLINE / 2
    thread.join(DEADLINE)
    assert client.receive(0.0) == [MESSAGES[0]]
