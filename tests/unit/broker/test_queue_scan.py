"""The queue scan: whom it looks at, when it goes on at once, how many workers it has (NSQD-COMPAT 3)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from gevent import sleep

from gnsqd.broker.channel import Channel
from gnsqd.broker.queue_scan import QueueScan
from unit.broker.fakes import MINUTE, SECOND, FakeConsumer, Fakes, eventually, settle

Build = Callable[..., Fakes]
MS = SECOND // 1000


@contextmanager
def scanning(around: Fakes) -> Iterator[QueueScan]:
    scan = QueueScan(around.registry, around.options, around.logger, around.spawn)
    loop = around.spawn("queueScanLoop", scan.queueScanLoop)
    try:
        yield scan
    finally:
        scan.stop()
        loop.join(5)
        assert loop.ready()


def in_flight(around: Fakes, channel: Channel, count: int, timeout: int = MS) -> None:
    """Let `count` messages of `channel` be in flight."""
    channel.put_messages(around.messages(*[b"x"] * count))
    taken = 0
    while taken < count:
        taken += len(channel.take(FakeConsumer(1), count, timeout, 0))


def test_timed_out_and_due_messages_go_back_to_their_queues(fakes: Build) -> None:
    around = fakes(queue_scan_interval=5 * MS)
    channel = around.registry.get_topic("t").get_channel("c")
    with scanning(around):
        in_flight(around, channel, 3)
        channel.put_messages_deferred(around.messages(b"later", deferred=20 * MS))
        assert (channel.depth, channel.in_flight_count, channel.deferred_count) == (0, 3, 1)
        eventually(lambda: channel.depth == 4)
        assert (channel.in_flight_count, channel.deferred_count, channel.timeout_count) == (0, 0, 3)


def test_message_that_is_due_needs_no_scan(fakes: Build) -> None:
    around = fakes(queue_scan_interval=3600 * SECOND)
    scan = QueueScan(around.registry, around.options, around.logger, around.spawn)
    around.environment = replace(around.environment, wake_at=scan.wake_at)
    around.registry.attach(around.environment)
    scan.start()
    try:
        channels = [around.registry.get_topic("t").get_channel(name) for name in "abc"]
        for number in range(200, 0, -1):  # each is due before the others, or at the same time
            for channel in channels[:2]:
                channel.put_messages_deferred(around.messages(b"x", deferred=number // 2 * MS))
        assert len(scan._alarm_heap) <= 3 * len(scan._alarms) + 64
        channels[2].put_messages_deferred(around.messages(b"x", deferred=5 * MS))
        channels[2].delete()
        eventually(lambda: [channel.depth for channel in channels[:2]] == [200, 200])
        assert not scan._alarms
        channels[0].put_messages_deferred(around.messages(b"later", deferred=MS))
        eventually(lambda: channels[0].depth == 201)
        queue = channels[0].queue
        queue.defer(around.messages(b"restored", deferred=MINUTE))
        made = Channel("t", "made", around.environment, queue, lambda channel: None, lambda: None)
        assert scan._alarms[id(made)][0] == queue.next_due
    finally:
        scan.stop()


def test_new_channel_is_scanned_from_the_first_tick(fakes: Build) -> None:
    """Corrected (NSQD-COMPAT 0.1, item 1): the real daemon's list of channels is up to 5 s old."""
    around = fakes(queue_scan_interval=5 * MS, queue_scan_refresh_interval=3600 * SECOND)
    around.registry.get_topic("t").get_channel("old")
    with scanning(around):
        sleep(0.02)
        channel = around.registry.get_topic("t").get_channel("new")
        in_flight(around, channel, 1)
        eventually(lambda: channel.depth == 1)


def test_scan_goes_on_at_once_while_more_than_a_quarter_had_something(fakes: Build) -> None:
    around = fakes(queue_scan_interval=500 * MS, queue_scan_selection_count=20)
    # With 40 channels and a selection of 4, chance alone ended the scan early in 6 % of runs.
    channels = [around.registry.get_topic("t").get_channel(f"c{number}") for number in range(200)]
    for channel in channels:
        in_flight(around, channel, 1)
    with scanning(around):
        eventually(lambda: any(channel.depth for channel in channels))
        settle()
        assert sum(channel.depth for channel in channels) > 60  # with one selection a tick it would take four ticks


def test_each_tick_looks_at_a_selection_only(fakes: Build) -> None:
    around = fakes(queue_scan_interval=30 * MS, queue_scan_selection_count=2, queue_scan_dirty_percent=1.0)
    channels = [around.registry.get_topic("t").get_channel(f"c{number}") for number in range(10)]
    for channel in channels:
        in_flight(around, channel, 1)
    with scanning(around):
        eventually(lambda: any(channel.depth for channel in channels))
        assert sum(channel.depth for channel in channels) == 2
        eventually(lambda: all(channel.depth for channel in channels))


def test_selection_count_of_0_scans_nothing(fakes: Build) -> None:
    around = fakes(queue_scan_interval=2 * MS, queue_scan_selection_count=0)
    channel = around.registry.get_topic("t").get_channel("c")
    in_flight(around, channel, 1)
    with scanning(around):
        sleep(0.05)
        assert channel.in_flight_count == 1


@pytest.mark.parametrize("channels, workers", [(0, 1), (1, 1), (7, 1), (8, 2), (15, 3), (16, 4), (100, 4)])
def test_a_quarter_of_the_channels_have_a_worker_between_one_and_the_maximum(
    fakes: Build, channels: int, workers: int
) -> None:
    around = fakes(queue_scan_interval=3600 * SECOND, queue_scan_worker_pool_max=4)
    for number in range(channels):
        around.registry.get_topic("t#ephemeral").get_channel(f"c{number}#ephemeral")
    with scanning(around) as scan:
        sleep(0)
        assert scan.pool_size == workers
        assert len([each for each in around.greenlets if each.name == "queueScanWorker"]) == workers


def test_pool_follows_the_number_of_channels_and_ends_with_the_scan(fakes: Build) -> None:
    around = fakes(queue_scan_interval=2 * MS, queue_scan_refresh_interval=4 * MS, queue_scan_worker_pool_max=4)
    topic = around.registry.get_topic("t")

    def workers() -> int:
        return len([each for each in around.greenlets if each.name == "queueScanWorker" and not each.ready()])

    with scanning(around):
        eventually(lambda: workers() == 1)
        for number in range(16):
            topic.get_channel(f"c{number}")
        eventually(lambda: workers() == 4)
        for number in range(16):
            topic.delete_existing_channel(f"c{number}")
        eventually(lambda: workers() == 1)
    eventually(lambda: workers() == 0)
    assert "QUEUESCAN: closing" in around.log.getvalue()


def test_channel_that_is_going_is_left_alone(fakes: Build) -> None:
    around = fakes(queue_scan_interval=2 * MS)
    channel = around.registry.get_topic("t").get_channel("c")
    in_flight(around, channel, 1)
    channel.exiting = True
    with scanning(around):
        sleep(0.03)
        assert (channel.in_flight_count, channel.depth) == (1, 0)
