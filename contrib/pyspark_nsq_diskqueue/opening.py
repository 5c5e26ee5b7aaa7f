"""Opens files for reading only."""

import os
import stat


def open_file(path: str) -> int:
    """A descriptor to read from; OSError also if it is not a file, but, for instance, a pipe that nobody writes to."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a file")
    return descriptor


def reason_of(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
