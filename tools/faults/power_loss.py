"""gnsqd on a machine that can lose its power: what was not synced is gone then.

As a program: keeps, in a directory beside the data path, each file as it was at its last fsync, and runs gnsqd's
`__main__` with the arguments given. Removals count at once, and a new name as soon as the file is synced. As a module:
`Machine` is the test's end.
"""

import os
import runpy
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "GNSQD_SYNCED"  # path of the directory


class Machine:
    """For the daemon started by `command`, which is made of the Python that runs gnsqd; `synced` is the directory."""

    def __init__(self, synced: Path, python: list[str]) -> None:
        self._synced = synced
        synced.mkdir()
        self.command = ["env", f"{VARIABLE}={synced}", *python, "-P", __file__]

    def forget(self, data_path: Path) -> None:
        """Gives the data path of a dead daemon back what was synced, and no more."""
        shutil.rmtree(data_path)
        shutil.copytree(self._synced, data_path)


def _install(synced: str) -> None:
    functions: Any = os
    unlink, rename, replace = os.unlink, os.rename, os.replace
    lock = threading.Lock()  # fsync runs in several threads
    sizes: dict[tuple[str, int], int] = {}

    def kept(path: Any) -> str:
        return os.path.join(synced, os.path.basename(os.fspath(path)))

    def keep(descriptor: int, size: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isdir(path):
            return
        file_id = path, os.fstat(descriptor).st_ino
        size = sizes[file_id] = max(size, sizes.get(file_id, 0))
        with open(f"/proc/self/fd/{descriptor}", "rb") as file, open(kept(path) + ".new", "wb") as copy:
            copy.write(file.read(size))
        replace(kept(path) + ".new", kept(path))

    def syncing(sync: Callable[[int], None]) -> Callable[[int], None]:
        def call(descriptor: int) -> None:
            size = os.fstat(descriptor).st_size  # what is written meanwhile is not promised
            sync(descriptor)
            with lock:
                keep(descriptor, size)

        return call

    def removing(path: Any, **kwargs: Any) -> None:
        with lock:
            unlink(path, **kwargs)
            if os.path.exists(kept(path)):
                unlink(kept(path))

    def renaming(move: Callable[..., None]) -> Callable[..., None]:
        def call(source: Any, target: Any, **kwargs: Any) -> None:
            with lock:
                move(source, target, **kwargs)
                if os.path.exists(kept(source)):
                    replace(kept(source), kept(target))
                else:
                    Path(kept(target)).touch()  # a name without the data

        return call

    functions.fsync, functions.fdatasync = syncing(os.fsync), syncing(os.fdatasync)
    functions.unlink = functions.remove = removing
    functions.rename, functions.replace = renaming(rename), renaming(replace)


if __name__ == "__main__":
    _install(os.environ[VARIABLE])
    runpy.run_module("gnsqd", run_name="__main__", alter_sys=True)
