"""Long work gives others their turn."""

from itertools import count, pairwise

import gevent
import pytest

from gnsqd.hub import cooperative
from gnsqd.hub.cooperative import FREED_AT_ONCE, free, stand_in_line, yield_turn


def test_many_objects_are_freed_in_steps_and_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = count()
    sizes: list[int] = []
    objects = [object() for _ in range(1000)]
    monkeypatch.setattr(cooperative, "perf_counter", lambda: next(seconds))  # so each chance to give a turn is taken
    monkeypatch.setattr(cooperative, "yield_turn", lambda: sizes.append(len(objects)))
    free(objects.pop, len(objects))
    assert len(objects) == 1000
    gevent.sleep(0)
    assert sizes == [*reversed(range(1000))]
    few = [object()] * FREED_AT_ONCE
    free(few.pop, len(few))
    gevent.sleep(0)
    assert len(few) == FREED_AT_ONCE  # they go with the container


def test_others_run_between_any_two_greenlets_that_stand_in_line() -> None:
    events: list[str] = []

    def work(name: str) -> None:
        for _ in range(3):
            stand_in_line()
            events.append(name)

    def run() -> None:
        while True:
            yield_turn()
            events.append("")

    other = gevent.spawn(run)
    workers = [gevent.spawn(work, str(number)) for number in range(5)]
    gevent.sleep(0)
    workers.pop(2).kill()
    gevent.joinall(workers, raise_error=True)
    other.kill()
    assert [event for event in events if event] == [*"0134"] * 3
    assert all(not before or not after for before, after in pairwise(events)), events
