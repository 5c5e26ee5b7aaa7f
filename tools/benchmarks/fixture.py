"""How long a test waits for a daemon of the test kit (`gnsqd.testing`): from the call to the answer to /ping.

They are other daemons than the one that runs meanwhile, which determines what to start.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.programs import run_to_end
from benchmarks.put import interpreter
from benchmarks.row import Load, Measurement
from kit.daemons import Daemon

LOOP = Path(__file__).with_name("fixture_loop.py")
DAEMONS = 100
COLD_DAEMONS = 5
SECONDS = 2 * DAEMONS  # more than all of them take


def fixture(daemon: Daemon, load: Load) -> Measurement:
    """ms: `cold`, by the command of the lane; `preloaded`, as the fixtures start them; `longest` of the latter, which
    leaves out the first, as that one waits until the parent has imported gnsqd. The fixtures fork only gnsqd: nsqd is
    always started by its command."""
    is_ours = daemon.http("GET", "/metrics")[0] == 200
    python = interpreter(daemon.command) if is_ours else [sys.executable]
    cold = starts(python, COLD_DAEMONS, daemon.command)
    _, *others = starts(python, DAEMONS + 1, [] if is_ours else daemon.command)
    median = statistics.median(others)
    return Measurement(median, parts={"cold": statistics.median(cold), "preloaded": median, "longest": max(others)})


def starts(python: Sequence[str], count: int, command: Sequence[str]) -> list[float]:
    """ms for each of `count` daemons, one after the other, by `command` or as the fixtures do."""
    run = run_to_end([*python, "-P", str(LOOP), str(count), *command], SECONDS)
    return [float(seconds) * 1000 for seconds in json.loads(run.stdout)]
