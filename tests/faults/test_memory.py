"""A backlog does not cost memory: beyond mem-queue-size it is on disk (contrib/docs/memory.md).

`make bench-memory` measures the same with more and larger messages, the real nsqd beside it.
"""

from collections.abc import Callable

import pytest

from benchmarks.memory import MB, MEM_QUEUE_SIZE, bound, fill_and_drain
from kit.daemons import Daemon


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "body_size, count, mem_queue_size, limit",
    [
        pytest.param(1000, 2_000_000, MEM_QUEUE_SIZE, 200 * MB, id="2 GB of 1 kB messages"),
        pytest.param(100_000, 6_000, 500, bound(100_000, 500), id="600 MB of 100 kB messages"),
    ],
)
def test_memory_stays_bounded_while_a_backlog_is_filled_and_drained(
    gnsqd_factory: Callable[..., Daemon], body_size: int, count: int, mem_queue_size: int, limit: int
) -> None:
    peaks = fill_and_drain(gnsqd_factory(f"--mem-queue-size={mem_queue_size}"), body_size, count)
    assert body_size * count > 2 * limit, "whoever kept it in memory would not be found out"
    assert max(peaks.filled, peaks.drained) < limit, peaks
