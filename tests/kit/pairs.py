"""gnsqd and the real nsqd side by side, for tests that ask both the same and compare what they answer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kit.daemons import Instance, eventually, own_command


class Pair(NamedTuple):
    ours: Instance
    real: Instance


@contextmanager
def running_pair(directory: Path, nsqd: Path, *flags: str) -> Iterator[Pair]:
    """Runs both daemons with the same flags, each on a data path of its own below `directory`; `nsqd` is the real one.

    A traceback of ours, or an exit that is not clean, is an AssertionError when they stop.
    """
    with (
        Instance(own_command(), directory / "gnsqd", *flags) as ours,
        Instance([str(nsqd)], directory / "nsqd", *flags) as real,
    ):
        yield Pair(ours, real)
        assert "Traceback (most" not in ours.log(), ours.log()
        assert not ours.running or ours.terminate() == 0


def difference(found: Callable[[Instance], object], pair: Pair, what: object) -> object:
    """Returns None once the same is found at both: messages take a moment on their way into channels."""
    try:
        eventually(lambda: found(pair.ours) == found(pair.real), timeout=5)
    except AssertionError:
        return what, found(pair.ours), found(pair.real)
    return None
