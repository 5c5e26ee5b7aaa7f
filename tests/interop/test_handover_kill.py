"""Whole daemons hand a data path over by kill -9: everything that is on disk is there."""

import pytest

from kit.daemons import Instance, eventually
from kit.handover import WITNESS, meta, nothing_left, saved_topics, start_other, started_with, varied, witnessed
from kit.nsq_client import NSQClient, ReceivedMessage
from kit.traffic import DaemonFactory, all_done, create, publish, take, wait_for

pytestmark = pytest.mark.peer

ON_DISK = ("--mem-queue-size=0", "--max-bytes-per-file=1000")
KILL_FLAGS = (*ON_DISK, "--sync-every=1", "--sync-timeout=60s")


def settled(nsqd: Instance, depths: dict[str, int]) -> None:
    """Waits until nsqd.dat lists `t` with all channels, and the meta files have what each queue holds."""
    eventually(lambda: {"t", *(f"t:{channel}" for channel in saved_topics(nsqd).get("t", []))} == set(depths))
    eventually(lambda: {queue: (meta(nsqd, queue) or [-1])[0] for queue in depths} == depths, f"{depths}")


def take_all(nsqd: Instance, topic: str, channel: str) -> list[ReceivedMessage]:
    """Takes all messages of a channel, first in first out."""
    publish(nsqd, topic, b"the last one")
    messages: list[ReceivedMessage] = []
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe(topic, channel, rdy=1)
        while not messages or messages[-1].body != b"the last one":
            messages.append(client.message())
            client.command(b"FIN " + messages[-1].id)
        all_done(client)
    return messages[:-1]


def test_what_a_killed_daemon_had_synced_is_there_once(start_first: DaemonFactory) -> None:
    nsqd = start_first(*KILL_FLAGS)
    create(nsqd, "t", WITNESS, "c", "unread")
    messages = witnessed(nsqd, "t", *varied(60))
    assert take(nsqd, "t", "c", 25) == messages[:25]
    settled(nsqd, {"t": 0, f"t:{WITNESS}": 0, "t:c": 35, "t:unread": 60})
    nsqd.kill()
    start_other(nsqd, *ON_DISK)
    started_with(nsqd, {"t": (False, 0, {WITNESS: (False, 0), "c": (False, 35), "unread": (False, 60)})})
    assert take(nsqd, "t", "c", 35) == messages[25:]
    assert take(nsqd, "t", "unread", 60) == messages
    nothing_left(nsqd)


def test_only_what_had_been_read_comes_again_from_a_killed_daemon(start_first: DaemonFactory) -> None:
    nsqd = start_first(*KILL_FLAGS)
    create(nsqd, "t", WITNESS, "c")
    messages = witnessed(nsqd, "t", *varied(60))
    settled(nsqd, {"t": 0, f"t:{WITNESS}": 0, "t:c": 60})
    with NSQClient(nsqd.tcp_address) as client:
        client.subscribe("t", "c", rdy=1)
        for message in messages[:24]:
            assert client.message() == message
            client.command(b"FIN " + message.id)
        assert client.message() == messages[24]
        nsqd.kill()
        start_other(nsqd, *ON_DISK)
    found = take_all(nsqd, "t", "c")
    assert found[-35:] == messages[25:]
    assert found[:-35] == messages[60 - len(found) : 25]
    wait_for(nsqd, "t", "c", depth=0, in_flight_count=0, deferred_count=0)


@pytest.mark.parametrize("sync_every", [1, 2500])
def test_what_was_acknowledged_is_there_when_the_daemon_is_killed_while_more_comes(
    start_first: DaemonFactory, sync_every: int
) -> None:
    nsqd = start_first(*ON_DISK, f"--sync-every={sync_every}", "--sync-timeout=60s")
    create(nsqd, "t")
    eventually(lambda: "t" in saved_topics(nsqd))
    bodies = [b"%04d" % number + b"x" * 400 for number in range(600)]
    with NSQClient(nsqd.tcp_address) as client:
        client.send(b"".join(b"PUB t\n%b%b" % (len(body).to_bytes(4), body) for body in bodies))
        for _ in range(50):
            assert client.response() == b"OK"
        nsqd.kill()
        acknowledged = 50 + client.recv_until_closed().count(b"OK")
    start_other(nsqd, *ON_DISK)
    found = take_all(nsqd, "t", "c")
    assert [message.body for message in found] == bodies[: len(found)]
    assert acknowledged <= len(found)
    assert len({message.id for message in found}) == len(found)
    nothing_left(nsqd)
