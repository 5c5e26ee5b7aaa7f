"""The client of the Spark side, against gnsqd and the real nsqd, and against a peer that does what no nsqd should."""

import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit import nsq_client
from kit.auth_server import EVERYTHING, AuthServer, grant, response
from kit.certificates import write_identities
from kit.daemons import DEADLINE, Daemon, eventually, free_port
from pyspark_nsq.client import Client, Message
from pyspark_nsq.errors import ConnectionLost, NotAgreed, NsqSourceError, Refused
from pyspark_nsq.option_values import Address
from pyspark_nsq.options import Settings

DaemonFactory = Callable[..., Daemon]

PLAIN = Settings()


def address(nsqd: Daemon) -> Address:
    assert isinstance(nsqd.tcp_address, tuple)
    return nsqd.tcp_address


def connect(nsqd: Daemon, settings: Settings = PLAIN) -> Client:
    return Client.connect(address(nsqd), settings)


def consumer(nsqd: Daemon, rdy: int = 0, settings: Settings = PLAIN) -> Client:
    client = connect(nsqd, settings)
    client.subscribe("t", "c")
    if rdy:
        client.ready(rdy)
    return client


def receive(client: Client, count: int) -> list[Message]:
    messages: list[Message] = []
    deadline = time.monotonic() + DEADLINE
    while len(messages) < count:
        assert time.monotonic() < deadline, messages
        messages += client.receive(1.0)
    return messages


def receive_ids(client: Client, count: int) -> list[bytes]:
    """Of that many messages, each once however often it comes, in order."""
    ids: set[bytes] = set()
    while len(ids) < count:
        ids.update(message.id for message in receive(client, 1))
    return sorted(ids)


def counts(nsqd: Daemon) -> tuple[int, int]:
    """Depth and in-flight messages of the channel."""
    stats = nsqd.channel_stats("t", "c")
    return stats["depth"], stats["in_flight_count"]


# Consuming


def test_messages_come_with_timestamp_attempts_and_id(nsqd: Daemon) -> None:
    with nsq_client.Client(address(nsqd)) as other:
        other.subscribe("t", "c", 2)
        other.publish("t", b"one", b"two")
        seen = {other.message(), other.message()}
        other.command(b"RDY 0")
        for message in seen:
            other.command(b"REQ %b 0" % message.id)
        other.command(b"CLS")
        assert other.response() == b"CLOSE_WAIT"
    with consumer(nsqd, 10) as client:
        got = receive(client, 2)
    assert set(got) == {(one.timestamp, one.attempts + 1, one.id, one.body) for one in seen}


def test_no_more_are_in_flight_than_asked_for(nsqd: Daemon) -> None:
    with connect(nsqd) as client, consumer(nsqd, 3) as reader:
        client.publish("t", [b"x"] * 10)
        assert len(receive(reader, 3)) == 3
        assert reader.receive(0.1) == []
        eventually(lambda: counts(nsqd) == (7, 3))


def test_ready_stays_within_what_the_daemon_allows(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--max-rdy-count=5")
    with connect(nsqd) as client, consumer(nsqd) as reader:
        assert reader.max_rdy_count == 5
        reader.ready(1000)
        client.publish("t", [b"x"] * 10)
        assert len(receive(reader, 5)) == 5


def test_receive_returns_nothing_when_nothing_comes(nsqd: Daemon) -> None:
    with consumer(nsqd, 1) as client:
        assert client.receive(0.0) == []
        assert client.receive(0.05) == []


def test_large_messages_arrive_whole(nsqd: Daemon) -> None:
    body = random.Random(1).randbytes(1024 * 1024)
    with connect(nsqd) as client, consumer(nsqd, 2) as reader:
        client.publish("t", [body, body[::-1]])
        assert {message.body for message in receive(reader, 2)} == {body, body[::-1]}


def test_requeued_and_touched_messages_obey(nsqd: Daemon) -> None:
    with connect(nsqd) as client, consumer(nsqd, 1) as reader:
        client.publish("t", [b"x"])
        (message,) = receive(reader, 1)
        reader.touch([message.id])
        reader.requeue([message.id])
        (again,) = receive(reader, 1)
        assert (again.id, again.attempts) == (message.id, 2)
        reader.requeue([again.id], 60_000)
        eventually(lambda: nsqd.channel_stats("t", "c")["deferred_count"] == 1)


def test_every_finished_message_is_known_to_the_daemon_when_finish_confirmed_returns(nsqd: Daemon) -> None:
    with connect(nsqd) as publisher:
        for _ in range(20):
            publisher.publish("t", [b"x"] * 500)
            with consumer(nsqd, 500) as client:
                messages = receive(client, 500)
                client.finish(message.id for message in messages[:250])
                assert client.finish_confirmed(message.id for message in messages[250:]) == set()
                assert counts(nsqd) == (0, 0)


def test_finish_confirmed_gives_back_what_was_not_finished(nsqd: Daemon) -> None:
    with connect(nsqd) as publisher, consumer(nsqd, 100) as client:
        publisher.publish("t", [b"%d" % number for number in range(100)])
        eventually(lambda: counts(nsqd) == (0, 100))
        client.poll()  # some are here, and some may be on their way
        assert client.finish_confirmed([]) == set()
        eventually(lambda: counts(nsqd) == (100, 0))


def test_messages_that_timed_out_are_reported_as_unfinished(nsqd: Daemon) -> None:
    with connect(nsqd) as publisher, consumer(nsqd, 2, Settings(msg_timeout_ms=1000)) as client:
        publisher.publish("t", [b"late", b"late too"])
        late = receive_ids(client, 2)
        client.ready(0)
        client.publish("other", [b"x"])  # the OK follows the RDY: from now on nothing is sent again
        eventually(lambda: counts(nsqd) == (2, 0))
        client.receive(0.0)  # what was sent twice before that
        client.finish(late[:1])
        publisher.publish("t", [b"in time"])
        client.ready(3)
        in_time = receive_ids(client, 3)
        assert client.unfinished == {late[0]}
        assert client.finish_confirmed([]) == {late[0]}
        assert set(in_time) > set(late)


def test_a_subscription_with_a_bad_name_is_refused(nsqd: Daemon) -> None:
    with connect(nsqd) as client, pytest.raises(Refused) as raised:
        client.subscribe("t", "c:d")
    assert raised.value.code == "E_BAD_CHANNEL"
    assert str(raised.value) == (
        f'nsqd 127.0.0.1:{address(nsqd)[1]} refused: E_BAD_CHANNEL SUB channel name "c:d" is not valid'
    )


def test_a_message_timeout_that_the_daemon_does_not_allow_is_refused(nsqd_factory: DaemonFactory) -> None:
    with pytest.raises(Refused, match="E_BAD_BODY IDENTIFY msg timeout"):
        connect(nsqd_factory("--max-msg-timeout=2s"), Settings(msg_timeout_ms=3000))


# Publishing


def test_one_and_many_messages_are_published(nsqd: Daemon) -> None:
    with connect(nsqd) as client, nsq_client.Client(address(nsqd)) as other:
        client.publish("t", [b"one"])
        client.publish("t", [b"two", b"three" * 1000, b"\x00\n"])
        other.subscribe("t", "c", 10)
        assert {other.message().body for _ in range(4)} == {b"one", b"two", b"three" * 1000, b"\x00\n"}


def test_deferred_messages_are_published(nsqd: Daemon) -> None:
    nsqd.http("POST", "/topic/create?topic=t")
    nsqd.http("POST", "/channel/create?topic=t&channel=c")
    with connect(nsqd) as client:
        client.publish("t", [b"one", b"two"], 60_000)
    eventually(lambda: nsqd.channel_stats("t", "c")["deferred_count"] == 2)


def test_more_than_the_sockets_hold_is_published_and_consumed(nsqd: Daemon) -> None:
    bodies = [random.Random(number).randbytes(40_000) for number in range(100)]
    with connect(nsqd) as client:
        client.publish("t", bodies)
        with consumer(nsqd, 100) as reader:
            assert sorted(message.body for message in receive(reader, 100)) == sorted(bodies)


@pytest.mark.parametrize(
    "topic, bodies, code",
    [("t:x", [b"x"], "E_BAD_TOPIC"), ("t", [b""], "E_BAD_MESSAGE"), ("t", [b"x", b"y" * 2000], "E_BAD_MESSAGE")],
)
def test_a_refused_publication_says_why(
    nsqd_factory: DaemonFactory, topic: str, bodies: list[bytes], code: str
) -> None:
    with connect(nsqd_factory("--max-msg-size=1000")) as client, pytest.raises(Refused) as raised:
        client.publish(topic, bodies)
    assert raised.value.code == code


def test_a_publication_that_is_refused_while_it_is_sent_says_why(nsqd: Daemon) -> None:
    with connect(nsqd) as client, pytest.raises(Refused) as raised:
        client.publish("t", [bytes(1_000_000)] * 20)
    assert raised.value.code == "E_BAD_BODY"


# Connections that fail


def test_a_daemon_that_is_not_there_is_named() -> None:
    port = free_port()
    with pytest.raises(ConnectionLost, match=f"cannot connect to nsqd 127.0.0.1:{port}: connection refused"):
        Client.connect(("127.0.0.1", port), PLAIN)


def test_a_host_that_is_not_a_name_is_reported() -> None:
    for host in ("x" * 70, "nosuchhost.invalid"):
        with pytest.raises(ConnectionLost, match=f"cannot connect to nsqd {host}:4150: "):
            Client.connect((host, 4150), PLAIN)


def test_the_http_port_is_no_nsqd(nsqd: Daemon) -> None:
    assert isinstance(nsqd.http_address, tuple)
    with pytest.raises(
        ConnectionLost, match=f"nsqd 127.0.0.1:{nsqd.http_address[1]} answers HTTP: expected its TCP port"
    ):
        Client.connect(nsqd.http_address, PLAIN)


CALLS: dict[str, Callable[[Client], object]] = {
    "receive": lambda client: client.receive(1.0),
    "finish": lambda client: client.finish([b"0" * 16]),
    "finish_confirmed": lambda client: client.finish_confirmed([b"0" * 16]),
    "publish": lambda client: client.publish("t", [b"x"]),
}


def again_and_again(call: Callable[[], object]) -> None:
    """Sending fails no earlier than when the answer to something sent before has come."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        call()


@pytest.mark.parametrize("use", CALLS)
def test_a_daemon_that_went_away_is_noticed(nsqd: Daemon, use: str) -> None:
    with consumer(nsqd, 1) as client:
        nsqd.kill()
        with pytest.raises(ConnectionLost, match=f"nsqd 127.0.0.1:{address(nsqd)[1]} "):
            again_and_again(lambda: CALLS[use](client))


# TLS and authorization


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    return write_identities(tmp_path_factory.mktemp("certificates"))


def tls(files: dict[str, tuple[str, str]], identity: str | None = None, **fields: object) -> Settings:
    certificate, key = files[identity] if identity else (None, None)
    return Settings(
        **{"tls": True, "tls_ca": files["authority"][0], "tls_certificate": certificate, "tls_key": key, **fields}  # type: ignore[arg-type]
    )


@pytest.fixture
def tls_factory(nsqd_factory: DaemonFactory, files: dict[str, tuple[str, str]]) -> DaemonFactory:
    cert, key = files["server"]
    return lambda *flags: nsqd_factory(f"--tls-cert={cert}", f"--tls-key={key}", *flags)


def test_messages_go_over_tls(tls_factory: DaemonFactory, files: dict[str, tuple[str, str]]) -> None:
    nsqd = tls_factory("--tls-required=tcp-https")
    bodies = [random.Random(number).randbytes(30_000) for number in range(100)]
    with connect(nsqd, tls(files)) as client, consumer(nsqd, 100, tls(files)) as reader:
        client.publish("t", bodies)
        messages = receive(reader, 100)
        assert sorted(message.body for message in messages) == sorted(bodies)
        assert reader.finish_confirmed(message.id for message in messages) == set()
        assert counts(nsqd) == (0, 0)


def test_finish_confirmed_gives_back_over_tls_too(
    tls_factory: DaemonFactory, files: dict[str, tuple[str, str]]
) -> None:
    nsqd = tls_factory()
    with connect(nsqd) as client, consumer(nsqd, 50, tls(files)) as reader:
        client.publish("t", [b"x"] * 50)
        eventually(lambda: counts(nsqd) == (0, 50))
        reader.finish_confirmed([])
        eventually(lambda: counts(nsqd) == (50, 0))


def test_a_certificate_of_ours_is_shown(tls_factory: DaemonFactory, files: dict[str, tuple[str, str]]) -> None:
    nsqd = tls_factory("--tls-client-auth-policy=require-verify", f"--tls-root-ca-file={files['authority'][0]}")
    with connect(nsqd, tls(files, "known")) as client:
        client.publish("t", [b"x"])
    for settings in (tls(files), tls(files, "unknown")):
        with pytest.raises(NotAgreed, match=f"nsqd 127.0.0.1:{address(nsqd)[1]}: TLS failed: "):
            connect(nsqd, settings)


def test_the_certificate_of_the_daemon_is_judged(tls_factory: DaemonFactory, files: dict[str, tuple[str, str]]) -> None:
    nsqd = tls_factory()
    with pytest.raises(NotAgreed, match="its certificate is not trusted: "):
        connect(nsqd, tls(files, tls_ca=files["unknown"][0]))
    with pytest.raises(NotAgreed, match="its certificate is not trusted: .*elsewhere"):
        connect(nsqd, tls(files, tls_server_name="elsewhere"))
    connect(nsqd, tls(files, tls_server_name="localhost")).close()
    connect(nsqd, tls(files, tls_ca=None, tls_verify=False)).close()


def test_tls_that_only_one_side_requires_is_reported(
    tls_factory: DaemonFactory, nsqd: Daemon, files: dict[str, tuple[str, str]]
) -> None:
    with pytest.raises(NotAgreed, match="offers no TLS"):
        connect(nsqd, tls(files))
    with connect(tls_factory("--tls-required")) as client, pytest.raises(Refused, match=r"\(TLS required\)"):
        client.subscribe("t", "c")


def test_files_that_are_not_there_are_named(
    nsqd: Daemon, tls_factory: DaemonFactory, files: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    nsqd = tls_factory()
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(NotAgreed, match=f"cannot use {missing} for TLS: no such file or directory"):
        connect(nsqd, tls(files, tls_ca=missing))
    with pytest.raises(NotAgreed, match=f"cannot use {missing} for TLS: no such file or directory"):
        connect(nsqd, tls(files, tls_certificate=missing))
    certificate = files["authority"][0]
    with pytest.raises(NotAgreed, match=f"cannot use {certificate} and {missing} for TLS: no such file or directory"):
        connect(nsqd, tls(files, tls_certificate=certificate, tls_key=missing))


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


def test_a_secret_that_nobody_asks_for_is_not_sent(nsqd: Daemon) -> None:
    with connect(nsqd, Settings(auth_secret="s")) as client:
        client.publish("t", [b"x"])


def test_the_daemon_gets_who_we_are(nsqd: Daemon) -> None:
    with consumer(nsqd, settings=Settings(client_id="me", user_agent="mine/1")):
        (shown,) = nsqd.channel_stats("t", "c")["clients"]
        assert (shown["client_id"], shown["user_agent"]) == ("me", "mine/1")
        assert shown["hostname"] == socket.gethostname()


# A peer of the test's own


@pytest.fixture
def pair() -> Iterator[tuple[Client, socket.socket]]:
    """A client, and the socket of what it takes for an nsqd."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(DEADLINE)
    with Client(ours, "peer", DEADLINE) as client, theirs:
        yield client, theirs


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(data), kind) + data


def pushed(message: Message) -> bytes:
    return frame(nsq_client.MESSAGE, struct.pack(">qH16s", *message[:3]) + message.body)


HEARTBEAT = frame(nsq_client.RESPONSE, nsq_client.HEARTBEAT)
MESSAGES = [
    Message(1 << 60, 1, b"0123456789abcdef", b""),
    Message(2, 65535, b"f" * 16, bytes(1000)),
    Message(3, 3, b"e" * 16, b"x"),
]


@pytest.mark.parametrize("seed", range(30))
def test_frames_may_come_in_any_pieces(pair: tuple[Client, socket.socket], seed: int) -> None:
    client, peer = pair
    chance = random.Random(seed)
    wanted = [chance.choice(MESSAGES) for _ in range(20)]
    data = b"".join(pushed(message) + HEARTBEAT * chance.randrange(2) for message in wanted)
    got: list[Message] = []
    while data:
        size = chance.choice((1, 3, 8, 30, 40, 2000))
        peer.sendall(data[:size])
        data = data[size:]
        got += client.receive(0.0)
    assert got + client.receive(0.0) == wanted


def test_what_came_while_the_process_was_stopped_is_received(
    pair: tuple[Client, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped behind its first look at the socket, for longer than it would have waited."""
    client, peer = pair
    look = client._read

    def look_and_be_stopped() -> bool:
        monkeypatch.setattr(client, "_read", look)
        came = look()
        peer.sendall(pushed(MESSAGES[0]))
        time.sleep(0.02)
        return came

    monkeypatch.setattr(client, "_read", look_and_be_stopped)
    assert client.receive(0.01) == [MESSAGES[0]]


@pytest.mark.parametrize("call", ["receive", "poll", "publish"])
def test_heartbeats_are_answered_by_whatever_is_called(pair: tuple[Client, socket.socket], call: str) -> None:
    client, peer = pair
    peer.sendall(HEARTBEAT)
    if call == "receive":
        assert client.receive(0.0) == []
    elif call == "poll":
        client.poll()
    else:
        peer.sendall(frame(nsq_client.RESPONSE, b"OK"))
        client.publish("t", [b"x"])
    assert peer.recv(100).endswith(b"NOP\n")


def test_messages_that_come_before_an_answer_are_kept(pair: tuple[Client, socket.socket]) -> None:
    client, peer = pair
    peer.sendall(pushed(MESSAGES[0]))
    client.poll()
    peer.sendall(pushed(MESSAGES[1]) + frame(nsq_client.RESPONSE, b"OK"))
    client.publish("t", [b"x"])
    assert client.receive(0.0) == MESSAGES[:2]


@pytest.mark.parametrize(
    "data, error, text",
    [
        (b"", ConnectionLost, "nsqd peer closed the connection"),
        (pushed(MESSAGES[0])[:-1], ConnectionLost, "nsqd peer closed the connection"),
        (frame(1, b"E_INVALID cannot SUB"), Refused, "nsqd peer refused: E_INVALID cannot SUB"),
        (frame(1, b"E_BAD_PROTOCOL"), Refused, "nsqd peer refused: E_BAD_PROTOCOL"),
        (frame(1, b"\xff"), Refused, "nsqd peer refused: \ufffd"),
        (frame(2, b"short") + bytes(50), ConnectionLost, "nsqd peer sent an invalid message"),
        (frame(3, b"x" * 50), ConnectionLost, "nsqd peer does not speak NSQ's protocol"),
        (struct.pack(">ii", 3, 0), ConnectionLost, "nsqd peer does not speak NSQ's protocol"),
        (struct.pack(">ii", -1, 2) + bytes(50), ConnectionLost, "nsqd peer does not speak NSQ's protocol"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ConnectionLost, "nsqd peer answers HTTP: expected its TCP port"),
    ],
)
@pytest.mark.parametrize("use", ["receive", "finish"])
def test_wrong_bytes_and_the_end_are_reported(
    pair: tuple[Client, socket.socket], use: str, data: bytes, error: type[NsqSourceError], text: str
) -> None:
    client, peer = pair
    peer.sendall(data)
    peer.close()
    with pytest.raises(error) as raised:
        CALLS[use](client)
    assert str(raised.value) == text


@pytest.mark.parametrize("timeout", [0.02, 0.0])
def test_silence_where_an_answer_is_due_is_reported(timeout: float) -> None:
    ours, theirs = socket.socketpair()
    with theirs, Client(ours, "peer", 0.1) as client:
        with pytest.raises(ConnectionLost, match="nsqd peer does not answer"):
            client.publish("t", [b"x"])
        with pytest.raises(ConnectionLost, match="nsqd peer was silent for 0.1 s"):
            again_and_again(lambda: client.receive(timeout))


def test_an_answer_that_is_none_is_reported(pair: tuple[Client, socket.socket]) -> None:
    client, peer = pair
    peer.sendall(frame(nsq_client.RESPONSE, b"CLOSE_WAIT"))
    with pytest.raises(ConnectionLost, match="answered b'CLOSE_WAIT' in place of OK"):
        client.publish("t", [b"x"])


def test_a_peer_that_writes_before_it_reads_blocks_nobody(pair: tuple[Client, socket.socket]) -> None:
    client, peer = pair
    many = pushed(MESSAGES[1]) * 20_000
    command = b"FIN 0123456789abcdef\n" * 200_000
    received = bytearray()

    def write_then_read() -> None:
        peer.sendall(many)
        while len(received) < len(command):
            received.extend(peer.recv(1 << 20))

    thread = threading.Thread(target=write_then_read)
    thread.start()
    client.finish([b"0123456789abcdef"] * 200_000)
    thread.join(DEADLINE)
    assert bytes(received) == command
    assert receive(client, 20_000) == [MESSAGES[1]] * 20_000


def test_an_answer_that_comes_while_it_still_sends_is_seen(pair: tuple[Client, socket.socket]) -> None:
    client, peer = pair
    body = bytes(4_000_000)

    def answer_then_read() -> None:
        peer.sendall(pushed(MESSAGES[0]) + frame(nsq_client.RESPONSE, b"OK"))
        left = len(body)
        while left > 0:
            left -= len(peer.recv(1 << 20))

    thread = threading.Thread(target=answer_then_read)
    thread.start()
    started = time.monotonic()
    client.publish("t", [body])
    assert time.monotonic() < started + DEADLINE / 2
    thread.join(DEADLINE)
    assert client.receive(0.0) == [MESSAGES[0]]


def test_why_it_was_reset_is_reported_by_a_client_that_still_sends(pair: tuple[Client, socket.socket]) -> None:
    client, peer = pair
    peer.sendall(frame(nsq_client.ERROR, b"E_BAD_BODY too big"))

    def close_with_something_unread() -> None:
        peer.recv(1)
        peer.close()

    thread = threading.Thread(target=close_with_something_unread)
    thread.start()
    with pytest.raises(Refused, match="E_BAD_BODY too big"):
        client.publish("t", [bytes(4_000_000)])
    thread.join(DEADLINE)
