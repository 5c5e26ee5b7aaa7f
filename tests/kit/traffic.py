"""Traffic that tests make again and again, each kind in one call: create, publish, take."""

from collections.abc import Callable
from typing import Any

from kit.daemons import Instance, eventually
from kit.nsq_client import MESSAGE, RESPONSE, Frame, NSQClient, ReceivedMessage, parse_message

DaemonFactory = Callable[..., Instance]

MAX_RDY = 2500  # by default


def post(nsqd: Instance, target: str, body: bytes = b"") -> bytes:
    """Returns the answer of the daemon, whose status must be 200."""
    status, _, answer = nsqd.http("POST", target, body)
    assert status == 200, (target, status, answer)
    return answer


def create(nsqd: Instance, topic: str, *channels: str) -> None:
    post(nsqd, f"/topic/create?topic={topic}")
    for channel in channels:
        post(nsqd, f"/channel/create?topic={topic}&channel={channel}")


def publish(nsqd: Instance, topic: str, *bodies: bytes) -> None:
    """Publishes over a connection of its own, which ends when the daemon has answered."""
    with NSQClient(nsqd.tcp_address) as client:
        client.publish(topic, *bodies)


def take(nsqd: Instance, topic: str, channel: str, count: int) -> list[ReceivedMessage]:
    """Receives `count` messages in the order of delivery, and finishes them.

    The daemon has sent none but these, and has dealt with the FINs when this returns.
    """
    taken: list[ReceivedMessage] = []
    with NSQClient(nsqd.tcp_address) as client:
        client.identify(heartbeat_interval=60_000)  # seconds go by with many messages
        client.subscribe(topic, channel)
        while len(taken) < count:
            window = min(count - len(taken), MAX_RDY)
            client.command(b"RDY %d" % window)
            messages = [client.message() for _ in range(window)]
            client.send(b"RDY 0\n" + b"".join(b"FIN %b\n" % message.id for message in messages))
            taken += messages
        assert not all_done(client)
    return taken


def finish(client: NSQClient, count: int) -> list[ReceivedMessage]:
    """Finishes the next `count` messages of a consumer, each before the next comes."""
    messages = []
    for _ in range(count):
        messages.append(client.message())
        client.command(b"FIN " + messages[-1].id)
    return messages


def all_done(client: NSQClient) -> list[ReceivedMessage]:
    """Returns the messages that came until the daemon had dealt with everything that this client sent."""
    client.send(b"CLS\n")
    messages = []
    while (frame := client.frame()).type != RESPONSE:
        if frame.type == MESSAGE:
            messages.append(parse_message(frame.data))
    assert frame == Frame(RESPONSE, b"CLOSE_WAIT")
    return messages


def wait_for(nsqd: Instance, topic: str, channel: str = "", **figures: object) -> dict[str, Any]:
    """Waits until the statistics of the channel, or else the topic, have these, such as `depth=3`; returns all."""

    def reached() -> dict[str, Any] | None:
        stats = nsqd.channel_stats(topic, channel) if channel else nsqd.topic_stats(topic)
        return stats if stats and all(stats.get(name) == value for name, value in figures.items()) else None

    return eventually(reached, f"{topic}:{channel} with {figures}")
