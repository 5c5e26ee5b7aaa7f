"""A disk whose fsync takes its time: only those wait for it who must.

The test decides how long, by holding fsync calls until it has seen what has to happen meanwhile.
"""

import itertools
import socket

import pytest

from kit.account import drain, next_body
from kit.daemons import Instance, eventually
from kit.faulty_gnsqd import Faults
from kit.http_api import ask
from kit.nsq_client import HEARTBEAT, RESPONSE, NSQClient
from kit.traffic import DaemonFactory

IN_MEMORY, SYNC_EVERY = 5, 10
FLAGS = [f"--mem-queue-size={IN_MEMORY}", f"--sync-every={SYNC_EVERY}", "--sync-timeout=50ms"]


@pytest.fixture
def daemon_command(faults: Faults) -> list[str]:
    return faults.command


def drop_connections(server: socket.socket) -> int:
    """Accepts and closes what has connected, and returns how many those were."""
    server.settimeout(0.05)
    for count in itertools.count():
        try:
            server.accept()[0].close()
        except TimeoutError:
            return count
    raise AssertionError


class WaitingPublisher:
    """Publishes to a topic, one message after the other, until the answer to the last of them does not come."""

    def __init__(self, nsqd: Instance, topic: str) -> None:
        self.nsqd = nsqd
        self.topic = topic
        self.client = NSQClient(nsqd.tcp_address)
        self.sent = 0
        while not self._publish_one():
            # What is in memory needs no fsync; of the rest as many may go without as sync-every says.
            assert self.sent <= IN_MEMORY + SYNC_EVERY

    def _publish_one(self) -> bool:
        """Returns True if it waits: while no answer comes, the daemon answers others."""
        self.client.command(f"PUB {self.topic}".encode(), b"%d" % self.sent)
        self.sent += 1
        for _ in range(3):
            try:
                assert self.client.frame(0.05) == (RESPONSE, b"OK")
                return False
            except TimeoutError:
                assert ask(self.nsqd, "GET /ping") == (200, "OK")
        return True

    def settle(self) -> None:
        """Receives the last answer, which comes now, and all messages."""
        assert self.client.response() == b"OK"
        self.client.close()
        assert sorted(map(int, drain(self.nsqd, self.topic))) == list(range(self.sent))


def test_everybody_else_goes_on(nsqd_factory: DaemonFactory, faults: Faults) -> None:
    def hold(name: str) -> None:
        """Holds each fsync of files whose name matches."""
        faults.set({"call": "fsync", "name": name, "hold": True})

    lookupd = socket.create_server(("localhost", 0))
    nsqd = nsqd_factory(*FLAGS, f"--lookupd-tcp-address=localhost:{lookupd.getsockname()[1]}")
    consumer, publisher = (NSQClient(nsqd.tcp_address) for _ in range(2))
    consumer.identify(output_buffer_size=-1)
    consumer.subscribe("served", "c", rdy=1)
    publisher.publish("served", b"first")

    # One queue waits for its fsync.
    hold("slow0.*")
    waiting = [WaitingPublisher(nsqd, "slow0")]
    for number in range(IN_MEMORY + 5 * SYNC_EVERY):
        publisher.publish("on-disk", b"%d" % number)
    assert faults.hits()

    # All of them do, more than there are threads in any pool.
    hold("*")
    for number in range(12):
        publisher.publish(f"syncing{number}", *[b"message"] * (IN_MEMORY + SYNC_EVERY))
    waiting += [WaitingPublisher(nsqd, f"slow{number}") for number in (1, 2)]
    for body in (b"first", b"second"):
        assert next_body(consumer) == body
        publisher.publish("served", b"second")
        publisher.publish("new", body)
    assert ask(nsqd, "GET /ping") == (200, "OK")
    assert ask(nsqd, "POST /pub?topic=served", b"third") == (200, "OK")
    # Heartbeats come, and names are resolved.
    idle = NSQClient(nsqd.tcp_address)
    idle.identify(heartbeat_interval=1000)
    for _ in range(2):
        assert idle.frame() == (RESPONSE, HEARTBEAT)
        idle.command(b"NOP")
    drop_connections(lookupd)
    numbers = itertools.count()

    def connects_again() -> bool:
        publisher.publish(f"newer{next(numbers)}", b"that nsqlookupd is to learn of")
        return drop_connections(lookupd) > 0

    eventually(connects_again)
    for publishing in waiting:
        assert publishing.client.nothing_arrives(0)

    faults.set()
    for publishing in waiting:
        publishing.settle()
    assert len(drain(nsqd, "on-disk")) == IN_MEMORY + 5 * SYNC_EVERY
    lookupd.close()
