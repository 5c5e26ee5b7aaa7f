"""Somebody sets the clock while messages are in flight and deferred: what is to come after a time still does, no
sooner, and ids stay unique. Over a restart a due time is one of the wall clock, the only one that goes on.
"""

import time
from pathlib import Path

import pytest

from kit.daemons import Instance, eventually, interpreter, own_command
from kit.jumping_clock import WallClock
from kit.nsq_client import NSQClient, ReceivedMessage, parse_message
from kit.traffic import create

HOUR = 3600.0
TIMEOUT = 1.0  # seconds
DELAY = 1.4


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path / "clock", interpreter(own_command()))


@pytest.fixture
def gnsqd(clock: WallClock, tmp_path: Path) -> Instance:
    return Instance(clock.command, tmp_path / "data", "--max-req-timeout=2s")


def subscriber(gnsqd: Instance, rdy: int = 100, **settings: object) -> NSQClient:
    client = NSQClient(gnsqd.tcp_address)
    assert client.identify(output_buffer_size=-1, **settings).data == b"OK"
    client.subscribe("t", "c", rdy)
    return client


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["forward", "back"])
def test_setting_the_clock_brings_nothing_early_and_keeps_nothing_back(
    gnsqd: Instance, clock: WallClock, jump: float
) -> None:
    timeout = int(1000 * TIMEOUT)
    with gnsqd, subscriber(gnsqd, 2, msg_timeout=timeout) as holder, NSQClient(gnsqd.tcp_address) as publisher:
        sent = time.monotonic()
        publisher.publish("t", b"times out", b"requeued")
        first = {message.body: message for message in (holder.message(), holder.message())}
        requeued = time.monotonic()
        holder.command(b"REQ %b %d" % (first[b"requeued"].id, 1000 * DELAY))
        holder.command(b"RDY 0")
        deferred = time.monotonic()
        publisher.command(b"DPUB t %d" % (1000 * DELAY), b"deferred")
        assert publisher.response() == b"OK"
        clock.set(jump)
        client = subscriber(gnsqd)
        publisher.publish("t", *[b"after %d" % number for number in range(5000)])
        after: list[ReceivedMessage] = []
        came: dict[bytes, tuple[float, ReceivedMessage]] = {}
        while len(after) < 5000 or len(came) < 3:
            frame = client.frame()
            now = time.monotonic()
            message = parse_message(frame.data)
            client.command(b"FIN " + message.id)
            if message.body.startswith(b"after"):
                after.append(message)
            else:
                assert message.body not in came
                came[message.body] = now, message
        assert came[b"times out"][0] - sent > TIMEOUT - 0.01
        assert came[b"requeued"][0] - requeued > DELAY - 0.01
        assert came[b"deferred"][0] - deferred > DELAY - 0.01
        assert [came[body][1].attempts for body in (b"times out", b"requeued", b"deferred")] == [2, 2, 1]
        assert len({message.id for message in (*after, *first.values())}) == 5002
        ahead = after[0].timestamp / 1e9 - time.time()
        assert abs(ahead - jump) < HOUR / 2  # so the clock was set
        eventually(lambda: gnsqd.channel_stats("t", "c")["in_flight_count"] == 0)
        client.close()
    assert "Traceback (most" not in gnsqd.log()


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["forward", "back"])
def test_deferred_messages_come_when_the_clock_was_set_between_two_runs(
    gnsqd: Instance, clock: WallClock, jump: float
) -> None:
    with gnsqd:
        create(gnsqd, "t", "c")
        with NSQClient(gnsqd.tcp_address) as publisher:
            for delay in (800, 2000):
                publisher.command(b"DPUB t %d" % delay, b"deferred %d" % delay)
                assert publisher.response() == b"OK"
        eventually(lambda: gnsqd.channel_stats("t", "c")["message_count"] == 2)
        assert gnsqd.terminate() == 0
        clock.set(jump)
        started = time.monotonic()
        gnsqd.start()
        with subscriber(gnsqd) as client:
            assert {client.message().body, client.message().body} == {b"deferred 800", b"deferred 2000"}
            took = time.monotonic() - started
        if jump < 0:  # not due by the clock, but never later than --max-req-timeout
            assert took > 1.99
