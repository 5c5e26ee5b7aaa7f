"""What no client can see of readers of ranges."""

from itertools import pairwise
from typing import Any

import gevent

from gnsqd.hub.cooperative import yield_turn
from gnsqd.web.ranges import Ranges


def test_others_run_between_any_two_readers() -> None:
    nothing: Any = None
    ranges = Ranges(nothing, nothing)
    events: list[str] = []

    def read(name: str) -> None:
        for _ in range(3):
            ranges._stand_in_line()
            events.append(name)

    def run() -> None:
        while True:
            yield_turn()
            events.append("")

    other = gevent.spawn(run)
    readers = [gevent.spawn(read, str(number)) for number in range(5)]
    gevent.sleep(0)
    readers.pop(2).kill()
    gevent.joinall(readers, raise_error=True)
    other.kill()
    assert [event for event in events if event] == [*"0134"] * 3
    assert all(not before or not after for before, after in pairwise(events)), events
