"""Sets of runs of numbers, against Python's own sets."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gnsqd.storage.spans import Spans

bounds = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted)


def build(pairs: list[list[int]]) -> tuple[Spans, set[int]]:
    spans, numbers = Spans(), set()
    for start, end in pairs:
        spans.add(start, end)
        numbers |= set(range(start, end))
    return spans, numbers


def numbers_of(spans: Spans) -> set[int]:
    return {number for start, end in spans for number in range(start, end)}


@given(st.lists(bounds, max_size=12), st.lists(bounds, max_size=12), bounds)
def test_spans_hold_what_a_set_would(pairs: list[list[int]], others: list[list[int]], window: list[int]) -> None:
    spans, numbers = build(pairs)
    other, other_numbers = build(others)
    assert numbers_of(spans) == numbers
    runs = list(spans)
    assert all(end < start for (_, end), (start, _) in pairwise(runs)), "neighbours are one span"
    assert spans.count() == len(numbers)
    assert spans.floor == next(number for number in range(62) if number not in numbers)
    assert spans.ceiling == max(numbers, default=-1) + 1
    assert [number in spans for number in range(61)] == [number in numbers for number in range(61)]
    assert numbers_of(spans.gaps(*window)) == set(range(*window)) - numbers
    assert numbers_of(spans.without(other)) == numbers - other_numbers
    assert Spans.decode(spans.encode()) == spans == spans.copy()
    spans.update(other)
    assert numbers_of(spans) == numbers | other_numbers
