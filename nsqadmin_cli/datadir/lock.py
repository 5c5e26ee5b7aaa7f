"""The lock that a running nsqd holds: flock on the data directory itself."""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from nsqadmin_cli.errors import AdminError


def is_held(path: str) -> bool:
    """Whether a running nsqd, or a repair, holds it. The lock is not kept: a daemon may start."""
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def locked(path: str, instead: str = "") -> Iterator[None]:
    """Prevents nsqd from starting on the directory inside `with`; AdminError if one runs, with the alternative
    `instead`."""
    descriptor = _open(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            text = f"{path} is in use by {describe_holder(path)}, which must be stopped first{instead}"
            raise AdminError(f"{text}; nothing was changed") from None
        yield
    finally:
        os.close(descriptor)


def describe_holder(path: str) -> str:
    """`a running nsqd (process 123)`, without the number if it is unknown."""
    number = ""
    with suppress(OSError, ValueError):
        found = os.stat(path)
        place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        with open("/proc/locks", encoding="ascii") as file:
            if match := re.search(rf"FLOCK +ADVISORY +WRITE (\d+) {place} ", file.read()):
                number = f" (process {match[1]})"
    return f"a running nsqd{number}"


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise AdminError(f"cannot open {path}: {str(error.strerror).lower()}") from error
