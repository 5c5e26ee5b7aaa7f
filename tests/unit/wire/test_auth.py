"""What happens around the question to an auth server; what its answers mean is in behaviour/."""

import socket
from collections.abc import Iterator
from io import StringIO
from time import monotonic

import pytest

from gnsqd.broker.registry import Registry
from gnsqd.log import Level, Logger
from gnsqd.options import SECOND, Options
from gnsqd.wire.client_v2 import ClientV2
from gnsqd.wire.codec import FRAME_TYPE_RESPONSE, Decoder, frame
from gnsqd.wire.commands import Authenticate, Commands


class Granted:
    identity = identity_url = ""
    permission_count = 1
    expired = False

    def allows(self, topic_name: str, channel_name: str) -> bool:
        return True


@pytest.fixture
def ends() -> Iterator[tuple[ClientV2, socket.socket]]:
    """A client, and the other end of its connection."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        client = ClientV2(1, ours, "127.0.0.1:1", Options())
        yield client, theirs
        client.connection.close()


def execute_auth(client: ClientV2, authenticate: Authenticate) -> None:
    decoder = Decoder()
    decoder.feed(b"AUTH\n\0\0\0\6secret")
    command = decoder.next_command()
    assert command is not None
    log = Logger("", Level.INFO, StringIO())
    Commands(Registry(), Options(), log, None, authenticate).execute(client, command)
    assert client.auth_state is not None


def test_answers_of_the_batch_leave_before_the_server_is_asked(ends: tuple[ClientV2, socket.socket]) -> None:
    client, theirs = ends
    received: list[bytes] = []

    def authenticate(remote_ip: str, tls: bool, common_name: str, secret: bytes) -> Granted:
        received.append(theirs.recv(65536))
        return Granted()

    answer = frame(FRAME_TYPE_RESPONSE, b"OK")
    client.reply(answer)
    execute_auth(client, authenticate)
    assert received == [answer]


def test_time_that_the_server_takes_is_not_the_clients(ends: tuple[ClientV2, socket.socket]) -> None:
    client, _ = ends

    def authenticate(remote_ip: str, tls: bool, common_name: str, secret: bytes) -> Granted:
        client.connection.read_deadline = monotonic()
        return Granted()

    execute_auth(client, authenticate)
    assert client.connection.read_deadline > monotonic() + client.heartbeat_interval / SECOND
