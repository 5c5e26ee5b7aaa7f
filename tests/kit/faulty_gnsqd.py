"""gnsqd with faults in its file operations, which a test switches on and off while it runs.

As a program: replaces functions of `os`, and `open`, by ones that ask a control file first, and runs gnsqd's
`__main__` with the arguments given. As a module: `Faults` is the test's end of that file.

The control file holds a JSON list of rules, see `Rule`; the first that matches a call decides. Every time a rule
takes effect, a line is added to the file beside it, so that the test knows that it has happened.
"""

import builtins
import errno
import fnmatch
import json
import os
import runpy
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

VARIABLE = "GNSQD_FAULTS"  # path of the control file


class Rule(TypedDict, total=False):
    """`call`: `open` (to read), `create` (open to write), or the name of a function of `os`. `name`: which files, as a
    shell pattern for the last part of the path. `after`: let that many calls pass first; for write and pwrite that many
    bytes, and these are written, by short writes; pwritev is also a pwrite. Then what happens, each time: `error` (as
    in ENOSPC), `kill` (the process kills itself), or `hold` (the call waits until the rule is taken away, and is made
    then).
    """

    call: str
    name: str
    after: int
    error: str
    kill: bool
    hold: bool


class Faults:
    """Rules for the daemons started by `command`, one at a time; it is made of the Python that runs gnsqd."""

    def __init__(self, control: Path, python: list[str]) -> None:
        self._control = control
        self.command = ["env", f"{VARIABLE}={control}", *python, "-P", __file__]
        self.set()

    def set(self, *rules: Rule) -> None:
        """Replaces all rules; none lets everything pass."""
        hits = self._control.with_suffix(f".{time.monotonic_ns()}.hits")
        temporary = self._control.with_suffix(".tmp")
        temporary.write_text(json.dumps({"rules": rules, "hits": str(hits)}))
        temporary.rename(self._control)
        self._hits = hits

    def hits(self) -> list[str]:
        """Returns `{call} {path}` each time that one of the present rules took effect."""
        return self._hits.read_text().splitlines() if self._hits.exists() else []


class _Control:
    """The daemon's end. Calls come from several threads."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._text = b""
        self._rules: list[Rule] = []
        self._hits = ""
        self._passed: list[int] = []  # calls or bytes that each rule let pass
        self._read = os.read, os.open, os.close

    def _load(self) -> None:
        read, open_, close = self._read
        descriptor = open_(self._path, os.O_RDONLY)
        text = read(descriptor, 1 << 20)
        close(descriptor)
        if text != self._text:
            content = json.loads(text)
            self._text, self._rules, self._hits = text, content["rules"], content["hits"]
            self._passed = [0] * len(self._rules)

    def allowance(self, call: str, path: str, size: int) -> int:
        """Returns how much of `size` bytes (1 if bytes do not matter) may be written now.

        Raises OSError, or ends the process, where a rule specifies that.
        """
        while True:
            with self._lock:
                self._load()
                rule, allowed = self._match(call, os.path.basename(path), size)
                if rule is None:
                    return size
                if allowed:
                    return allowed
                if not rule.get("hold"):
                    break
                loaded = self._text
            while loaded == self._text:
                time.sleep(0.005)
                with self._lock:
                    self._load()
        if rule.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        number = getattr(errno, rule["error"])
        raise OSError(number, os.strerror(number))

    def _match(self, call: str, name: str, size: int) -> tuple[Rule | None, int]:
        for i, rule in enumerate(self._rules):
            if rule["call"] == call and fnmatch.fnmatchcase(name, rule["name"]):
                allowed = min(rule.get("after", 0) - self._passed[i], size)
                if allowed > 0:
                    self._passed[i] += allowed
                else:
                    self._note(f"{call} {name}\n")
                return rule, max(allowed, 0)
        return None, size

    def _note(self, line: str) -> None:
        _, open_, close = self._read
        descriptor = open_(self._hits, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        _WRITE(descriptor, line.encode())
        close(descriptor)


_WRITE = os.write
_BY_PATH = ["listdir", "rename", "unlink", "stat"]
_BY_DESCRIPTOR = ["fsync", "fdatasync", "ftruncate", "pread"]
_WRITING = ["pwrite", "write"]


def _install(control: _Control) -> None:
    functions: Any = os
    builtin_functions: Any = builtins

    def path_of(descriptor: int) -> str:
        try:
            return os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            return ""

    def by_path(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            control.allowance(name, os.fspath(path) if not isinstance(path, int) else "", 1)
            return function(path, *args, **kwargs)

        return call

    def by_descriptor(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(descriptor: int, *args: Any) -> Any:
            control.allowance(name, path_of(descriptor), 1)
            return function(descriptor, *args)

        return call

    def writing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(descriptor: int, data: Any, *args: Any) -> Any:
            allowed = control.allowance(name, path_of(descriptor), len(data))
            return function(descriptor, memoryview(data)[:allowed], *args)

        return call

    def write_parts(descriptor: int, parts: list[bytes], position: int) -> int:
        return os.pwrite(descriptor, b"".join(parts), position)

    os_open, builtin_open = os.open, builtins.open

    def open_descriptor(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        control.allowance("create" if flags & (os.O_WRONLY | os.O_RDWR) else "open", os.fspath(path), 1)
        return os_open(path, flags, *args, **kwargs)

    def open_file(path: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(path, str):
            control.allowance("open", path, 1)
        return builtin_open(path, *args, **kwargs)

    for make, names in ((by_path, _BY_PATH), (by_descriptor, _BY_DESCRIPTOR), (writing, _WRITING)):
        for name in names:
            setattr(functions, name, make(name, getattr(os, name)))
    functions.pwritev = write_parts
    functions.open = open_descriptor
    builtin_functions.open = open_file


if __name__ == "__main__":
    _install(_Control(os.environ[VARIABLE]))
    runpy.run_module("gnsqd", run_name="__main__", alter_sys=True)
