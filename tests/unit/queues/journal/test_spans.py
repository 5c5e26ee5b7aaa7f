"""Sets of runs of numbers, against Python's own sets."""

from collections.abc import Iterator
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsqd.shared.journal import spans as spans_module
from gnsqd.shared.journal.spans import MAX_BLOCK, Spans, encode_bounds

bounds = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted)


def build(pairs: list[list[int]]) -> tuple[Spans, set[int]]:
    spans, numbers = Spans(), set()
    for start, end in pairs:
        spans.add(start, end)
        numbers |= set(range(start, end))
    return spans, numbers


def numbers_of(spans: Spans) -> set[int]:
    return {number for start, end in spans for number in range(start, end)}


@pytest.fixture(params=[2, MAX_BLOCK], ids=["small blocks", "one block"], scope="module", autouse=True)
def block_size(request: pytest.FixtureRequest) -> Iterator[None]:
    spans_module.MAX_BLOCK = request.param
    yield
    spans_module.MAX_BLOCK = MAX_BLOCK


@given(st.lists(bounds, max_size=30), st.lists(bounds, max_size=12), bounds, st.integers(1, 5))
def test_spans_hold_what_a_set_would(
    pairs: list[list[int]], others: list[list[int]], window: list[int], limit: int
) -> None:
    spans, numbers = build(pairs)
    other, other_numbers = build(others)
    assert numbers_of(spans) == numbers
    runs = list(spans)
    assert all(end < start for (_, end), (start, _) in pairwise(runs)), "neighbours are one span"
    assert spans.count() == len(numbers)
    assert spans.floor == next(number for number in range(62) if number not in numbers)
    assert spans.ceiling == max(numbers, default=-1) + 1
    assert [number in spans for number in range(61)] == [number in numbers for number in range(61)]
    assert spans.missing(window[0]) == next(number for number in range(window[0], 62) if number not in numbers)
    assert numbers_of(spans.gaps(*window)) == set(range(*window)) - numbers
    assert numbers_of(spans.without(other)) == numbers - other_numbers
    assert bool(spans) == bool(numbers)
    assert len(spans) == len(runs)
    stop = spans.stretch(window[0], limit)
    assert stop > window[0]
    assert sum(end > window[0] and start < stop for start, end in runs) <= limit
    assert stop > 1000 or sum(end > window[0] and start <= stop for start, end in runs) >= 1
    assert list(Spans.decode(spans.encode())) == list(spans) == list(spans.copy())
    assert numbers_of(spans.between(*window)) == numbers & set(range(*window))
    assert spans.begin == min(numbers, default=0)
    spans.update(other)
    assert numbers_of(spans) == numbers | other_numbers
    for start, end in pairs[::2]:
        spans.remove(start, end)
        other_numbers -= set(range(start, end))
        numbers -= set(range(start, end))
        assert numbers_of(spans) == numbers | other_numbers
    spans.update(other)
    assert numbers_of(spans) == numbers | numbers_of(other)


def test_a_change_moves_no_more_than_a_block_of_scattered_spans() -> None:
    # One array of a million spans would move megabytes for each number that a consumer finishes.
    numbers = range(0, 8 * MAX_BLOCK, 2)
    spans = Spans.of(Random(0).sample(numbers, len(numbers)))
    other = Spans()
    for number in Random(0).sample(numbers, len(numbers)):
        other.add(number, number + 1)
    assert list(other) == list(spans)
    assert max(map(len, other._starts)) <= spans_module.MAX_BLOCK
    other.add(10, 7 * MAX_BLOCK - 1)
    assert list(other)[5] == (10, 7 * MAX_BLOCK - 1)
    assert len(other) == 5 + 1 + MAX_BLOCK // 2


def test_empty_spans_which_an_older_gnsqd_has_written_are_read() -> None:
    assert list(Spans.decode(encode_bounds([4, 4, 7, 9]))) == [(7, 9)]
