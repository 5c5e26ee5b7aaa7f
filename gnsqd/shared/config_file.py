"""Reads the files that a configuration names: config files, certificates, keys and tokens.

A file may be a pipe, such as bash's `<(command)`. Whatever it is, only so much is read of it, and only for so long.
"""

import errno
import os
import select
import stat
import time

from gnsqd.shared.errors import path_error

MAX_SIZE = 16 << 20  # bytes
MAX_WAIT = 5.0  # seconds, for the end of a pipe

_READING = (errno.EISDIR, errno.EIO, errno.EFBIG, errno.ETIMEDOUT)  # not of open(2)


def read_config_file(path: str, max_size: int = MAX_SIZE) -> bytes:
    """Returns the content; raises OSError also for more than `max_size` bytes, and for a pipe that does not end within
    MAX_WAIT."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        return _read(descriptor, max_size)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(descriptor)


def _read(descriptor: int, max_size: int) -> bytes:
    deadline = time.monotonic() + MAX_WAIT
    poll = select.poll()  # a named pipe that has had no writer yet is not at its end
    poll.register(descriptor, select.POLLIN)
    data = bytearray()
    while len(data) <= max_size:
        if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
            raise OSError(errno.ETIMEDOUT, f"did not end within {MAX_WAIT:g} s")
        try:
            piece = os.read(descriptor, 1 << 16)
        except BlockingIOError:  # another reader of the pipe was faster
            continue
        if not piece:
            return bytes(data)
        data += piece
    raise OSError(errno.EFBIG, f"more than {max_size} bytes")


def signature(path: str) -> tuple[int, ...]:
    """Returns numbers that differ after a file is written or replaced, none for a pipe, which can be read only once;
    raises OSError."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def describe_failure(error: OSError) -> str:
    """Returns an error of `read_config_file` in Go's words, such as `open nsqd.cfg: permission denied`."""
    return path_error("read" if error.errno in _READING else "open", str(error.filename), error)
