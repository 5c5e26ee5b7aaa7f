"""Bodies of all kinds with pynsq, and what comes of messages that a reader does not finish; the rest is in
test_scenario.py."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import nsq
import pytest

from kit.daemons import Instance

TOPIC, CHANNEL = "work", "ch"


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


class Inbox:
    """A reader that keeps the messages it gets, with the time, and leaves it to the test to respond."""

    def __init__(self, nsqd: Instance, **options: Any) -> None:
        self.nsqd = nsqd
        self.messages: list[Any] = []
        self.times: list[float] = []
        address = "{}:{}".format(*nsqd.tcp_address)
        self.reader = nsq.Reader(TOPIC, CHANNEL, self.handle, nsqd_tcp_addresses=[address], **options)
        self.writer = nsq.Writer([address])

    def handle(self, message: Any) -> None:
        message.enable_async()
        self.times.append(time.monotonic())
        self.messages.append(message)

    def stats(self) -> dict[str, Any]:
        return self.nsqd.channel_stats(TOPIC, CHANNEL)

    @property
    def ready(self) -> int:
        return int(self.stats()["clients"][0]["ready_count"])

    async def received(self, count: int) -> None:
        await until(lambda: len(self.messages) >= count)

    async def publish(self, *bodies: bytes) -> None:
        """Returns when the daemon has answered OK."""
        await until(lambda: self.writer.conns)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        method, argument = (self.writer.mpub, list(bodies)) if len(bodies) > 1 else (self.writer.pub, bodies[0])
        method(TOPIC, argument, callback=lambda conn, data: answer.set_result(data))
        assert await answer == b"OK"


async def messages_arrive_as_they_were_published(nsqd: Instance) -> None:
    before = time.time_ns()
    inbox = Inbox(nsqd, max_in_flight=10)
    await inbox.publish(b"\0\xff binary\r\n  V2")
    await inbox.publish(b"one", b"two", b"x" * 100_000)
    await inbox.received(4)
    assert {message.body for message in inbox.messages} == {b"\0\xff binary\r\n  V2", b"one", b"two", b"x" * 100_000}
    assert [message.attempts for message in inbox.messages] == [1] * 4
    assert len({message.id for message in inbox.messages}) == 4
    assert all(before <= message.timestamp <= time.time_ns() for message in inbox.messages)


async def message_without_response_comes_again_after_its_timeout(nsqd: Instance) -> None:
    inbox = Inbox(nsqd, max_in_flight=10, msg_timeout=1)
    published = time.monotonic()
    await inbox.publish(b"again")
    await inbox.received(2)
    assert inbox.times[1] - published >= 1.0
    assert inbox.messages[1].attempts == 2
    assert inbox.stats()["timeout_count"] >= 1


async def reader_in_backoff_gets_nothing_until_it_asks_again(nsqd: Instance) -> None:
    """Fails once: pynsq sends RDY 0, after a bit over a second RDY 1, and at success what it was before."""
    inbox = Inbox(nsqd, max_in_flight=5, max_backoff_duration=40)
    await inbox.publish(b"bad")
    await inbox.received(1)
    await until(lambda: inbox.ready == 5)
    inbox.messages[0].requeue(time_ms=0)
    failed = time.monotonic()
    await until(lambda: inbox.ready == 0)
    await inbox.publish(*[b"%d" % number for number in range(20)])
    await inbox.received(2)
    assert inbox.times[1] - failed > 1
    assert inbox.ready == inbox.stats()["in_flight_count"] == 1
    inbox.messages[1].finish()
    await inbox.received(2 + 5)
    assert inbox.ready == 5


@pytest.mark.parametrize(
    "story",
    [
        messages_arrive_as_they_were_published,
        message_without_response_comes_again_after_its_timeout,
        reader_in_backoff_gets_nothing_until_it_asks_again,
    ],
)
def test_pynsq(nsqd: Instance, story: Callable[[Instance], Any]) -> None:
    asyncio.run(asyncio.wait_for(story(nsqd), 25))
