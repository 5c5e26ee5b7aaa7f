"""Messages in flight and deferred: by id, by owner, by deadline. The model is a plain dict, sorted when asked."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsqd.broker.in_flight import InFlight
from gnsqd.errors import BrokerError
from gnsqd.queues.message import Message, new_messages
from gnsqd.queues.queue import Deferred


def message(number: int) -> Message:
    return new_messages(b"", [b"%016x" % number], 0, [b""])[0]


def ids(messages: list[Message]) -> list[int]:
    return [int(message.id, 16) for message in messages]


def test_message_is_popped_by_its_owner_once() -> None:
    in_flight = InFlight()
    mine = message(1)
    assert in_flight.push([mine], 7, 100, 50) == [mine]
    assert (mine.client_id, mine.delivered_at) == (7, 100)
    with pytest.raises(BrokerError, match="^client does not own message$"):
        in_flight.pop(mine.id, 8)
    assert len(in_flight) == 1
    assert in_flight.pop(mine.id, 7) is mine
    with pytest.raises(BrokerError, match="^ID not in flight$"):
        in_flight.pop(mine.id, 7)
    assert (len(in_flight), list(in_flight)) == (0, [])


def test_due_messages_are_those_whose_deadline_has_come() -> None:
    in_flight = InFlight()
    for number, timeout in ((1, 50), (2, 50), (3, 10), (4, 90)):
        in_flight.push([message(number)], 7, 100 + number, timeout)
    assert ids(in_flight.pop_due(112, 1000)) == []
    assert ids(in_flight.pop_due(113, 1000)) == [3]
    assert ids(in_flight.pop_due(151, 1000)) == [1]
    assert sorted(ids(in_flight.pop_due(1000, 1000))) == [2, 4]
    assert len(in_flight) == 0


def test_touch_moves_the_deadline_up_to_the_limit_since_delivery() -> None:
    in_flight = InFlight()
    for number in (1, 2, 3):
        in_flight.push([message(number)], 7, 100, 50)
    in_flight.touch(b"%016x" % 1, 7, 180, 1000)
    in_flight.touch(b"%016x" % 2, 7, 5000, 300)  # 400 at most
    assert ids(in_flight.pop_due(160, 1000)) == [3]
    assert ids(in_flight.pop_due(179, 1000)) == []
    assert ids(in_flight.pop_due(180, 1000)) == [1]
    assert ids(in_flight.pop_due(399, 1000)) == []
    in_flight.touch(b"%016x" % 2, 7, 390, 300)  # a touch may also bring it nearer
    assert ids(in_flight.pop_due(390, 1000)) == [2]


def test_touch_needs_the_owner_and_a_message_in_flight() -> None:
    in_flight = InFlight()
    in_flight.push([message(1)], 7, 100, 50)
    with pytest.raises(BrokerError, match="^client does not own message$"):
        in_flight.touch(b"%016x" % 1, 8, 500, 1000)
    with pytest.raises(BrokerError, match="^ID not in flight$"):
        in_flight.touch(b"%016x" % 2, 7, 500, 1000)
    assert ids(in_flight.pop_due(150, 1000)) == [1]


def test_touched_message_that_comes_again_is_not_taken_for_the_old_one() -> None:
    in_flight = InFlight()
    mine = message(1)
    in_flight.push([mine], 7, 100, 50)
    in_flight.touch(mine.id, 7, 200, 1000)
    in_flight.pop(mine.id, 7)
    in_flight.push([mine], 8, 300, 50)
    assert ids(in_flight.pop_due(349, 1000)) == []
    in_flight.touch(mine.id, 8, 400, 1000)
    assert ids(in_flight.pop_due(399, 1000)) == []
    assert ids(in_flight.pop_due(400, 1000)) == [1]


@pytest.mark.parametrize("timeout", [50, 60])
@pytest.mark.parametrize("touched", [False, True])
def test_id_in_flight_already_is_not_pushed_again(timeout: int, touched: bool) -> None:
    in_flight = InFlight()
    in_flight.push([message(1)], 7, 100, 50)
    if touched:
        in_flight.touch(b"%016x" % 1, 7, 140, 1000)
    assert ids(in_flight.push([message(1), message(2), message(2)], 8, 110, timeout)) == [2]
    assert len(in_flight) == 2
    assert in_flight.pop(b"%016x" % 1, 7)
    assert in_flight.pop(b"%016x" % 2, 8)


def test_run_ends_before_the_first_that_the_client_does_not_have() -> None:
    in_flight = InFlight()
    in_flight.push([message(1), message(2)], 7, 100, 50)
    in_flight.push([message(3)], 8, 100, 50)
    in_flight.push([message(4)], 7, 100, 60)
    in_flight.touch(b"%016x" % 2, 7, 120, 1000)
    run = [b"%016x" % number for number in (4, 2, 3, 1)]
    assert ids(in_flight.pop_run(run, 7)) == [4, 2]
    assert sorted(ids(list(in_flight))) == [1, 3]
    assert ids(in_flight.pop_run([b"%016x" % 1, b"%016x" % 1], 7)) == [1]
    assert in_flight.pop_run([], 7) == []


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


steps = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "pop", "touch", "due"]),
        st.integers(0, 8),
        st.sampled_from([5, 10, 20]),
        st.integers(0, 4),
    ),
    max_size=60,
)


@given(steps)
def test_any_history_leaves_what_a_plain_dict_would(history: list[tuple[str, int, int, int]]) -> None:
    in_flight, model, now = InFlight(), dict[int, int](), 0
    for step, number, timeout, passed in history:
        now += passed
        id = b"%016x" % number
        if step == "push":
            assert bool(in_flight.push([message(number)], 7, now, timeout)) == (number not in model)
            model.setdefault(number, now + timeout)
        elif step == "due":
            expected = {each for each, deadline in model.items() if deadline <= now}
            assert set(ids(in_flight.pop_due(now, 1000))) == expected
            model = {each: deadline for each, deadline in model.items() if each not in expected}
        elif number not in model:
            with pytest.raises(BrokerError):
                in_flight.pop(id, 7)
        elif step == "pop":
            assert in_flight.pop(id, 7).id == id
            del model[number]
        else:
            in_flight.touch(id, 7, now + timeout, 1 << 40)
            model[number] = now + timeout
        assert len(in_flight) == len(model)
        assert sorted(ids(list(in_flight))) == sorted(model)


def test_deferred_messages_become_due_in_order() -> None:
    deferred = Deferred()
    for number, due in ((1, 300), (2, 100), (3, 200), (4, 100)):
        deferred.push(message(number), due)
    assert (len(deferred), sorted(ids(list(deferred)))) == (4, [1, 2, 3, 4])
    assert ids(deferred.pop_due(99, 1000)) == []
    assert ids(deferred.pop_due(200, 1000)) == [2, 4, 3]
    assert ids(deferred.pop_due(1000, 1000)) == [1]
    assert len(deferred) == 0


def test_deferred_message_takes_no_object_but_its_id() -> None:
    deferred = Deferred()
    messages = [message(number) for number in range(1000)]
    dues = list(range(1000, 2000))
    tracemalloc.start()
    try:
        for each, due in zip(messages, dues, strict=True):
            deferred.push(each, due)
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    here = [tracemalloc.Filter(True, name) for name in (__file__, "*/gnsqd/queues/*")]  # there may be other threads
    assert len(snapshot.filter_traces(here).traces) < 1.1 * len(messages)


def test_deferred_message_that_was_taken_out_is_not_due_any_more() -> None:
    deferred = Deferred()
    for number in range(3):
        deferred.push(message(number), 100)
    deferred.pop(message(1).id)
    deferred.push(message(1), 50)
    assert ids(deferred.pop_due(50, 1000)) == [1]
    assert ids(deferred.pop_due(1000, 1000)) == [0, 2]


def test_message_deferred_already_stays_as_it_is() -> None:
    deferred = Deferred()
    deferred.push(message(1), 100)
    deferred.push(message(1), 200)
    assert ids(deferred.pop_due(100, 1000)) == [1]
    assert ids(deferred.pop_due(1000, 1000)) == []
