"""Filling running daemons for the tests of gnsqadmin, and a cluster of them behind the real nsqlookupd."""

import socket
from dataclasses import dataclass

from cli.fake_nsqd import FakeServer
from cli.gnsqadmin import FakeNode
from kit.daemons import Instance, eventually
from kit.peer_program import PeerProgram
from kit.traffic import create, post, take, wait_for

_bound = socket.socket()  # which does not listen, and keeps others from doing so
_bound.bind(("127.0.0.1", 0))
DOWN = "{}:{}".format(*_bound.getsockname())


def address(node: Instance | FakeNode | FakeServer | str) -> str:
    """Returns the address of its HTTP API, as gnsqadmin writes it."""
    if isinstance(node, str):
        return node
    return "{}:{}".format(*node.http_address) if isinstance(node, Instance) else node.address


def at(*nodes: Instance | FakeNode | FakeServer | str) -> list[str]:
    """Returns the options that name these nodes."""
    return [f"--nsqd-http-address={address(node)}" for node in nodes]


def at_lookupd(*nodes: Instance | FakeNode | FakeServer | str) -> list[str]:
    return [f"--lookupd-http-address={address(node)}" for node in nodes]


def topics(daemon: Instance) -> list[str]:
    return [topic["topic_name"] for topic in daemon.stats()["topics"]]


def channels(daemon: Instance, topic: str) -> list[str]:
    return [channel["channel_name"] for channel in daemon.topic_stats(topic)["channels"]]


def publish(daemon: Instance, topic: str, count: int) -> None:
    """Publishes messages "0", "1", ... in one MPUB."""
    post(daemon, f"/mpub?topic={topic}", b"\n".join(b"%d" % number for number in range(count)))


def fill(daemon: Instance, topic: str, *channels: str, count: int) -> None:
    """Creates the channels, and publishes messages "0", "1", ... that each of them then has."""
    create(daemon, topic, *channels)
    publish(daemon, topic, count)
    for channel in channels:
        wait_for(daemon, topic, channel, depth=count)


def bodies(daemon: Instance, topic: str, count: int, channel: str = "c") -> list[bytes]:
    """Returns the bodies of that many messages of a channel, in order; there are no others."""
    return sorted(message.body for message in take(daemon, topic, channel, count))


@dataclass
class Registered:
    """Two nodes of the kind under test that registered with a real nsqlookupd."""

    lookupd: PeerProgram
    nodes: list[Instance]

    @property
    def flag(self) -> str:
        """The option that names the nsqlookupd."""
        return f"--lookupd-http-address={self.lookupd.address['HTTP']}"

    def wait_for_topic(self, topic: str, *nodes: Instance, channel: str = "") -> None:
        """Waits until the nsqlookupd lists the topic at these nodes (and the channel at any)."""
        ports = {int(node.http_address[1]) for node in nodes or self.nodes}

        def known() -> bool:
            status, answer = self.lookupd.ask("GET", f"/lookup?topic={topic}")
            if status != 200 or (channel and channel not in answer["channels"]):
                return False
            return ports <= {producer["http_port"] for producer in answer["producers"]}

        eventually(known, f"{topic} known to nsqlookupd")
