"""An attack, its size and its figures, and the daemon that it is made on."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

from benchmarks.row import write_topics
from kit.daemons import DEADLINE, Instance, free_port, last_flag

ATTEMPTS = 3
PAGE = "--admin-http-address={}"


class Setting(NamedTuple):
    """`scale` multiplies the sizes of all attacks; `beside` messages a second are published beside freezes; a ping may
    take `limit` ms longer than usual."""

    scale: float
    beside: int
    limit: float

    def scaled(self, size: int) -> int:
        return max(int(size * self.scale), 1)

    def seconds(self, seconds: float) -> float:
        """Scales a time in which something is measured or may settle."""
        return max(seconds * min(self.scale, 1.0), 0.1)


class Figure(NamedTuple):
    """A number with its limits, if it has any; the median of several attempts counts."""

    what: str
    unit: str
    values: Sequence[float]
    at_most: float = float("inf")
    at_least: float = float("-inf")


class Attack(NamedTuple):
    """`run` takes the daemon's command; `real` if the real nsqd can also be attacked so."""

    name: str
    run: Callable[[list[str], Setting], list[Figure]]
    real: bool = False


def attempts(measure: Callable[[], float], limit: float) -> list[float]:
    """Measures once if that is within the limit, else again: a disk that others keep busy can also stop a daemon."""
    values = [measure()]
    while values[0] > limit and len(values) < ATTEMPTS:
        values.append(measure())
    return values


@contextmanager
def running(command: list[str], *flags: str, topics: int = 0, channels: int = 1) -> Iterator[Instance]:
    """Runs a daemon with that many topics, called t0, t1 and so on, each with channels c0, c1 and so on. A `{}` in a
    flag becomes an address."""
    with tempfile.TemporaryDirectory(prefix="gnsqd-attacks-") as directory:
        addressed = [flag.format(f"127.0.0.1:{free_port()}") for flag in flags]
        daemon = Instance(command, Path(directory) / "data", "--max-heartbeat-interval=1h", *addressed)
        names = [f"t{number}" for number in range(topics)]
        write_topics(daemon.data_path, names, [f"c{number}" for number in range(channels)])
        try:
            yield daemon.start()
        finally:
            daemon.kill()


def page_of(daemon: Instance) -> str:
    """Returns the address of the page of a daemon with the flag PAGE."""
    return last_flag(daemon.flags, "admin-http-address")


def look_at_page(daemon: Instance, path: str, token: str = "") -> int:
    """Returns the status of the answer."""
    with closing(HTTPConnection(page_of(daemon), timeout=10 * DEADLINE)) as connection:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        response = connection.getresponse()
        response.read()
        return response.status
