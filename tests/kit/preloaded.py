"""Processes of our programs, forked by one parent for each test process (`gnsqd.preloaded`).

Tests of the start and of the end themselves use subprocess, as do tests that change what an interpreter reads when it
starts (PYTHON* variables, limits of the process).
"""

import os
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gnsqd.preloaded import Preloaded, Process

__all__ = ["Process", "can_start", "run", "start"]

_PROGRAMS = Preloaded("gnsqd", "gnsqd.lookupd", "nsqadmin_cli")
can_start = _PROGRAMS.can_start
start = _PROGRAMS.start


def run(
    command: Sequence[str],
    args: Sequence[str],
    stdin: bytes,
    timeout: float,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> tuple[int, bytes, bytes]:
    """Returns the exit code and what was printed on both streams. Raises subprocess.TimeoutExpired after `timeout` s,
    and it is killed."""
    ends = [os.pipe(), os.pipe(), os.pipe()]
    (input_read, input_write), (out_read, out_write), (err_read, err_write) = ends
    try:
        process = start(command, args, [input_read, out_write, err_write], cwd=cwd, env=env)
    finally:
        for end in (input_read, out_write, err_write):
            os.close(end)
    printed: dict[int, bytes] = {}
    threads = [threading.Thread(target=_write_all, args=(input_write, stdin), daemon=True)]
    threads += [threading.Thread(target=_read_all, args=(end, printed), daemon=True) for end in (out_read, err_read)]
    for thread in threads:
        thread.start()
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    for thread in threads:
        thread.join()
    return code, printed[out_read], printed[err_read]


def _write_all(end: int, data: bytes) -> None:
    with suppress(BrokenPipeError), open(end, "wb") as file:  # flushed when it is closed
        file.write(data)


def _read_all(end: int, printed: dict[int, bytes]) -> None:
    with open(end, "rb") as file:
        printed[end] = file.read()
