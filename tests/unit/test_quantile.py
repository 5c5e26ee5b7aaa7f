"""Quantiles of latencies: the error bound against sorted data, merging, memory, and the rolling window."""

import random
from collections.abc import Callable
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsqd import quantile
from gnsqd.quantile import LatencyFigures, Quantile, Sketch

SECOND = 1_000_000_000
QUANTILES = (1.0, 0.999, 0.99, 0.95, 0.75, 0.5, 0.25, 0.01)


def sketch_of(samples: list[int]) -> Sketch:
    sketch = Sketch()
    for sample in samples:
        sketch.insert(sample)
    return sketch


def holds_the_bound(answer: int, samples: list[int], q: float) -> bool:
    exact = sorted(samples)[ceil(q * len(samples)) - 1]
    return abs(answer - exact) <= 0.01 * exact * (1 + 1e-9) + 0.5


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1), st.floats(0, 1, exclude_min=True))
def test_any_quantile_of_any_samples_is_within_one_percent(samples: list[int], q: float) -> None:
    (answer,) = sketch_of(samples).query([q])
    assert holds_the_bound(answer, samples, q)


DRAWS: dict[str, Callable[[random.Random], float]] = {
    "uniform": lambda source: source.randrange(1, SECOND),
    "exponential": lambda source: source.expovariate(1 / 3_000_000),
    "heavy tail": lambda source: source.paretovariate(1) * 1000,
    "two humps": lambda source: source.choice([200_000, 60 * SECOND]) * source.gauss(1, 0.05),
    "constant": lambda source: 300_501_030,
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_many_samples_of_a_distribution(draw: Callable[[random.Random], float]) -> None:
    source = random.Random(4)
    samples = [int(draw(source)) for _ in range(20_000)]
    answers = sketch_of(samples).query(QUANTILES)
    assert all(holds_the_bound(answer, samples, q) for answer, q in zip(answers, QUANTILES, strict=True))


def test_the_largest_sample_is_exact_and_no_quantile_exceeds_it() -> None:
    assert sketch_of([300_501_030]).query([0.5, 1.0]) == [300_501_030] * 2
    assert sketch_of([1_003, 7_654_321, 3_000_007]).query([1.0]) == [7_654_321]
    least = 7_576_244  # of its bucket
    assert sketch_of([least, least]).query([0.5, 1.0]) == [least, least]


def test_without_samples_every_quantile_is_0() -> None:
    assert Sketch().query([0.5, 1.0]) == [0, 0]


def test_a_negative_latency_counts_as_0() -> None:
    sketch = sketch_of([-5 * SECOND, -1, 0, SECOND])
    assert (sketch.count, sketch.query([0.5, 0.75, 1.0])) == (4, [0, 0, SECOND])


@given(st.lists(st.lists(st.integers(0, 2**63 - 1), max_size=20), max_size=5))
def test_a_merge_answers_like_one_sketch_of_all_samples(parts: list[list[int]]) -> None:
    merged = Sketch()
    for part in parts:
        merged.merge(sketch_of(part))
    whole = sketch_of([sample for part in parts for sample in part])
    assert (merged.count, merged.query(QUANTILES)) == (whole.count, whole.query(QUANTILES))


def test_memory_is_bounded_whatever_the_samples_are() -> None:
    sketch = Sketch()
    sample = 0.0
    while sample < 2**63 - 1024:
        sketch.insert(int(sample))
        sample = sample * 1.001 + 1
    assert sketch.count > 30_000
    assert len(sketch._buckets) <= 2185


# The window


class HeldClock:
    """Stands in for the monotonic clock, in ns."""

    now = 5 * SECOND

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HeldClock:
    clock = HeldClock()
    monkeypatch.setattr(quantile, "monotonic_ns", clock)
    return clock


WINDOW = 600 * SECOND


def shown(result: LatencyFigures) -> tuple[int, list[int]]:
    return result.count, [value for _, value in result.percentiles]


def test_figures_come_in_the_order_of_the_option(clock: HeldClock) -> None:
    stream = Quantile(WINDOW, [0.5, 1.0, 0.99, 0.5])
    for value in (40, 10, 30, 20):
        stream.insert(value)
    result = stream.merged([stream])
    assert (result.count, result.percentiles) == (4, ((0.5, 20), (1.0, 40), (0.99, 40), (0.5, 20)))


def test_a_sample_leaves_between_half_a_window_and_a_whole_one(clock: HeldClock) -> None:
    stream = Quantile(WINDOW, [1.0])
    clock.now += 299 * SECOND
    stream.insert(7)
    clock.now += 2 * SECOND  # in the second half window
    stream.insert(3)
    assert shown(stream.merged([stream])) == (2, [7])
    clock.now += 298 * SECOND
    assert stream.merged([stream]).count == 2
    clock.now += 1 * SECOND  # in the third
    assert shown(stream.merged([stream])) == (1, [3])
    clock.now += 1000 * WINDOW
    stream.insert(4)
    assert shown(stream.merged([stream])) == (1, [4])
    clock.now += WINDOW
    assert shown(stream.merged([stream])) == (0, [0])


def test_merged_streams_keep_their_own_windows(clock: HeldClock) -> None:
    early = Quantile(WINDOW, [1.0])
    clock.now += 200 * SECOND
    late = Quantile(WINDOW, [1.0])
    early.insert(7)
    late.insert(3)
    assert shown(late.merged([early, late])) == (2, [7])
    clock.now += 400 * SECOND
    assert shown(late.merged([early, late])) == (1, [3])
    assert late.merged([late]).count == 1
