"""Messages in flight and deferred: by id, by owner, by deadline. The model is a plain dict, sorted when asked."""

import tracemalloc
from random import Random
from sys import maxsize
from time import thread_time
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsqd.broker.in_flight import InFlight
from gnsqd.queues.deferred import Deferred
from gnsqd.queues.message import Message, new_messages
from gnsqd.shared.errors import BrokerError


def message(number: int) -> Message:
    return new_messages(number, 0, [b""])[0]


def fins(numbers: list[int]) -> bytes:
    return b"".join(b"FIN %016x\n" % number for number in numbers)


def ids(messages: list[Message]) -> list[int]:
    return [int(message.id, 16) for message in messages]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "pop", "run", "touch", "due", "abandon"]),
        st.integers(0, 8),  # the number of the message
        st.sampled_from([7, 7, 7, 8]),  # the client
        st.sampled_from([5, 10, 20]),  # the time-out
        st.integers(0, 4),  # what passed before
    ),
    max_size=60,
)
MAX_TIMEOUT = 12  # of TOUCH, since the delivery


class Expected(NamedTuple):
    client: int
    delivered: int
    deadline: int


@given(STEPS)
def test_any_history_leaves_what_a_plain_dict_would(history: list[tuple[str, int, int, int, int]]) -> None:
    in_flight, model, now = InFlight(), dict[int, Expected](), 0
    for step, number, client, timeout, passed in history:
        now += passed
        id = b"%016x" % number
        entry = model.get(number)
        refused = "ID not in flight" if entry is None else "client does not own message"
        if step == "push":
            several = [number, number + 1, number + 1]
            fresh = [each for each in (number, number + 1) if each not in model]
            assert ids(in_flight.push([message(each) for each in several], client, now, timeout)) == fresh
            model |= dict.fromkeys(fresh, Expected(client, now, now + timeout))
        elif step == "run":
            run = [number, number + 1, number + 2, number]
            mine = [each in model and model[each].client == client for each in run[:3]]
            expected = run[: [*mine, False].index(False)]
            assert ids(in_flight.pop_run(fins(run), client)) == expected
            model = {each: entry for each, entry in model.items() if each not in expected}
        elif step == "due":
            due = {each for each, entry in model.items() if entry.deadline <= now}
            first = ids(in_flight.pop_due(now, timeout // 5))
            assert len(first) == min(len(due), timeout // 5)
            assert {*first, *ids(in_flight.pop_due(now, 1000))} == due
            model = {each: entry for each, entry in model.items() if each not in due}
        elif step == "abandon":
            gone = {each for each, entry in model.items() if entry.client != client}
            assert set(ids(in_flight.pop_abandoned({client}))) == gone
            model = {each: entry for each, entry in model.items() if each not in gone}
        elif entry is None or entry.client != client:
            with pytest.raises(BrokerError, match=f"^{refused}$"):
                in_flight.pop(id, client)
            with pytest.raises(BrokerError, match=f"^{refused}$"):
                in_flight.touch(id, client, now + timeout, MAX_TIMEOUT)
        elif step == "pop":
            assert in_flight.pop(id, client).id == id
            del model[number]
        else:
            deadline = min(now + timeout, entry.delivered + MAX_TIMEOUT)
            assert in_flight.touch(id, client, now + timeout, MAX_TIMEOUT) == deadline
            model[number] = entry._replace(deadline=deadline)
        assert len(in_flight) == len(model)
        assert sorted(ids(list(in_flight))) == sorted(model)
        assert in_flight.next_due <= min((entry.deadline for entry in model.values()), default=maxsize)


def test_thousands_finished_in_any_order_leave_the_others_in_the_order_of_delivery() -> None:
    in_flight, model, random = InFlight(), list[int](), Random(1)
    for now, count in enumerate([100, 3000, 3000, 10, 100, 0, 1]):
        delivered = range(1000 * now, 1000 * now + count)
        fresh = [number for number in delivered if number not in model]
        assert ids(in_flight.push([message(number) for number in delivered], 7, now, 10)) == fresh
        model += fresh
        finished = random.sample(model, len(model) * 9 // 10 if count else len(model))
        assert ids(in_flight.pop_run(fins(finished), 7)) == finished
        model = [number for number in model if number not in finished]
        assert ids(list(in_flight)) == model
    assert in_flight.next_due == 16


def test_message_requeued_again_and_again_is_found_as_fast_among_thousands() -> None:
    def seconds(others: int) -> float:
        in_flight, again = InFlight(), message(others)
        in_flight.push([message(number) for number in range(others)], 7, 0, 10)
        began = thread_time()
        for _ in range(10_000):
            in_flight.push([again], 7, 0, 10)
            in_flight.pop(again.id, 7)
        return thread_time() - began

    assert seconds(2500) < 10 * seconds(1)


def test_message_touched_again_and_again_costs_no_more_memory_for_it() -> None:
    in_flight = InFlight()
    for number in range(3):
        in_flight.push([message(number)], 7, 0, 10)
    tracemalloc.start()
    for now in range(10_000):
        in_flight.touch(b"%016x" % (now % 3), 7, now + 10, 1 << 40)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 100_000  # 10,000 notes of a touch are about a megabyte
    assert sorted(ids(list(in_flight))) == [0, 1, 2]
    assert sorted(ids(in_flight.pop_due(20_000, 1000))) == [0, 1, 2]


def test_single_message_in_flight_takes_little_memory() -> None:
    tracemalloc.start()
    in_flight = InFlight()
    in_flight.push([message(1)], 7, 0, 10)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(in_flight) == 1
    assert taken < 1500  # bytes, with the message and `in_flight` itself


def test_deferred_message_takes_no_object_but_its_id() -> None:
    deferred = Deferred()
    messages = [message(number) for number in range(1000)]
    dues = list(range(1000, 2000))
    tracemalloc.start()
    try:
        for each, due in zip(messages, dues, strict=True):
            deferred.hold(each, due)
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    here = [tracemalloc.Filter(True, name) for name in (__file__, "*/gnsqd/queues/*")]  # there may be other threads
    assert len(snapshot.filter_traces(here).traces) < 1.1 * len(messages)


def test_deferred_message_is_due_once_when_it_was_first_to_be() -> None:
    deferred = Deferred()
    for number, due in ((1, 300), (2, 100), (3, 200), (4, 100)):
        assert deferred.hold(message(number), due)
    assert not deferred.hold(message(1), 100)
    assert (len(deferred), sorted(ids(list(deferred)))) == (4, [1, 2, 3, 4])
    assert ids(deferred.take_due(99, 1000)) == []
    assert ids(deferred.take_due(200, 1000)) == [2, 4, 3]
    deferred.hold(message(5), 250)
    deferred.cancel(300, next(each for each in deferred if each.id == message(1).id))
    assert deferred.hold(message(1), 350)
    assert ids(deferred.take_due(300, 1000)) == [5]
    assert ids(deferred.take_due(1000, 1000)) == [1]
    assert len(deferred) == 0
