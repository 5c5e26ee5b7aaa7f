"""What most tests of the Spark side need of NSQ: messages in topics, and the options that name daemons."""

from collections.abc import Sequence

from kit.daemons import Daemon
from kit.nsq_client import Client


def daemon_options(*daemons: Daemon) -> dict[str, str]:
    """The options of a reader that name these daemons, whatever their HTTP ports are."""
    http = ",".join("{}:{}".format(*daemon.http_address) for daemon in daemons)
    # A task ends with its quota, so nothing takes longer; a machine that stands still for a second ends none early.
    return {**sink_options(*daemons), "nsq.nsqd.http.addresses": http, "idleTimeoutMs": "20000"}


def sink_options(*daemons: Daemon) -> dict[str, str]:
    """The options of a writer that name these daemons."""
    return {"nsq.nsqd.tcp.addresses": ",".join(name(daemon) for daemon in daemons)}


def name(daemon: Daemon) -> str:
    """What the column `nsqd` has for a daemon that was named by its address."""
    return "{}:{}".format(*daemon.tcp_address)


def publish(daemon: Daemon, topic: str, bodies: Sequence[bytes]) -> None:
    client = Client(daemon.tcp_address)
    client.publish(topic, *bodies)
    client.sock.close()


def bodies(count: int, prefix: str = "") -> list[bytes]:
    """That many different ones."""
    return [b"%s%d" % (prefix.encode(), number) for number in range(count)]


def take(daemon: Daemon, topic: str, count: int, channel: str = "check") -> list[bytes]:
    """Consume that many messages, and see that no more come."""
    client = Client(daemon.tcp_address)
    client.subscribe(topic, channel, rdy=2500)
    taken: list[bytes] = []
    while len(taken) < count:
        message = client.message()
        client.command(b"FIN " + message.id)
        taken.append(message.body)
    assert client.nothing_arrives(0.3)
    client.sock.close()
    return taken
