"""The rate of a replay, by a clock that the test moves."""

import pytest

from gnsq_pipeline.replay import hold_rate


class MovedClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("rate", [0.5, 7, 1000, 25_000])
def test_rows_come_at_the_rate_in_steps_of_a_tenth_of_a_second(rate: float) -> None:
    clock = MovedClock()
    count = int(rate * 3) + 2
    handed = [(number, clock.now - 100) for number in hold_rate(range(count), rate, clock, clock.sleep)]
    assert [number for number, _ in handed] == list(range(count))
    assert all(number / rate - 0.1 - 1e-9 <= when <= number / rate + 1e-9 for number, when in handed)


def test_a_reader_that_is_slower_than_the_rate_is_not_held_up() -> None:
    clock = MovedClock()
    for _ in hold_rate(range(50), 1000, clock, lambda seconds: pytest.fail("waits")):
        clock.now += 0.01


def test_what_a_pause_left_is_not_made_up_for() -> None:
    clock = MovedClock()
    rows = hold_rate(range(100), 10, clock, clock.sleep)
    next(rows)
    clock.now += 5
    next(rows)
    again = clock.now
    for number, _ in enumerate(rows, 1):
        assert clock.now - again >= number / 10 - 1e-9
