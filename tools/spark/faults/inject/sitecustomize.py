"""Strikes at exact points of the data source, in whichever of Spark's Python processes comes by. Product code knows
nothing of it: a directory with this file is put on PYTHONPATH, and functions are replaced when their module is loaded.

$NSQ_FAULTS names a directory that holds `points.json`, point -> [module, qualified name, moment]. The moment is
`before` or `after` the function, or `halfway`, when it has done the first half of the ids that are its last argument. A
generator has ended after its last row.

A file `{point}.armed.{number}` there arms a fault; the first process that comes to the point renames it to
`{point}.done.{number}` and does what is in it: `worker` kills that process, `executor` its JVM too, which is the
driver's with a local master, a number the process with this pid, of a daemon, and the function goes on.
"""

import functools
import importlib.abc
import importlib.machinery
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(os.environ["NSQ_FAULTS"])

Point = tuple[str, str, str]


def _parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def _kill_jvm() -> None:
    pid = os.getppid()
    while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        pid = _parent(pid)
    os.kill(pid, signal.SIGKILL)


def _claim(point: str) -> str:
    """Returns the action of an armed fault, which is now ours; an empty text if there is none."""
    for armed in sorted(HERE.glob(f"{point}.armed.*")):
        try:
            action = armed.read_text()
            armed.rename(armed.with_name(armed.name.replace(".armed.", ".done.")))
        except FileNotFoundError:
            continue  # another process was faster
        return action
    return ""


def _inject(action: str) -> None:
    if not action:
        return
    if action.isdecimal():
        os.kill(int(action), signal.SIGKILL)
        return
    if action == "executor":
        _kill_jvm()
    os.kill(os.getpid(), signal.SIGKILL)


def _replace(module: ModuleType, name: str, wrap: Callable[[Any], Any]) -> None:
    *outer, last = name.split(".")
    owner = functools.reduce(getattr, outer, module)
    setattr(owner, last, wrap(getattr(owner, last)))


def _faulty(function: Any, name: str, moment: str) -> Any:
    def with_faults(*args: Any, **kwargs: Any) -> Any:
        action = _claim(name)
        if action and moment == "before":
            _inject(action)
        if action and moment == "halfway":
            *args_before, ids = args
            function(*args_before, ids[: len(ids) // 32 * 16], **kwargs)
            _inject(action)
        result = function(*args, **kwargs)
        if action and moment == "after":
            if inspect.isgenerator(result):
                return _faulty_end(result, action)
            _inject(action)
        return result

    return with_faults


def _faulty_end(rows: Iterator[Any], action: str) -> Iterator[Any]:
    yield from rows
    _inject(action)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, points: dict[str, Point]) -> None:
        self._of_module: dict[str, list[tuple[str, Callable[[Any], Any]]]] = {}
        for point, (module, name, moment) in points.items():
            wrap = functools.partial(_faulty, name=point, moment=moment)
            self._of_module.setdefault(module, []).append((name, wrap))
        # Each record of a range is delivered by itself, while its task reads the next one.
        self._of_module.setdefault("pyspark_nsq.ranges.reading", []).append(("_ROWS", lambda _: 1))

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name not in self._of_module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_replace(module: ModuleType) -> None:
                execute(module)
                for function, wrap in self._of_module[name]:
                    _replace(module, function, wrap)

            spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder(json.loads((HERE / "points.json").read_text())))
