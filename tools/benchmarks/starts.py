"""How long a test waits for a daemon of the test kit (`gnsqd.testing`): from the call to the answer to /ping.

They are other daemons than the one that runs meanwhile, which determines what to start.
"""

import json
import statistics
import sys
from collections.abc import Sequence

from benchmarks.lanes import is_ours
from benchmarks.programs import run_to_end
from benchmarks.row import MILLISECONDS, Load, Measurement
from kit.daemons import Daemon, interpreter

STARTS = dict.fromkeys(("cold", "preloaded", "longest"), MILLISECONDS)
DAEMONS = 100
COLD_DAEMONS = 5
SECONDS = 2 * DAEMONS  # more than all of them take

# Arguments: how many, and a command, or none for that of the fixtures. It runs in the interpreter of the lane.
PROGRAM = """
import json, sys, tempfile, time
from pathlib import Path
from gnsqd.testing import GNSQD, Daemon
milliseconds = []
with tempfile.TemporaryDirectory() as directory:
    for number in range(int(sys.argv[1])):
        daemon = Daemon(Path(directory) / str(number), command=sys.argv[2:] or GNSQD)
        began = time.perf_counter()
        daemon.start()
        milliseconds.append(1000 * (time.perf_counter() - began))
        daemon.stop()
print(json.dumps(milliseconds))
"""


def fixture(daemon: Daemon, load: Load) -> Measurement:
    """`cold`, by the command of the lane; `preloaded`, as the fixtures start them; `longest` of the latter, which
    leaves out the first, as that one waits until the parent has imported gnsqd. The fixtures fork only gnsqd: nsqd is
    always started by its command."""
    ours = is_ours(daemon)
    python = interpreter(daemon.command) if ours else [sys.executable]
    cold = starts(python, COLD_DAEMONS, daemon.command)
    _, *others = starts(python, DAEMONS + 1, [] if ours else daemon.command)
    figures = (statistics.median(cold), statistics.median(others), max(others))
    return Measurement(parts=dict(zip(STARTS, figures, strict=True)))


def starts(python: Sequence[str], count: int, command: Sequence[str]) -> list[float]:
    """ms for each of `count` daemons, one after the other, by `command` or as the fixtures do."""
    run = run_to_end([*python, "-P", "-c", PROGRAM, str(count), *command], SECONDS)
    return [float(each) for each in json.loads(run.stdout)]
