"""A consumer whose connection ends in a bad way, or only seems to be there: what it had in flight goes to another one,
what it had finished does not come again.
"""

import socket
import time
from collections.abc import Callable

import pytest

from kit.daemons import Daemon, eventually
from kit.nsq_client import HEARTBEAT, Client, Message

DaemonFactory = Callable[..., Daemon]

TIMEOUT = 3.0  # seconds, in which four messages are surely answered
PATIENCE = 15.0  # seconds, of several in which all comes: a daemon that keeps something back is soon found out
FENCE = b"fence-of-a-test."  # no message's id: the answer to it comes when all before it is executed


def half_close(client: Client) -> None:
    client.sock.shutdown(socket.SHUT_WR)


def fall_silent(client: Client) -> None:
    """As when its machine has lost its power: heartbeats are not answered, and nothing reports the end."""


def wait_until_closed(client: Client) -> None:
    frames = client.recv_until_closed()
    assert HEARTBEAT in frames


@pytest.mark.parametrize("end", [Client.reset, half_close, fall_silent], ids=["reset", "half-closed", "silent"])
def test_messages_of_a_lost_consumer_go_to_another(nsqd_factory: DaemonFactory, end: Callable[[Client], None]) -> None:
    nsqd = nsqd_factory(f"--msg-timeout={TIMEOUT}s")
    with Client(nsqd.tcp_address, timeout=PATIENCE) as lost, Client(nsqd.tcp_address, timeout=PATIENCE) as other:
        assert lost.identify(output_buffer_size=-1, heartbeat_interval=1000).data == b"OK"
        lost.subscribe("t", "c", rdy=10)
        sent = time.monotonic()
        other.publish("t", b"finished", b"in flight", b"requeued", b"deferred")
        held = {message.body: message for message in (lost.message() for _ in range(4))}
        lost.command(b"FIN " + held[b"finished"].id)
        requeued = time.monotonic()
        lost.command(b"REQ " + held[b"deferred"].id + b" 1500")
        lost.command(b"RDY 0")
        lost.command(b"REQ " + held[b"requeued"].id + b" 0")
        lost.command(b"FIN " + FENCE)
        assert lost.error().endswith(b"ID not in flight")
        end(lost)
        other.subscribe("t", "c", rdy=10)
        came: dict[bytes, tuple[float, Message]] = {}
        while len(came) < 3:
            try:
                message = other.message()
            except TimeoutError:
                raise AssertionError(f"only {sorted(came)} came: {nsqd.channel_stats('t', 'c')}") from None
            assert message.body not in came
            came[message.body] = time.monotonic(), message
            other.command(b"FIN " + message.id)
        assert {body: message.attempts for body, (_, message) in came.items()} == dict.fromkeys(
            (b"in flight", b"requeued", b"deferred"), 2
        )
        assert came[b"in flight"][0] - sent > TIMEOUT - 0.01
        assert came[b"deferred"][0] - requeued > 1.49
        if end is fall_silent:
            wait_until_closed(lost)
        eventually(lambda: len(nsqd.channel_stats("t", "c")["clients"]) == 1, "only one client", PATIENCE)
        eventually(lambda: nsqd.channel_stats("t", "c")["in_flight_count"] == 0, "nothing in flight", PATIENCE)
        stats = nsqd.channel_stats("t", "c")
        assert (stats["depth"], stats["deferred_count"], stats["requeue_count"], stats["timeout_count"]) == (0, 0, 2, 1)
