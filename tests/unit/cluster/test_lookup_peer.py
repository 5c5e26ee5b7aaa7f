"""The connection to one nsqlookupd: the bytes, and what becomes of it when the other side misbehaves."""

import io
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from errno import EMFILE
from os import strerror
from socket import AF_APPLETALK, AF_INET, SOCK_STREAM

import pytest
from gevent import sleep

from gnsqd.cluster import lookup as module
from gnsqd.cluster.lookup import LookupdError, LookupPeer
from gnsqd.log import Level, Logger
from gnsqd.net import dialing
from kit.daemons import free_port
from unit.cluster.fake_lookupd import FakeLookupd, answer, info, obliging


class RegisteringPeer(LookupPeer):
    """A peer that registers `topics`."""

    def __init__(self, address: str, max_body_size: int = 1000) -> None:
        self.topics: list[tuple[str, list[str]]] = []
        self.log = io.StringIO()
        super().__init__(
            address,
            identity=lambda local_host: {"version": "1.3.0"},
            registrations=lambda: self.topics,
            note_failure=lambda: None,
            max_body_size=max_body_size,
            log=Logger("", Level.DEBUG, self.log),
        )


@pytest.fixture
def peer() -> Iterator[Callable[..., RegisteringPeer]]:
    with ExitStack() as stack:
        yield lambda *args: stack.enter_context(closing(RegisteringPeer(*args)))


Lookupd = Callable[..., FakeLookupd]
MakePeer = Callable[..., RegisteringPeer]


def failure(peer: RegisteringPeer, command: str = "PING") -> tuple[str, str]:
    with pytest.raises(LookupdError) as caught:
        peer.command(command)
    assert not peer.connected
    return caught.value.command, str(caught.value)


def test_answers_are_logged_and_those_to_other_commands_may_be_anything(lookupd: Lookupd, peer: MakePeer) -> None:
    answers = {"IDENTIFY": info(http_port=4161, tcp_port=4160, broadcast_address="")}
    server = lookupd(lambda line: [answers.get(line, answer(b"E_INVALID no"))])
    client = peer(server.address)
    client.command("PING")
    client.command("PING")
    assert server.lines == [["IDENTIFY", "PING", "PING"]]
    assert client.info.http_port == 4161
    expected = f"LOOKUPD({server.address}): peer info {{TCPPort:4160 HTTPPort:4161 Version:1.3.0 BroadcastAddress:}}\n"
    assert expected in client.log.getvalue()
    assert f"ERROR: LOOKUPD({server.address}): no broadcast address\n" in client.log.getvalue()


@pytest.mark.parametrize("body", [
    b"E_INVALID", b"", b"[]", b'{"http_port":"4161"}', b'{"http_port":1.5}', b"\xff", b"[" * 900, b'{"version":"\\n"}',
])  # fmt: skip
def test_answer_to_identify_without_sense_ends_the_connection(body: bytes, lookupd: Lookupd, peer: MakePeer) -> None:
    server = lookupd(lambda line: [answer(body)])
    client = peer(server.address)
    assert failure(client)[0] == "parsing response"
    assert client.info.broadcast_address == ""


@pytest.mark.parametrize(
    "size, limit, max_body_size", [(1001, 1000, 1000), (2**31 - 1, 1000, 1000), (-1, 1000, 1000), (16385, 16384, 2**31)]
)
def test_answer_of_impossible_size_is_refused(
    size: int, limit: int, max_body_size: int, lookupd: Lookupd, peer: MakePeer
) -> None:
    client = peer(lookupd(lambda line: [struct.pack(">i", size)]).address, max_body_size)
    assert failure(client) == ("IDENTIFY", f"response body size ({size}) is greater than limit ({limit})")


def drip(line: str) -> Iterable[bytes]:
    for byte in answer(b"x" * 900):
        yield bytes([byte])
        sleep(0.01)


@pytest.mark.parametrize("respond", [lambda line: [], drip], ids=["silent", "a byte at a time"])
def test_whole_answer_must_come_in_time(
    respond: Callable[[str], Iterable[bytes]], lookupd: Lookupd, peer: MakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IO_TIMEOUT", 0.1)
    client = peer(lookupd(respond).address)
    assert failure(client) == ("IDENTIFY", "i/o timeout")


def test_failed_registration_does_not_count_as_a_connection(
    lookupd: Lookupd, peer: MakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def respond(line: str) -> Iterable[bytes]:
        if line == "REGISTER t":  # no answer after this one
            monkeypatch.setattr(module, "IO_TIMEOUT", 0.1)
        return [] if line == "REGISTER u" else obliging(line)

    client = peer(lookupd(respond).address)
    client.topics = [("t", []), ("u", [])]
    assert failure(client) == ("REGISTER u", "i/o timeout")


@pytest.mark.parametrize(
    "address, text",
    [
        ("nowhere", "dial tcp: address nowhere: missing port in address"),
        ("[::1]", "dial tcp: address [::1]: missing port in address"),
        ("::1:4160", "dial tcp: address ::1:4160: too many colons in address"),
        ("127.0.0.1:99999", "dial tcp 127.0.0.1:99999: invalid port"),
        ("[::1]:99999", "dial tcp [::1]:99999: invalid port"),
        ("no..host:1", "dial tcp no..host:1: "),
        ("127.0.0.1:{free}", "dial tcp 127.0.0.1:{free}: connect: connection refused"),
    ],
)
def test_address_that_cannot_be(address: str, text: str, peer: MakePeer) -> None:
    free = free_port()
    command, error = failure(peer(address.format(free=free)))
    assert command == ""
    assert error.startswith(text.format(free=free))


def test_every_address_of_a_name_is_tried(lookupd: Lookupd, peer: MakePeer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = lookupd()
    impossible, nobody, right = (AF_APPLETALK, 1), (AF_INET, free_port()), (AF_INET, server.port)
    found = [(family, SOCK_STREAM, 0, "", ("127.0.0.1", port)) for family, port in (impossible, nobody, right)]
    monkeypatch.setattr("gevent.socket.getaddrinfo", lambda *args, **kwargs: found)
    peer("nsqlookupd.example:4160").command("PING")
    assert server.lines == [["IDENTIFY", "PING"]]


def test_no_descriptor_for_a_socket_is_an_error_like_others(
    lookupd: Lookupd, peer: MakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_socket(*args: object) -> None:
        raise OSError(EMFILE, strerror(EMFILE))

    client = peer(lookupd().address)
    with monkeypatch.context() as patched:
        patched.setattr(dialing, "Socket", no_socket)
        command, error = failure(client)
    assert (command, error) == ("", f"dial tcp {client.address}: connect: too many open files")
    client.command("PING")
