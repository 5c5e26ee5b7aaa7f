"""A channel: what is queued, in flight and deferred; memory and disk; who is woken (NSQD-COMPAT 3)."""

import errno
import os
from time import monotonic_ns

import pytest

from gnsqd.broker.channel import MAX_TAKE, MAX_TAKE_BYTES, Channel
from gnsqd.queues.backend import Left
from gnsqd.queues.message import Message
from gnsqd.shared.errors import StorageError
from unit.broker.fakes import MINUTE, Build, Consumers, FakeConsumer, Fakes, bodies_of, disk_queue_of, replace_writes


def take(channel: Channel, consumer: FakeConsumer, window: int = 100, sample_rate: int = 0) -> list[Message]:
    return channel.take(consumer, window, MINUTE, sample_rate)


def counts(channel: Channel) -> tuple[int, int, int, int]:
    """Returns depth, depth on disk, number in flight and number deferred."""
    return channel.depth, channel.queue.backend.count, len(channel.in_flight), channel.deferred_count


# Memory and disk


def test_memory_and_disk_take_turns(fakes: Build, consumers: Consumers) -> None:
    around = fakes(mem_queue_size=2)
    channel = around.channel()
    channel.put_messages(around.messages(*[b"old"] * 2, *[b"disk"] * 50))
    seen = []
    for _ in range(20):  # memory never runs empty
        message = take(channel, consumers[0], 1)[0]
        seen.append(message.body)
        if message.body != b"disk":
            channel.put_messages(around.messages(b"new"))
    assert 5 <= seen.count(b"disk") <= 15


def test_ephemeral_channel_without_memory_keeps_one_message_for_each_waiting_consumer(
    fakes: Build, consumers: Consumers
) -> None:
    around = fakes(mem_queue_size=0)
    channel = around.channel("c#ephemeral")
    channel.put_messages(around.messages(b"dropped"))
    for consumer in consumers[:2]:
        channel.add_client(consumer)
        assert take(channel, consumer) == []
    channel.put_messages(around.messages(b"0", b"1", b"2"))
    assert [bodies_of(take(channel, consumer, 1)) for consumer in consumers[:2]] == [[b"0"], [b"1"]]
    assert channel.depth == 0


def test_what_the_disk_refuses_stays_in_memory_until_it_takes_it(
    fakes: Build, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = fakes(mem_queue_size=1)
    channel = around.channel()
    assert channel.queue.has_room(1)
    put_many = disk_queue_of(channel).put_many

    def half(payloads: list[bytes]) -> None:
        put_many(payloads[:1])
        raise StorageError("no space left on device", written=1)

    with monkeypatch.context() as patch:
        replace_writes(patch, channel, half)
        channel.put_messages(around.messages(b"memory", b"disk", b"refused", b"refused too"))
        assert channel.queue.blocked
        assert not channel.queue.has_room(0)
        assert counts(channel) == (4, 1, 0, 0)
        assert around.registry.health == "NOK - no space left on device"
        channel.queue.retry()
        assert channel.queue.blocked
    channel.process_due(monotonic_ns())
    assert counts(channel) == (4, 2, 0, 0)
    assert channel.queue.blocked
    assert not around.registry.healthy
    channel.put_messages(around.messages(b"meanwhile"))
    assert channel.queue.blocked
    channel.queue.retry()
    assert not channel.queue.blocked
    assert counts(channel) == (5, 4, 0, 0)
    assert around.registry.health == "OK"
    seen: list[bytes] = []
    while batch := take(channel, consumers[0]):
        seen += bodies_of(batch)
    assert sorted(seen) == [b"disk", b"meanwhile", b"memory", b"refused", b"refused too"]


def test_emptied_channel_has_room_again_though_its_disk_refused(fakes: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    around = fakes(mem_queue_size=1)
    channel = around.channel()

    def refuse(payloads: list[bytes]) -> None:
        raise StorageError("no space left on device")

    replace_writes(monkeypatch, channel, refuse)
    channel.put_messages(around.messages(b"memory", b"refused"))
    assert channel.queue.blocked
    channel.empty()
    assert not channel.queue.blocked
    assert channel.queue.has_room(1)
    channel.put_messages(around.messages(b"new"))
    assert counts(channel) == (1, 0, 0, 0)


# Sharing


@pytest.fixture
def shared(fakes: Build, consumers: Consumers) -> tuple[Fakes, Channel]:
    around = fakes()
    channel = around.channel()
    for consumer in consumers:
        channel.add_client(consumer)
        assert take(channel, consumer) == []
    return around, channel


def woken(consumers: Consumers) -> list[int]:
    return [consumer.woken for consumer in consumers]


def test_consumer_takes_no_more_than_its_window_nor_than_the_cap(fakes: Build, consumers: Consumers) -> None:
    around = fakes()
    channel = around.channel()
    channel.put_messages(around.messages(*[b"x"] * 2 * MAX_TAKE))
    assert len(take(channel, consumers[0], 3)) == 3
    assert len(take(channel, consumers[0], 10_000)) == MAX_TAKE
    channel.empty()
    channel.put_messages(around.messages(*[b"x" * (MAX_TAKE_BYTES // 4)] * 10))
    assert len(take(channel, consumers[0])) == 4


def test_as_many_are_woken_as_there_are_messages_and_who_stops_passes_its_turn_on(
    shared: tuple[Fakes, Channel], consumers: Consumers
) -> None:
    around, channel = shared
    channel.put_messages(around.messages(b"0", b"1"))
    assert woken(consumers) == [1, 1, 0]
    assert len(take(channel, consumers[0], 1)) == 1
    assert woken(consumers) == [1, 1, 0]
    channel.stop_waiting(consumers[1])
    assert woken(consumers) == [1, 1, 1]


def test_consumer_that_left_is_not_woken(shared: tuple[Fakes, Channel], consumers: Consumers) -> None:
    around, channel = shared
    channel.remove_client(consumers[0])
    channel.put_messages(around.messages(b"x"))
    assert woken(consumers) == [0, 1, 0]


def test_consumer_that_was_not_woken_leaves_a_message_for_each_that_was(fakes: Build, consumers: Consumers) -> None:
    around = fakes()
    channel = around.channel()
    for consumer in consumers[:2]:
        assert take(channel, consumer) == []
    messages = around.messages(b"0", b"1", b"2")
    channel.put_messages(messages[:2])
    assert channel.waits(consumers[2])
    assert take(channel, consumers[2]) == []
    channel.stop_waiting(consumers[0])
    assert woken(consumers) == [1, 1, 1]
    channel.put_messages(messages[2:])
    assert not channel.waits(consumers[0])
    assert take(channel, consumers[0]) == messages[:1]
    assert take(channel, consumers[0]) == []
    assert [take(channel, consumer, 1) for consumer in consumers[1:]] == [messages[1:2], messages[2:]]


@pytest.mark.parametrize("how", ["time-out", "REQ"])
def test_consumer_that_gives_a_message_back_goes_to_the_end_of_the_line(
    fakes: Build, consumers: Consumers, how: str
) -> None:
    around = fakes()
    channel = around.channel()
    for consumer in consumers:
        channel.add_client(consumer)
    (message,) = around.messages(b"x")
    channel.put_messages([message])
    assert take(channel, consumers[0]) == [message]
    for consumer in consumers:
        assert take(channel, consumer) == []
    if how == "REQ":
        channel.requeue(1, message.id, 0)
    else:
        channel.process_due(monotonic_ns() + MINUTE)
    assert woken(consumers) == [0, 1, 0]
    channel.put_messages(around.messages(b"y", b"z"))
    assert woken(consumers) == [1, 1, 1]


@pytest.mark.parametrize("paused", [False, True])  # consumers that were woken, and some that still wait
def test_consumers_share_what_comes_equally(shared: tuple[Fakes, Channel], consumers: Consumers, paused: bool) -> None:
    around, channel = shared
    channel.pause(paused)
    before = woken(consumers)
    channel.put_messages(around.messages(*[b"x"] * 9))
    assert woken(consumers) == (before if paused else [count + 1 for count in before])
    assert [len(take(channel, consumer)) for consumer in consumers] == [3, 3, 3]


# Due times


def test_delay_is_never_longer_than_the_longest_that_may_be_asked_for(fakes: Build, consumers: Consumers) -> None:
    # The wall clock, which due times on disk go by, may have been set back.
    around = fakes(max_req_timeout=MINUTE)
    channel = around.channel()
    channel.put_messages([], around.messages(b"x", deferred=1000 * MINUTE))
    channel.close()
    channel = around.channel()
    assert take(channel, consumers[0]) == []
    assert channel.queue.release(monotonic_ns() + MINUTE, 1, 0) == 1


def test_consumer_goes_on_behind_messages_that_are_not_due(fakes: Build, consumers: Consumers) -> None:
    around = fakes(mem_queue_size=0)
    channel = around.channel()
    channel.put_messages([], around.messages(*[b"later"] * 2 * MAX_TAKE, deferred=MINUTE))
    channel.close()
    channel = around.channel()
    channel.put_messages(around.messages(b"now"))
    for woken in (1, 2):
        assert take(channel, consumers[0], 1000) == []
        assert consumers[0].woken == woken
    assert bodies_of(take(channel, consumers[0], 1000)) == [b"now"]
    assert channel.deferred_count == 2 * MAX_TAKE


def test_what_a_full_disk_takes_at_the_end_is_kept_and_the_rest_counted(
    fakes: Build, monkeypatch: pytest.MonkeyPatch, consumers: Consumers
) -> None:
    around = fakes()
    channel = around.channel()
    channel.put_messages(around.messages(b"fits", b"x" * 100, b"fits, too", b"y" * 100))
    with monkeypatch.context() as patch:
        pwrite = os.pwrite

        def small_only(descriptor: int, data: memoryview, pos: int) -> int:
            if len(data) > 100:  # a batch goes as far as it fits, then each by itself
                if len(data) < 200:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return pwrite(descriptor, data[:40], pos)
            return pwrite(descriptor, data, pos)

        patch.setattr(os, "pwrite", small_only)
        assert channel.close() == Left(lost=2)
    failed = f"{around.data_path}/t:c.diskqueue.000000.dat: no space left on device"
    assert f"ERROR: failed to write 2 messages to backend t:c - write {failed}" in around.log.getvalue()
    assert bodies_of(take(around.channel(), consumers[0])) == [b"fits", b"fits, too"]
