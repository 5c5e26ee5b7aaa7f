"""gnsqd with a wall clock that a test sets while it runs, as an operator or NTP would; monotonic time goes on."""

import struct
import subprocess
from pathlib import Path

VARIABLE = "GNSQD_CLOCK"  # path of the file: seconds, as one double
_OFFSET = struct.Struct("=d")
# Is loaded before the C library: Python and compiled modules read the clock by this function.
_SHIM = rb"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static double *offset;
static int (*true_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void install(void)
{
    true_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    offset = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, open(getenv("GNSQD_CLOCK"), O_RDONLY), 0);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = true_gettime(clock, now);
    if (clock == CLOCK_REALTIME)
        now->tv_sec += (time_t)*offset;
    return result;
}
"""


class WallClock:
    """That of the daemons started by `command`, which is made of the Python that runs gnsqd."""

    def __init__(self, path: Path, python: list[str]) -> None:
        self._path = path
        self.set(0)
        shim = f"{path}.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", shim, "-ldl"], input=_SHIM, check=True)
        self.command = ["env", f"{VARIABLE}={path}", f"LD_PRELOAD={shim}", *python, "-P", "-m", "gnsqd"]

    def set(self, offset: float) -> None:
        """Sets it to that many seconds after the true time, before it where that is negative."""
        with self._path.open("r+b" if self._path.exists() else "wb") as file:
            file.write(_OFFSET.pack(offset))
