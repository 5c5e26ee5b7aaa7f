"""Random sessions are answered by gnsqd as by the real nsqd; `make differential` plays more of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from model import differential


@pytest.mark.peer
@pytest.mark.parametrize("seed", range(1, 3), ids="seed-{}".format)
def test_random_sessions_are_answered_as_by_the_real_nsqd(seed: int, peer_binary: Callable[[str], Path]) -> None:
    outcome = differential.play(peer_binary("nsqd"), seed, 10_000)
    assert not outcome.differences, "\n\n".join(outcome.differences)
    assert sum(outcome.explained.values()) < outcome.steps / 500  # each ends its session
