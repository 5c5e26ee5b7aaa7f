"""Filling running daemons for the tests of gnsqadmin, and a cluster of them behind the real nsqlookupd."""

from dataclasses import dataclass

from kit.daemons import Daemon, eventually
from kit.peer_program import PeerProgram


def address(daemon: Daemon) -> str:
    """Where its HTTP API listens, as gnsqadmin writes it."""
    return "{}:{}".format(*daemon.http_address)


def at(*daemons: Daemon) -> list[str]:
    """The options that name these nodes."""
    return [f"--nsqd-http-address={address(daemon)}" for daemon in daemons]


def post(daemon: Daemon, path: str, body: bytes = b"") -> None:
    status, _, answer = daemon.http("POST", path, body)
    assert status == 200, (path, status, answer)


def create(daemon: Daemon, topic: str, *channels: str) -> None:
    post(daemon, f"/topic/create?topic={topic}")
    for channel in channels:
        post(daemon, f"/channel/create?topic={topic}&channel={channel}")


def publish(daemon: Daemon, topic: str, count: int) -> None:
    """Messages "0", "1", ... in one MPUB."""
    post(daemon, f"/mpub?topic={topic}", b"\n".join(b"%d" % number for number in range(count)))


def wait_for_depth(daemon: Daemon, topic: str, channel: str, depth: int) -> None:
    eventually(lambda: daemon.channel_stats(topic, channel)["depth"] == depth, f"depth {depth}")


@dataclass
class Cluster:
    """Two nodes of the kind under test that registered with a real nsqlookupd."""

    lookupd: PeerProgram
    nodes: list[Daemon]

    @property
    def flag(self) -> str:
        """The option that names the nsqlookupd."""
        return f"--lookupd-http-address={self.lookupd.address['HTTP']}"

    def wait_for_topic(self, topic: str, *nodes: Daemon, channel: str = "") -> None:
        """Until the nsqlookupd says that these nodes have the topic (and somebody has the channel)."""
        ports = {int(node.http_address[1]) for node in nodes or self.nodes}

        def known() -> bool:
            status, said = self.lookupd.ask("GET", f"/lookup?topic={topic}")
            if status != 200 or (channel and channel not in said["channels"]):
                return False
            return ports <= {producer["http_port"] for producer in said["producers"]}

        eventually(known, f"{topic} known to nsqlookupd")
