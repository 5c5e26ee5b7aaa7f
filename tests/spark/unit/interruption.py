"""Stop, or do something else, at one call of one function."""

from collections.abc import Callable
from typing import Any

import pytest

from pyspark_nsq import files, read_task
from pyspark_nsq.spool import Chain
from pyspark_nsq.subscription import Subscription

# Every step of a task, from the first message that arrives to the last row.
STEPS = {
    "write": (files, "write_temporary"),
    "link": (files, "link"),
    "sync": (files, "sync_directory"),
    "create": (files._Bucket, "create"),
    "finish": (Subscription, "finish"),
    "confirm": (read_task._Task, "confirm"),
    "mark": (Chain, "confirm"),
    "end": (Chain, "end"),
    "deliver": (read_task, "rows_of"),
}

# Where a spool may be: for the fixture `location`, alone and with the steps there.
BOTH_PLACES = pytest.mark.parametrize("location", ["directory", "bucket"], indirect=True)
STEPS_AT = {
    "directory": [step for step in STEPS if step != "create"],
    "bucket": [step for step in STEPS if step not in ("write", "link", "sync")],
}
PLACES_AND_STEPS = [(place, step) for place, steps in STEPS_AT.items() for step in steps]


class Interruption:
    """Before or after the `number`th call of a step, counted from 1, does `action`, which may raise."""

    def __init__(
        self, patch: pytest.MonkeyPatch, step: str, when: str, number: int, action: Callable[[], None]
    ) -> None:
        self.happened = False
        self._calls = 0
        owner, name = STEPS[step]
        original = getattr(owner, name)

        def interrupted(*arguments: Any, **named: Any) -> Any:
            self._calls += 1
            mine = self._calls == number and not self.happened
            if mine and when == "before":
                self._happen(action)
            result = original(*arguments, **named)
            if mine and when == "after":
                self._happen(action)
            return result

        patch.setattr(owner, name, interrupted)

    def _happen(self, action: Callable[[], None]) -> None:
        self.happened = True
        action()
