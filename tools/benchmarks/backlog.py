"""Data paths with a backlog on disk, made once by each lane's own daemon and linked for every run that reads one."""

import shutil
from collections.abc import Callable
from pathlib import Path

from benchmarks.lanes import BenchmarkError, Lane
from kit.daemons import Daemon


class Backlogs:
    """Owns one data path per lane below `directory`. `fill` puts the messages into a running daemon."""

    def __init__(self, directory: Path, fill: Callable[[Daemon], None]) -> None:
        self._directory = directory
        self._fill = fill

    def of(self, lane: Lane) -> Path:
        """The data path as the lane's daemon leaves it at a clean exit, with every message in the channel's disk queue.

        Its files may be linked, but not changed.
        """
        path = self._directory / lane.name
        if not path.exists():
            with lane.running("--mem-queue-size=0") as daemon:
                self._fill(daemon)
                if (code := daemon.terminate()) != 0:
                    raise BenchmarkError(f"{lane.name} exited with {code}:\n{daemon.log()}")
                shutil.move(daemon.data_path, path)
        return path
