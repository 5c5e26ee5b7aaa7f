"""`python fixture_loop.py COUNT [COMMAND...]`: starts daemons of the test kit one after the other, by COMMAND or as its
fixtures do, and prints the seconds of each. It runs in the interpreter of the lane that is measured."""

import json
import sys
import tempfile
import time
from pathlib import Path

from gnsqd.testing import GNSQD, Daemon


def main() -> None:
    count, command = int(sys.argv[1]), sys.argv[2:] or GNSQD
    seconds = []
    with tempfile.TemporaryDirectory() as directory:
        for number in range(count):
            daemon = Daemon(Path(directory) / str(number), command=command)
            began = time.perf_counter()
            daemon.start()
            seconds.append(time.perf_counter() - began)
            daemon.stop()
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
