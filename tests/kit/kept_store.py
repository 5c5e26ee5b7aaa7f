"""gnsqd with a directory as its log store, small limits there, and slow uploads; what it deletes there is kept.

As a program: runs gnsqd's `__main__` with the arguments given. As a module: `KeptStore` is the test's end.
"""

import os
import runpy
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

VARIABLE = "GNSQD_KEPT"  # path of the directory
LIMITS: dict[str, dict[str, float]] = {
    "shipping": {"MOST_WAL": 20, "MOST_BYTES": 4000, "REPEATED_BYTES": 1500, "READ_AT_ONCE": 500}
    | {"CLEAN_SECONDS": 0.1, "LOOK_SECONDS": 0.5},
    "journals": {"COMPACTION_SECONDS": 0.05},
    "compactor": {"LEAST_SEGMENTS": 1, "MOST_FILES": 2, "IDLE_TIMES": 0},
}


class KeptStore:
    """That of the daemons started by `command`, which is made of the Python that runs gnsqd."""

    def __init__(self, directory: Path, python: list[str]) -> None:
        self._root = directory
        (directory / "live" / "wal").mkdir(parents=True)
        self.url = f"file://{directory}/live"
        self.command = ["env", f"{VARIABLE}={directory}", *python, "-P", __file__]

    @property
    def newest(self) -> int:
        """Returns the number of the newest wal object, 0 if there is none."""
        return _newest(self._root)

    def views(self) -> Iterator[tuple[int, str]]:
        """Yields each number of a wal object, and the URL of a store with what was there when that was the newest; the
        next takes its place."""
        view = self._root / "view"
        for path in self._root.glob("**/segments/*"):
            _link(path, view / "segments" / path.name)  # early, but nothing refers to it
        for number in range(1, self.newest + 1):
            _link(next(self._root.glob(f"**/wal/{number:016d}")), view / f"wal/{number:016d}")
            gone = self._root / "gone" / str(number)
            for path in gone.glob("*/*"):
                (view / path.relative_to(gone)).unlink(missing_ok=True)
            yield number, f"file://{view}"


def _newest(root: Path) -> int:
    return max((int(name) for name in os.listdir(root / "live" / "wal") if name.isdigit()), default=0)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError, FileExistsError):  # a kill came between this and the removal of the source
        os.link(source, target)


def _install(root: Path) -> None:
    from gnsqd.shared.log_store import LogStore

    delete, put_file = LogStore.delete, LogStore.put_file

    def deleting(self: LogStore, paths: Sequence[str]) -> None:
        for path in paths:
            _link(root / "live" / path, root / "gone" / str(_newest(root)) / path)
        delete(self, paths)

    def putting(self: LogStore, path: str, file: Any) -> None:
        time.sleep(0.04)
        put_file(self, path, file)

    LogStore.delete, LogStore.put_file = deleting, putting  # type: ignore[method-assign]
    for name, limits in LIMITS.items():
        vars(import_module(f"gnsqd.queues.journal.{name}")).update(limits)


if __name__ == "__main__":
    _install(Path(os.environ[VARIABLE]))
    runpy.run_module("gnsqd", run_name="__main__", alter_sys=True)
