"""Long work gives others their turn."""

from itertools import count

import gevent
import pytest

from gnsqd.hub import cooperative
from gnsqd.hub.cooperative import FREED_AT_ONCE, free


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
