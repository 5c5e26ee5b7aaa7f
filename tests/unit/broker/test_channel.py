"""A channel: what is queued, in flight and deferred; memory and disk; who is woken (NSQD-COMPAT 3)."""

import errno
import os
from collections.abc import Callable
from time import monotonic_ns

import pytest

from gnsqd.broker.channel import MAX_TAKE, MAX_TAKE_BYTES, Channel
from gnsqd.errors import BrokerError, StorageError
from gnsqd.queues.message import Message
from gnsqd.queues.queue import Left
from unit.broker.fakes import MINUTE, SECOND, FakeConsumer, Fakes, backend_of, bodies_of, replace_writes

Build = Callable[..., Fakes]


def take(channel: Channel, consumer: FakeConsumer, window: int = 100, sample_rate: int = 0) -> list[Message]:
    return channel.take(consumer, window, MINUTE, sample_rate)


def counts(channel: Channel) -> tuple[int, int, int, int]:
    """(depth, of it on disk, in flight, deferred)."""
    return channel.depth, channel.backend_depth, channel.in_flight_count, channel.deferred_count


# Memory and disk


def test_messages_are_taken_in_order_and_are_in_flight_then(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes()
    channel = around.channel()
    messages = around.messages(b"0", b"1", b"2")
    channel.put_messages(messages)
    assert (channel.message_count, counts(channel)) == (3, (3, 0, 0, 0))
    assert take(channel, consumers[0], 2) == messages[:2]
    assert counts(channel) == (1, 0, 2, 0)
    channel.finish(1, messages[0].id)
    assert counts(channel) == (1, 0, 1, 0)


def test_what_exceeds_the_memory_queue_waits_on_disk(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes(mem_queue_size=2)
    channel = around.channel()
    channel.put_messages(around.messages(b"0"))
    channel.put_messages(around.messages(b"1", b"2", b"3"))
    assert counts(channel) == (4, 2, 0, 0)
    assert list(around.data_path.glob("t:c.diskqueue.000000.dat"))
    seen: list[bytes] = []
    while batch := take(channel, consumers[0]):
        seen += bodies_of(batch)
    assert sorted(seen) == [b"0", b"1", b"2", b"3"]
    assert counts(channel) == (0, 0, 4, 0)


def test_memory_and_disk_take_turns(fakes: Build, consumers: list[FakeConsumer]) -> None:
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


def test_without_a_memory_queue_all_goes_through_the_disk_and_keeps_its_attempts(
    fakes: Build, consumers: list[FakeConsumer]
) -> None:
    around = fakes(mem_queue_size=0)
    channel = around.channel()
    channel.put_messages(around.messages(b"x"))
    assert counts(channel) == (1, 1, 0, 0)
    message = take(channel, consumers[0])[0]
    message.next_delivery()
    channel.requeue(1, message.id, 0)
    assert counts(channel) == (1, 1, 0, 0)
    again = take(channel, consumers[0])[0]
    assert (again.id, again.timestamp, again.body) == (message.id, message.timestamp, b"x")
    assert again.next_delivery()[16:18] == b"\x00\x02"


def test_ephemeral_channel_drops_what_exceeds_its_memory(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes(mem_queue_size=2)
    channel = around.channel("c#ephemeral")
    channel.put_messages(around.messages(b"0", b"1", b"2"))
    assert (channel.message_count, counts(channel)) == (3, (2, 0, 0, 0))
    assert bodies_of(take(channel, consumers[0])) == [b"0", b"1"]
    assert not list(around.data_path.iterdir())


def test_ephemeral_channel_without_memory_keeps_one_message_for_each_waiting_consumer(
    fakes: Build, consumers: list[FakeConsumer]
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
    fakes: Build, consumers: list[FakeConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    around = fakes(mem_queue_size=1)
    channel = around.channel()
    put_many = backend_of(channel).put_many

    def half(payloads: list[bytes]) -> None:
        put_many(payloads[:1])
        raise StorageError("no space left on device", written=1)

    with monkeypatch.context() as patch:
        replace_writes(patch, channel, half)
        channel.put_messages(around.messages(b"memory", b"disk", b"refused", b"refused too"))
        assert channel.queue.blocked
        assert counts(channel) == (4, 1, 0, 0)
        assert around.registry.health == "NOK - no space left on device"
        channel.queue.retry()
        assert channel.queue.blocked
    assert not channel.process_in_flight(monotonic_ns())
    assert not channel.process_deferred(monotonic_ns())
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


# Sharing


def test_consumer_takes_no_more_than_its_window_nor_than_the_cap(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes()
    channel = around.channel()
    channel.put_messages(around.messages(*[b"x"] * 2 * MAX_TAKE))
    assert len(take(channel, consumers[0], 3)) == 3
    assert len(take(channel, consumers[0], 10_000)) == MAX_TAKE
    channel.empty()
    channel.put_messages(around.messages(*[b"x" * (MAX_TAKE_BYTES // 4)] * 10))
    assert len(take(channel, consumers[0])) == 4


def test_consumers_that_wait_are_woken_in_order_one_for_each_message(
    fakes: Build, consumers: list[FakeConsumer]
) -> None:
    around = fakes()
    channel = around.channel()
    for consumer in consumers:
        channel.add_client(consumer)
        assert take(channel, consumer) == []
    channel.put_messages(around.messages(b"0", b"1"))
    assert [consumer.woken for consumer in consumers] == [1, 1, 0]
    channel.put_messages(around.messages(b"2"))
    assert [consumer.woken for consumer in consumers] == [1, 1, 1]


def test_no_more_consumers_are_woken_while_those_that_were_have_not_come(
    fakes: Build, consumers: list[FakeConsumer]
) -> None:
    around = fakes()
    channel = around.channel()
    for consumer in consumers:
        take(channel, consumer)
    channel.put_messages(around.messages(b"0", b"1"))
    assert len(take(channel, consumers[0], 1)) == 1
    assert [consumer.woken for consumer in consumers] == [1, 1, 0]
    channel.stop_waiting(consumers[1])
    assert [consumer.woken for consumer in consumers] == [1, 1, 1]


def test_consumer_that_was_not_woken_leaves_a_message_for_each_that_was(
    fakes: Build, consumers: list[FakeConsumer]
) -> None:
    around = fakes()
    channel = around.channel()
    for consumer in consumers[:2]:
        assert take(channel, consumer) == []
    messages = around.messages(b"0", b"1", b"2")
    channel.put_messages(messages[:2])
    assert take(channel, consumers[2]) == []
    channel.stop_waiting(consumers[0])
    assert [consumer.woken for consumer in consumers] == [1, 1, 1]
    channel.put_messages(messages[2:])
    assert take(channel, consumers[0]) == messages[:1]
    assert take(channel, consumers[0]) == []
    assert [take(channel, consumer, 1) for consumer in consumers[1:]] == [messages[1:2], messages[2:]]


@pytest.mark.parametrize("how", ["time-out", "REQ"])
def test_consumer_that_gives_a_message_back_goes_to_the_end_of_the_line(
    fakes: Build, consumers: list[FakeConsumer], how: str
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
        channel.process_in_flight(monotonic_ns() + MINUTE)
    assert [consumer.woken for consumer in consumers] == [0, 1, 0]
    channel.put_messages(around.messages(b"y", b"z"))
    assert [consumer.woken for consumer in consumers] == [1, 1, 1]


def test_consumers_that_wait_share_what_comes_equally(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes()
    channel = around.channel()
    for consumer in consumers[1:]:
        take(channel, consumer)
    channel.pause()  # so that nobody is woken, and both still wait
    channel.put_messages(around.messages(*[b"x"] * 9))
    assert len(take(channel, consumers[0])) == 3


def test_consumers_that_were_woken_together_share_what_came(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes()
    channel = around.channel()
    for consumer in consumers:
        take(channel, consumer)
    channel.put_messages(around.messages(*[b"x"] * 9))
    assert [len(take(channel, consumer)) for consumer in consumers] == [3, 3, 3]


def test_what_is_promised_to_others_is_not_there_for_a_consumer_that_was_not_woken(
    fakes: Build, consumers: list[FakeConsumer]
) -> None:
    around = fakes()
    channel = around.channel()
    take(channel, consumers[0])
    channel.put_messages(around.messages(b"x"))
    assert not channel.has_more()
    assert take(channel, consumers[1]) == []
    channel.put_messages(around.messages(b"y", b"z"))
    assert channel.has_more()
    assert [len(take(channel, consumer, 1)) for consumer in consumers[:2]] == [1, 1]


def test_woken_consumer_that_stops_passes_its_turn_on(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes()
    channel = around.channel()
    for consumer in consumers[:2]:
        channel.add_client(consumer)
        take(channel, consumer)
    channel.put_messages(around.messages(b"x"))
    assert [consumer.woken for consumer in consumers[:2]] == [1, 0]
    channel.stop_waiting(consumers[0])
    assert consumers[1].woken == 1


def test_consumer_that_left_is_not_woken(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes()
    channel = around.channel()
    for consumer in consumers[:2]:
        channel.add_client(consumer)
        take(channel, consumer)
    channel.remove_client(consumers[0])
    channel.put_messages(around.messages(b"x"))
    assert [consumer.woken for consumer in consumers[:2]] == [0, 1]


def test_consumer_that_was_given_nothing_of_a_sample_is_woken_for_what_comes_next(
    fakes: Build, consumers: list[FakeConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnsqd.broker.channel.random", lambda: 0.999)
    around = fakes()
    channel = around.channel()
    channel.add_client(consumers[0])
    channel.put_messages(around.messages(b"left out"))
    while channel.depth:
        assert take(channel, consumers[0], sample_rate=50) == []
    channel.put_messages(around.messages(b"next"))
    assert consumers[0].woken == 1


def test_sample_rate_is_a_percentage(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes()
    channel = around.channel()
    channel.put_messages(around.messages(*[b"x"] * 10_000))
    while channel.depth:
        take(channel, consumers[0], sample_rate=30)
    assert 2700 < channel.in_flight_count < 3300  # six deviations and more
    assert counts(channel)[0] == 0


def test_consumers_are_limited_by_max_channel_consumers(fakes: Build, consumers: list[FakeConsumer]) -> None:
    channel = fakes(max_channel_consumers=2).channel()
    channel.add_client(consumers[0])
    channel.add_client(consumers[1])
    with pytest.raises(BrokerError, match="^consumers for t:c exceeds limit of 2$"):
        channel.add_client(consumers[2])
    channel.remove_client(consumers[0])
    channel.add_client(consumers[2])
    assert set(channel.clients) == {2, 3}


# Time-outs, REQ, TOUCH, delays


def test_timed_out_message_goes_back_and_its_consumer_is_notified(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes()
    channel = around.channel()
    for consumer in consumers[:2]:
        channel.add_client(consumer)
    channel.put_messages(around.messages(b"0", b"1"))
    before = monotonic_ns()
    taken = channel.take(consumers[0], 10, SECOND, 0)
    assert take(channel, consumers[1]) == []
    assert not channel.process_in_flight(before + SECOND - 1)
    assert channel.process_in_flight(monotonic_ns() + SECOND)
    assert (channel.timeout_count, channel.requeue_count, counts(channel)) == (2, 0, (2, 0, 0, 0))
    assert (consumers[0].timed_out, consumers[1].timed_out) == (2, 0)
    assert consumers[1].woken == 1
    with pytest.raises(BrokerError, match="^ID not in flight$"):
        channel.finish(1, taken[0].id)


def test_message_of_a_consumer_that_left_stays_in_flight_until_it_times_out(
    fakes: Build, consumers: list[FakeConsumer]
) -> None:
    around = fakes()
    channel = around.channel()
    channel.add_client(consumers[0])
    channel.put_messages(around.messages(b"x"))
    take(channel, consumers[0])
    channel.remove_client(consumers[0])
    assert counts(channel) == (0, 0, 1, 0)
    channel.process_in_flight(monotonic_ns() + MINUTE)
    assert (counts(channel), consumers[0].timed_out) == ((1, 0, 0, 0), 0)


def test_many_in_flight_are_all_gone_after_their_time(fakes: Build, consumers: list[FakeConsumer]) -> None:
    """Item 32 of NSQD-COMPAT 10."""
    around = fakes()
    channel = around.channel()
    channel.put_messages(around.messages(*[b"x"] * 250))
    for timeout in (SECOND, 2 * SECOND):
        channel.take(consumers[0], 125, timeout, 0)
    assert counts(channel) == (0, 0, 250, 0)
    channel.process_in_flight(monotonic_ns() + 2 * SECOND)
    assert (counts(channel), channel.timeout_count) == ((250, 0, 0, 0), 250)


def test_requeue_puts_back_at_once_or_after_its_delay(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes()
    channel = around.channel()
    channel.put_messages(around.messages(b"0", b"1"))
    first, second = take(channel, consumers[0])
    channel.requeue(1, first.id, 0)
    before = monotonic_ns()
    channel.requeue(1, second.id, SECOND)
    assert (channel.requeue_count, counts(channel)) == (2, (1, 0, 0, 1))
    assert not channel.process_deferred(before + SECOND - 1)
    assert channel.process_deferred(monotonic_ns() + SECOND)
    assert (channel.timeout_count, channel.message_count, counts(channel)) == (0, 2, (2, 0, 0, 0))
    for consumer, id in ((1, first.id), (2, second.id)):
        with pytest.raises(BrokerError, match="^ID not in flight$"):
            channel.requeue(consumer, id, 0)


def test_deferred_messages_count_at_once_and_queue_when_due(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes()
    channel = around.channel()
    take(channel, consumers[0])
    before = monotonic_ns()
    channel.put_messages_deferred(around.messages(b"x", deferred=SECOND))
    assert (channel.message_count, counts(channel), consumers[0].woken) == (1, (0, 0, 0, 1), 0)
    assert not channel.process_deferred(before + SECOND - 1)
    channel.process_deferred(monotonic_ns() + SECOND)
    assert (channel.message_count, counts(channel), consumers[0].woken) == (1, (1, 0, 0, 0), 1)


def test_touch_never_extends_past_max_msg_timeout(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes(max_msg_timeout=3 * SECOND)
    channel = around.channel()
    channel.put_messages(around.messages(b"x"))
    before = monotonic_ns()
    message = channel.take(consumers[0], 1, SECOND, 0)[0]
    after = monotonic_ns()
    channel.touch(1, message.id, 2 * SECOND)
    assert not channel.process_in_flight(before + 2 * SECOND - 1)
    channel.touch(1, message.id, 60 * SECOND)
    assert not channel.process_in_flight(before + 3 * SECOND - 1)
    assert channel.process_in_flight(after + 3 * SECOND)


# Operators, and the end


def test_paused_channel_wakes_nobody_until_it_is_unpaused(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes()
    channel = around.channel()
    channel.add_client(consumers[0])
    take(channel, consumers[0])
    channel.pause()
    woken = consumers[0].woken
    channel.put_messages(around.messages(b"x"))
    assert (consumers[0].woken, channel.depth) == (woken, 1)
    channel.unpause()
    assert consumers[0].woken == woken + 1


def test_emptied_channel_drops_everything_and_notifies_its_consumers(
    fakes: Build, consumers: list[FakeConsumer]
) -> None:
    around = fakes(mem_queue_size=3)
    channel = around.channel()
    channel.add_client(consumers[0])
    channel.put_messages(around.messages(*[b"x"] * 10))
    channel.put_messages_deferred(around.messages(b"x", deferred=SECOND))
    taken = take(channel, consumers[0], 2)
    assert counts(channel) == (8, 7, 2, 1)
    channel.empty()
    assert counts(channel) == (0, 0, 0, 0)
    assert (channel.message_count, consumers[0].emptied_count) == (11, 1)
    with pytest.raises(BrokerError, match="^ID not in flight$"):
        channel.finish(1, taken[0].id)
    assert not channel.process_in_flight(monotonic_ns() + MINUTE)
    channel.put_messages(around.messages(b"new"))
    assert bodies_of(take(channel, consumers[0])) == [b"new"]


def test_closed_channel_leaves_everything_on_disk_as_it_was(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes(mem_queue_size=5)
    channel = around.channel()
    channel.add_client(consumers[0])
    channel.put_messages(around.messages(b"in flight", *[b"%d" % number for number in range(9)]))
    channel.put_messages_deferred(around.messages(b"deferred", deferred=MINUTE))
    take(channel, consumers[0], 1)[0].next_delivery()
    channel.close()
    assert consumers[0].closed
    with pytest.raises(BrokerError, match="^exiting$"):
        channel.add_client(consumers[1])
    assert "CHANNEL(c): flushing 4 memory 1 in-flight 1 deferred messages to backend" in around.log.getvalue()
    reopened = around.channel()
    assert counts(reopened) == (11, 11, 0, 0)
    seen = {message.body: message.attempts for message in take(reopened, consumers[0])}
    assert seen == {b"%d" % number: 0 for number in range(9)} | {b"in flight": 1}
    assert counts(reopened) == (0, 0, 10, 1)


# Due times


def test_delay_that_is_left_survives_the_disk(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes()
    channel = around.channel()
    channel.put_messages(around.messages(b"requeued", b"finished"))
    requeued, finished = take(channel, consumers[0])
    for message in (requeued, finished):
        message.next_delivery()
    channel.requeue(1, requeued.id, 2 * MINUTE)
    channel.finish(1, finished.id)
    channel.put_messages_deferred(around.messages(b"published", deferred=MINUTE))
    begin = monotonic_ns()
    channel.close()
    for _ in range(2):  # and once more from disk to disk
        channel = around.channel()
        assert take(channel, consumers[0]) == []
        assert counts(channel) == (0, 0, 0, 2)
        channel.close()
    channel = around.channel()
    take(channel, consumers[0])
    assert not channel.process_deferred(begin + 59 * SECOND)
    assert channel.process_deferred(monotonic_ns() + 61 * SECOND)
    published = take(channel, consumers[0])
    assert [(message.body, message.attempts) for message in published] == [(b"published", 0)]
    assert not channel.process_deferred(begin + 119 * SECOND)
    assert channel.process_deferred(monotonic_ns() + 121 * SECOND)
    assert [(message.body, message.attempts) for message in take(channel, consumers[0])] == [(b"requeued", 1)]
    assert counts(channel) == (0, 0, 2, 0)


def test_message_is_due_at_once_if_its_time_passed_on_disk(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes()
    channel = around.channel()
    channel.put_messages_deferred(around.messages(b"x", deferred=1))
    channel.close()
    assert bodies_of(take(around.channel(), consumers[0])) == [b"x"]


def test_message_that_was_delivered_meanwhile_is_not_held_back(fakes: Build, consumers: list[FakeConsumer]) -> None:
    """As when the real nsqd took over: it delivers at once, and counts an attempt of what it puts back."""
    around = fakes(mem_queue_size=0)
    channel = around.channel()
    channel.put_messages_deferred(around.messages(b"finished there", b"put back there", b"untouched", deferred=MINUTE))
    channel.close()
    files = list(around.data_path.glob("t:c.diskqueue.due_times.dat"))
    left_alone = files[0].read_bytes()

    files[0].unlink()
    elsewhere = around.channel()
    finished, put_back = take(elsewhere, consumers[0], 2)
    elsewhere.finish(1, finished.id)
    put_back.next_delivery()
    elsewhere.close()

    files[0].write_bytes(left_alone)
    channel = around.channel()
    assert bodies_of(take(channel, consumers[0])) == [b"put back there"]
    assert counts(channel) == (0, 0, 1, 1)


def test_delay_is_never_longer_than_the_longest_that_may_be_asked_for(
    fakes: Build, consumers: list[FakeConsumer]
) -> None:
    """The wall clock, which due times on disk go by, may have been set back."""
    around = fakes(max_req_timeout=MINUTE)
    channel = around.channel()
    channel.put_messages_deferred(around.messages(b"x", deferred=1000 * MINUTE))
    channel.close()
    channel = around.channel()
    assert take(channel, consumers[0]) == []
    assert channel.process_deferred(monotonic_ns() + MINUTE)


def test_consumer_goes_on_behind_messages_that_are_not_due(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes(mem_queue_size=0)
    channel = around.channel()
    channel.put_messages_deferred(around.messages(*[b"later"] * 2 * MAX_TAKE, deferred=MINUTE))
    channel.close()
    channel = around.channel()
    channel.put_messages(around.messages(b"now"))
    for woken in (1, 2):
        assert take(channel, consumers[0], 1000) == []
        assert consumers[0].woken == woken
    assert bodies_of(take(channel, consumers[0], 1000)) == [b"now"]
    assert channel.deferred_count == 2 * MAX_TAKE


def test_overflow_of_what_is_due_is_not_held_back_again(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes(mem_queue_size=0)
    channel = around.channel()
    channel.put_messages_deferred(around.messages(b"x", deferred=MINUTE))
    assert channel.process_deferred(monotonic_ns() + MINUTE)
    assert counts(channel) == (1, 1, 0, 0)
    assert bodies_of(take(channel, consumers[0])) == [b"x"]


def test_what_a_full_disk_takes_at_the_end_is_kept_and_the_rest_counted(
    fakes: Build, monkeypatch: pytest.MonkeyPatch, consumers: list[FakeConsumer]
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


def test_deleted_channel_leaves_no_files_and_closes_its_consumers(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes(mem_queue_size=0)
    channel = around.channel()
    channel.add_client(consumers[0])
    channel.put_messages(around.messages(b"x"))
    assert list(around.data_path.glob("t:c.diskqueue.*"))
    channel.delete()
    assert consumers[0].closed
    assert not list(around.data_path.iterdir())


@pytest.mark.parametrize("name, persist", [("c", True), ("c#ephemeral", False)])
def test_coming_and_going_is_notified_and_persisted_unless_ephemeral(fakes: Build, name: str, persist: bool) -> None:
    around = fakes()
    channel = around.channel(name)
    assert around.notified == [(channel, persist)]
    channel.delete()
    assert around.notified == [(channel, persist)] * 2


def test_last_client_of_an_ephemeral_channel_is_reported(fakes: Build, consumers: list[FakeConsumer]) -> None:
    around = fakes()
    left: list[Channel] = []
    for name in ("c", "c#ephemeral"):
        channel = around.channel(name, left.append)
        for consumer in consumers[:2]:
            channel.add_client(consumer)
        channel.remove_client(consumers[0])
        channel.remove_client(consumers[0])
        assert left == []
        channel.remove_client(consumers[1])
    assert [channel.name for channel in left] == ["c#ephemeral"]
