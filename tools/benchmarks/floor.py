"""The least that gevent costs: a server that does no work, floor.c, on the loop of gevent's hub."""

import shlex
import sys
import sysconfig
from pathlib import Path

from benchmarks.lanes import Lane
from benchmarks.programs import run_to_end

SECONDS = 60.0  # more than compiling takes

# Takes the library and nsqd's flags. The output of consumers is sent every 250 ms at least, as by nsqd.
PROGRAM = """
import ctypes, socket, sys
import gevent
from gevent.libev import corecext
gevent.config.loop = "libev-cext"
library, *flags = sys.argv[1:]
addresses = dict(flag.lstrip("-").split("=", 1) for flag in flags)
ctypes.CDLL(corecext.__file__, ctypes.RTLD_GLOBAL)  # the functions of libev
floor = ctypes.CDLL(library)
for name in ("tcp", "http"):
    host, _, port = addresses[f"{name}-address"].rpartition(":")
    listener = socket.create_server((host, int(port)), backlog=1024)
    print(f"INFO: {name.upper()}: listening on {host}:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    floor.serve(ctypes.c_void_p(gevent.get_hub().loop.ptr), listener.detach(), name == "http")
while True:
    gevent.sleep(0.25)
    floor.flush_consumers()
"""


def compiled(directory: Path) -> Lane:
    """The server, compiled in this directory. Raises BenchmarkError, or OSError without a compiler."""
    library = str(directory / "floor.so")
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")
    run_to_end([*compiler, "-O2", "-shared", "-fPIC", "-o", library, str(Path(__file__).with_suffix(".c"))], SECONDS)
    return Lane("floor", (sys.executable, "-P", "-c", PROGRAM, library))
