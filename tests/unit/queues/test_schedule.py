"""The due times of messages that are held back as numbers, against a sorted list."""

from copy import deepcopy
from itertools import pairwise
from sys import getsizeof, maxsize

from hypothesis import given
from hypothesis import strategies as st

from gnsqd.queues import schedule
from gnsqd.queues.schedule import Schedule

TIMES = st.integers(0, 30)


@given(
    st.lists(
        st.tuples(TIMES, st.sampled_from(["push", "push", "push", "extend", "pop", "remove", "drop"])), max_size=200
    ),
    st.lists(TIMES, max_size=40),
    st.sampled_from([2, 3, 8]),
)
def test_schedule_is_a_list_sorted_by_time(steps: list[tuple[int, str]], begin: list[int], block: int) -> None:
    whole, schedule.MAX_BLOCK = schedule.MAX_BLOCK, block
    try:
        compare_with_a_list(steps, begin)
    finally:
        schedule.MAX_BLOCK = whole


def compare_with_a_list(steps: list[tuple[int, str]], begin: list[int]) -> None:
    tested = Schedule(begin, range(1000, 1000 + len(begin)))
    expected = sorted(zip(begin, range(1000, 1000 + len(begin)), strict=True))
    for number, (time, step) in enumerate(steps):
        if step == "push":
            tested.push(time, number)
            expected = sorted([*expected, (time, number)], key=lambda entry: entry[0])
        elif step == "extend":
            more = [(due, 10_000 + 4 * number + due % 4) for due in (time, time + 7, time + 2, time + 1)]
            tested.extend(*zip(*more, strict=True))
            expected = sorted([*expected, *more], key=lambda entry: entry[0])
        elif step == "pop":
            due = tested.pop_due(time, 3)
            count = min(sum(entry[0] <= time for entry in expected), 3)
            assert due == [entry[1] for entry in expected[:count]]
            del expected[:count]
        elif step == "drop":
            end = (number, 1000 + time, 10_000 + 2 * number)[time % 3]
            tested.drop_before(end)
            expected = [entry for entry in expected if entry[1] >= end]
        else:
            present = expected[time % len(expected)] if expected else (0, -1)
            for near in (present[0], 0, 99)[number % 3 :]:
                found = present[0] if present in expected else None
                assert tested.find(present[1], near) == tested.find(present[1], near, remove=True) == found
                expected = [entry for entry in expected if entry != present]
        copy = deepcopy(tested)
        assert list(tested) == expected == list(copy) == list(tested.from_due(0))
        assert list(tested.from_due(time)) == [entry for entry in expected if entry[0] >= time]
        assert tested.count_before(time) == sum(entry[0] < time for entry in expected)
        assert (len(tested), tested.first) == (len(expected), expected[0][0] if expected else maxsize)


def test_message_takes_about_twenty_bytes() -> None:
    count = 100_000
    times = [number * 7919 % count for number in range(count)]  # in no order
    tested = Schedule()
    for number, time in enumerate(times):
        tested.push(time, number)
    assert all(earlier <= later for earlier, later in pairwise(due for due, _ in tested))
    size = sum(map(getsizeof, [*tested._dues, *tested._numbers]))
    assert size / count < 26
    assert sum(map(getsizeof, [*(again := Schedule(times, range(count)))._dues, *again._numbers])) / count < 17
