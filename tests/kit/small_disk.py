"""A file system of a few hundred kilobytes, to run daemons on until it is full: a tmpfs in a mount namespace.

Nobody else sees it, and it ends with the process that holds it, which ends with ours. Needs no root where users may
make namespaces; where that does not work, `SmallDisk` skips the test with the reason.
"""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from kit.daemons import eventually

PAGE = os.sysconf("SC_PAGESIZE")  # what the file system gives out at a time
BALLAST = "ballast"


class SmallDisk:
    """The file system mounted on `path`, for processes started by `inside(argv)`; `close` ends it.

    `size` is in bytes, `inodes` bounds the number of files; this process sees them under `files`.
    """

    def __init__(self, path: Path, size: int, inodes: int) -> None:
        for program in ("unshare", "nsenter"):
            if not shutil.which(program):
                pytest.skip(f"no {program} here")
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        script = f'mount -t tmpfs -o size={size},nr_inodes={inodes},mode=700 tmpfs "$0" && echo mounted && exec cat'
        self._holder = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._holder.stdout is not None
        answer = self._holder.stdout.readline().decode().strip()
        self.files = Path(f"/proc/{self._holder.pid}/root{path}")
        if answer != "mounted" or not os.access(self.files, os.W_OK):
            self.close()
            pytest.skip(f"no file system in a namespace here: {answer}")

    def inside(self, argv: Iterable[str]) -> list[str]:
        """Returns the argv of a program that sees the file system; it keeps its process id."""
        pid = str(self._holder.pid)
        return ["nsenter", "--target", pid, "--user", "--mount", "--preserve-credentials", "--", *argv]

    def fill(self, leave: int = 0) -> None:
        """Takes all space but `leave` pages."""
        descriptor = os.open(self.files / BALLAST, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._take_all(lambda: os.write(descriptor, bytes(PAGE)))
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - leave * PAGE)
        finally:
            os.close(descriptor)

    def use_up_inodes(self) -> None:
        """Takes all inodes: no file can be made, but those there are can grow."""
        numbers = count()
        self._take_all(lambda: (self.files / f"{BALLAST}-{next(numbers)}").touch())

    def _take_all(self, take: Callable[[], object]) -> None:
        def take_while_quiet() -> bool:
            try:
                while True:
                    take()
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            # A temporary file that is about to replace another one would give something back.
            return not [name for name in self.names() if name.endswith(".tmp")]

        eventually(take_while_quiet)

    def free(self) -> None:
        """Gives back all that was taken."""
        for path in self.files.glob(f"{BALLAST}*"):
            path.unlink()

    def remount(self, options: str) -> bool:
        """Remounts it, such as `ro`; False while that cannot be because a file is open for writing."""
        argv = self.inside(["mount", "--options-source", "disable", "-o", f"remount,{options}", str(self.path)])
        return subprocess.run(argv, stderr=subprocess.DEVNULL).returncode == 0

    def names(self) -> list[str]:
        """Returns the files on it except what was taken, in order."""
        return sorted(path.name for path in self.files.iterdir() if not path.name.startswith(BALLAST))

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self._holder.communicate()
