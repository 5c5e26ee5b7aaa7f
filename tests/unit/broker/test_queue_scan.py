"""The queue scan: which channels it processes, and when; how many workers it has."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from gevent import sleep
from gevent.event import Event

from gnsqd.broker.channel import Channel
from gnsqd.broker.queue_scan import QueueScan
from gnsqd.storage.metadata import ChannelMetadata, TopicMetadata
from unit.broker.fakes import (
    MINUTE,
    SECOND,
    Build,
    FakeConsumer,
    Fakes,
    FaultyDiskQueue,
    bodies_of,
    disk_queue_of,
    eventually,
)

MS = SECOND // 1000


class HandedOver(deque[Channel]):
    """Notes which channels it hands to the workers."""

    def __init__(self) -> None:
        super().__init__()
        self.handed: list[str] = []

    def append(self, item: Channel) -> None:
        self.handed.append(item.name)
        super().append(item)


class Scan(QueueScan):
    def __init__(self, around: Fakes) -> None:
        super().__init__(around.options.queue_scan_worker_pool_max, around.logger, around.spawn)
        self._due: HandedOver = HandedOver()

    @property
    def handed(self) -> list[str]:
        return self._due.handed


@contextmanager
def scanning(around: Fakes) -> Iterator[Scan]:
    scan = Scan(around)
    around.environment = around.environment._replace(wake_at=scan.wake_at)
    around.registry.attach(around.environment)
    scan.start()
    try:
        yield scan
    finally:
        scan.stop()
        eventually(lambda: not workers(around))


def workers(around: Fakes) -> int:
    return len([each for each in around.greenlets if each.name == "queueScanWorker" and not each.ready()])


def in_flight(around: Fakes, channel: Channel, count: int, timeout: int = MS) -> list[bytes]:
    """Lets `count` messages of `channel` be in flight, and returns their ids."""
    channel.put_messages(around.messages(*[b"x"] * count))
    taken: list[bytes] = []
    while len(taken) < count:
        taken += [message.id for message in channel.take(FakeConsumer(1), count, timeout, 0)]
    return taken


def test_only_channels_with_a_message_that_is_due_are_processed(fakes: Build) -> None:
    around = fakes()
    with scanning(around) as scan:
        topic = around.registry.get_topic("t")
        idle = [topic.get_channel(f"idle{number}") for number in range(300)]
        for channel in idle[:100]:
            in_flight(around, channel, 1, MINUTE)
            channel.put_messages([], around.messages(b"later", deferred=MINUTE))
        timing_out, deferring = topic.get_channel("c"), topic.get_channel("d")
        in_flight(around, timing_out, 3, 30 * MS)
        deferring.put_messages([], around.messages(b"later", deferred=30 * MS))
        eventually(lambda: timing_out.depth == 3 and deferring.depth == 1)
        assert (len(timing_out.in_flight), timing_out.timeout_count, deferring.deferred_count) == (0, 3, 0)
        assert sorted(scan.handed) == ["c", "d"]


def test_every_time_out_is_noticed_whatever_came_before_it(fakes: Build) -> None:
    around = fakes()
    with scanning(around) as scan:
        channel = around.registry.get_topic("t").get_channel("c")
        first, *_ = in_flight(around, channel, 1, 20 * MS)
        channel.finish(1, first)
        in_flight(around, channel, 1, 40 * MS)  # the alarm is that of the first
        in_flight(around, channel, 1, MINUTE)
        touched, *_ = in_flight(around, channel, 1, MINUTE)
        eventually(lambda: channel.depth == 1)
        channel.touch(1, touched, 30 * MS)
        eventually(lambda: channel.depth == 2)
        channel.put_messages([], around.messages(b"x", deferred=20 * MS))
        in_flight(around, channel, 1, 10 * MS)
        eventually(lambda: channel.depth == 4)
        assert (len(channel.in_flight), channel.timeout_count) == (1, 3)
        channel.empty()
        in_flight(around, channel, 1, 10 * MS)
        eventually(lambda: channel.depth == 1)
        in_flight(around, channel, 2500, 10 * MS)  # more than one step moves
        eventually(lambda: channel.depth == 2501)
        assert list(scan._alarms) == []


def test_delays_that_are_found_on_disk_have_an_alarm(fakes: Build) -> None:
    before = fakes()
    topics = [TopicMetadata("t", False, [ChannelMetadata("c")])]
    before.registry.load(topics)
    channel = before.registry.topics["t"].channels["c"]
    channel.put_messages(before.messages(b"ready"))
    channel.put_messages([], before.messages(b"later", deferred=MINUTE))
    for options in ({}, {"durability": "process"}):  # read beside what is ready, and moved to a journal
        before.registry.close()
        before = around = fakes(**options)
        with scanning(around) as scan:
            around.registry.load(topics)
            channel = around.registry.topics["t"].channels["c"]
            if not options:
                assert bodies_of(channel.take(FakeConsumer(1), 10, 2 * MINUTE, 0)) == [b"ready"]
            assert channel.deferred_count == 1
            assert scan._alarms[id(channel)][0] == channel.deferred.next_due


def test_number_of_alarms_is_bounded(fakes: Build) -> None:
    around = fakes()
    with scanning(around) as scan:
        channels = [around.registry.get_topic("t").get_channel(name) for name in "abc"]
        for number in range(200, 0, -1):  # each is due before the others, or at the same time
            for channel in channels[:2]:
                channel.put_messages([], around.messages(b"x", deferred=number // 2 * MS))
        assert len(scan._heap) <= 3 * len(scan._alarms) + 64
        channels[2].put_messages([], around.messages(b"x", deferred=5 * MS))
        channels[2].delete()
        eventually(lambda: [channel.depth for channel in channels[:2]] == [200, 200])
        assert not scan._alarms
        assert "c" not in scan.handed
        deferred = channels[0].deferred
        deferred.defer(around.messages(b"restored", deferred=MINUTE))
        made = Channel("t", "made", around.environment, channels[0].queue, lambda channel: None, lambda: None)
        assert scan._alarms[id(made)][0] == deferred.next_due


@pytest.mark.parametrize("maximum", [0, 1, 3])
def test_workers_are_started_as_they_are_needed_up_to_the_maximum(
    fakes: Build, monkeypatch: pytest.MonkeyPatch, maximum: int
) -> None:
    around = fakes(queue_scan_worker_pool_max=maximum)
    with scanning(around):
        topic = around.registry.get_topic("t")
        channels = [topic.get_channel(f"c{number}") for number in range(5)]
        in_flight(around, channels[0], 1)
        eventually(lambda: channels[0].depth == 1)
        assert workers(around) == 1
        disk = Event()
        for channel in channels:
            disk_queue = FaultyDiskQueue(disk_queue_of(channel), disk_queue_of(channel).put_many)
            disk_queue.wait_synced = disk.wait  # type: ignore[attr-defined]
            monkeypatch.setattr(channel.queue.backend, "disk_queue", disk_queue)
            in_flight(around, channel, 1)
        expected = max(maximum, 1)
        eventually(lambda: sum(channel.timeout_count for channel in channels) == 1 + expected)
        sleep(0.03)
        assert (sum(channel.timeout_count for channel in channels), workers(around)) == (1 + expected, expected)
        disk.set()
        eventually(lambda: all(channel.depth for channel in channels))
    assert "QUEUESCAN: closing" in around.log.getvalue()


def test_channel_that_is_going_is_left_alone(fakes: Build) -> None:
    around = fakes()
    with scanning(around) as scan:
        channel = around.registry.get_topic("t").get_channel("c")
        in_flight(around, channel, 1)
        channel.exiting = True
        eventually(lambda: not scan._alarms)
        eventually(lambda: not scan._due)
        assert (len(channel.in_flight), channel.depth) == (1, 0)
