"""What pynsq's users count on, one promise a test. Restarts and numbers are the scenario's part (test_scenario.py)."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import nsq

from kit.daemons import Daemon

TOPIC = "work"


def run(story: Coroutine[Any, Any, None]) -> None:
    """Plays `story` on an event loop of its own, which is what pynsq's clients belong to."""
    asyncio.run(asyncio.wait_for(story, 25))


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def address(nsqd: Daemon) -> str:
    return "{}:{}".format(*nsqd.tcp_address)


class Inbox:
    """A reader that keeps the messages it gets, with the time, and leaves it to the test to respond."""

    def __init__(self, nsqd: Daemon, channel: str, **options: Any) -> None:
        self.nsqd = nsqd
        self.channel = channel
        self.messages: list[Any] = []
        self.times: list[float] = []
        self.reader = nsq.Reader(TOPIC, channel, self.handle, nsqd_tcp_addresses=[address(nsqd)], **options)

    def handle(self, message: Any) -> None:
        message.enable_async()
        self.times.append(time.monotonic())
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    def stats(self) -> dict[str, Any]:
        return self.nsqd.channel_stats(TOPIC, self.channel)

    async def received(self, count: int) -> None:
        await until(lambda: len(self.messages) >= count)


class FinishingInbox(Inbox):
    def handle(self, message: Any) -> None:
        super().handle(message)
        message.finish()


async def ready(inbox: Inbox, readers: int = 1) -> None:
    """Until the daemon would deliver to that many readers of `inbox`'s channel."""
    await until(lambda: sum(client["ready_count"] > 0 for client in inbox.stats().get("clients", [])) == readers)


async def writer_for(nsqd: Daemon) -> nsq.Writer:
    writer = nsq.Writer([address(nsqd)])
    await until(lambda: writer.conns)
    return writer


async def acknowledged(publish: Callable[..., Any], *arguments: Any) -> None:
    """Until the daemon has answered OK to `publish(*arguments)`, a method of a writer."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    publish(TOPIC, *arguments, callback=lambda conn, data: answer.set_result(data))
    assert await answer == b"OK"


def test_messages_arrive_as_they_were_published(nsqd: Daemon) -> None:
    async def story() -> None:
        before = time.time_ns()
        inbox, writer = FinishingInbox(nsqd, "ch", max_in_flight=10), await writer_for(nsqd)
        await acknowledged(writer.pub, b"\0\xff binary\r\n  V2")
        await acknowledged(writer.mpub, [b"one", b"two", b"x" * 100_000])
        await inbox.received(4)
        assert set(inbox.bodies) == {b"\0\xff binary\r\n  V2", b"one", b"two", b"x" * 100_000}
        assert [message.attempts for message in inbox.messages] == [1] * 4
        assert len({message.id for message in inbox.messages}) == 4
        assert all(before <= message.timestamp <= time.time_ns() for message in inbox.messages)

    run(story())


def test_finished_messages_leave_nothing_behind(nsqd: Daemon) -> None:
    async def story() -> None:
        inbox, writer = FinishingInbox(nsqd, "ch", max_in_flight=10), await writer_for(nsqd)
        await acknowledged(writer.mpub, [b"%d" % number for number in range(100)])
        await until(lambda: inbox.stats() and inbox.stats()["clients"][0]["finish_count"] == 100)
        stats = inbox.stats()
        assert (stats["depth"], stats["in_flight_count"], stats["deferred_count"]) == (0, 0, 0)
        assert (stats["message_count"], stats["requeue_count"], stats["timeout_count"]) == (100, 0, 0)
        assert len(inbox.messages) == 100

    run(story())


def test_dpub_message_waits_for_its_delay(nsqd: Daemon) -> None:
    async def story() -> None:
        inbox, writer = FinishingInbox(nsqd, "ch", max_in_flight=10), await writer_for(nsqd)
        await ready(inbox)
        published = time.monotonic()
        await acknowledged(writer.dpub, 700, b"later")
        await acknowledged(writer.pub, b"now")
        await inbox.received(2)
        assert sorted(inbox.bodies) == [b"later", b"now"]
        assert inbox.times[inbox.bodies.index(b"later")] - published >= 0.7

    run(story())


def test_requeued_message_comes_back_after_its_delay(nsqd: Daemon) -> None:
    async def story() -> None:
        inbox, writer = Inbox(nsqd, "ch", max_in_flight=10), await writer_for(nsqd)
        await acknowledged(writer.pub, b"again")
        await inbox.received(1)
        requeued = time.monotonic()
        inbox.messages[0].requeue(time_ms=700, backoff=False)
        await inbox.received(2)
        first, second = inbox.messages
        assert inbox.times[1] - requeued >= 0.7
        assert (second.id, second.body, second.timestamp) == (first.id, first.body, first.timestamp)
        assert (first.attempts, second.attempts) == (1, 2)
        assert inbox.stats()["requeue_count"] == 1

    run(story())


def test_message_without_response_comes_again_after_its_timeout(nsqd: Daemon) -> None:
    async def story() -> None:
        inbox, writer = Inbox(nsqd, "ch", max_in_flight=10, msg_timeout=1), await writer_for(nsqd)
        published = time.monotonic()
        await acknowledged(writer.pub, b"again")
        await inbox.received(2)
        assert inbox.times[1] - published >= 1.0
        assert inbox.messages[1].attempts == 2
        assert inbox.stats()["timeout_count"] >= 1

    run(story())


def test_touched_message_outlives_its_timeout(nsqd: Daemon) -> None:
    async def story() -> None:
        inbox, writer = Inbox(nsqd, "ch", max_in_flight=10, msg_timeout=5), await writer_for(nsqd)
        await acknowledged(writer.pub, b"slow")
        await inbox.received(1)
        while time.monotonic() < inbox.times[0] + 6:
            await asyncio.sleep(0.2)
            inbox.messages[0].touch()
        inbox.messages[0].finish()
        await until(lambda: inbox.stats()["clients"][0]["finish_count"] == 1)
        assert inbox.stats()["timeout_count"] == 0
        assert len(inbox.messages) == 1

    run(story())


def test_reader_in_backoff_gets_nothing_until_it_asks_again(nsqd: Daemon) -> None:
    async def story() -> None:
        # At a failure pynsq sends RDY 0, after a bit over a second RDY 1, and at success what it was before.
        inbox, writer = Inbox(nsqd, "ch", max_in_flight=5, max_backoff_duration=40), await writer_for(nsqd)
        await acknowledged(writer.pub, b"bad")
        await inbox.received(1)
        await until(lambda: inbox.stats()["clients"][0]["ready_count"] == 5)
        inbox.messages[0].requeue(time_ms=0)
        failed = time.monotonic()
        await until(lambda: inbox.stats()["clients"][0]["ready_count"] == 0)
        await acknowledged(writer.mpub, [b"%d" % number for number in range(20)])
        await inbox.received(2)
        assert inbox.times[1] - failed > 1
        assert inbox.stats()["clients"][0]["ready_count"] == 1
        assert inbox.stats()["in_flight_count"] == 1
        inbox.messages[1].finish()
        await inbox.received(2 + 5)
        assert inbox.stats()["clients"][0]["ready_count"] == 5

    run(story())


def test_two_readers_of_a_channel_share_its_messages(nsqd: Daemon) -> None:
    async def story() -> None:
        inboxes = [FinishingInbox(nsqd, "ch", max_in_flight=10) for _ in range(2)]
        writer = await writer_for(nsqd)
        await ready(inboxes[0], readers=2)
        published = [b"%d" % number for number in range(400)]
        for start in range(0, len(published), 20):
            await acknowledged(writer.mpub, published[start : start + 20])
        await until(lambda: sum(len(inbox.messages) for inbox in inboxes) >= len(published))
        assert sorted(inboxes[0].bodies + inboxes[1].bodies) == sorted(published)
        assert all(inbox.bodies for inbox in inboxes)

    run(story())


def test_every_channel_gets_every_message(nsqd: Daemon) -> None:
    async def story() -> None:
        inboxes = [FinishingInbox(nsqd, channel, max_in_flight=10) for channel in ("one", "two")]
        writer = await writer_for(nsqd)
        for inbox in inboxes:
            await ready(inbox)
        published = [b"%d" % number for number in range(400)]
        await acknowledged(writer.mpub, published)
        for inbox in inboxes:
            await inbox.received(len(published))
            assert sorted(inbox.bodies) == sorted(published)

    run(story())
