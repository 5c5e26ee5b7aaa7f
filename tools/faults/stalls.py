"""Measures for how long a daemon stops, on a machine that is busy with other things.

A process of its own asks /ping every 10 ms, and measures how long each answer takes. From that time it subtracts the
time that the daemon's main thread and this process were ready to run and had no CPU (run_delay in
/proc/PID/schedstat). The rest is what the daemon itself did, or waited for.

    python -m faults.stalls HOST PORT PID    prints for each ping when it began and how long it took, in seconds
"""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from kit.daemons import DEADLINE, Daemon, eventually, open_socket

INTERVAL = 0.01  # s


def ping(host: str, port: int, pid: int) -> None:
    def run_delay() -> float:
        """Seconds for which the main thread of either process was ready to run and had no CPU, so far."""
        return sum(int(Path(f"/proc/{each}/schedstat").read_text().split()[1]) for each in (pid, "self")) / 1e9

    with open_socket((host, port), 10 * DEADLINE) as sock:
        while True:
            delay, begin = run_delay(), time.monotonic()
            sock.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while not answer.endswith((b"OK", b"}")):
                more = sock.recv(4096)
                assert more, "the daemon closed the connection"
                answer += more
            wait = time.monotonic() - begin
            sys.stdout.write(f"{begin} {max(wait - (run_delay() - delay), 0.0)}\n")
            sys.stdout.flush()
            time.sleep(INTERVAL)


class Pings:
    """The waits of pings of a daemon, from the first one until `with` ends."""

    def __init__(self, daemon: Daemon) -> None:
        self._samples: list[tuple[float, float]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "faults.stalls", *map(str, daemon.http_address), str(daemon.pid)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            begin, wait = map(float, line.split())
            self._samples.append((begin, wait))

    def since(self, begin: float, end: float = float("inf")) -> list[float]:
        return [wait for at, wait in self._samples if begin <= at < end]

    def wait_for_one_after(self, moment: float) -> None:
        def there() -> bool:
            assert self._process.poll() is None, "the pings ended"
            return bool(self._samples) and self._samples[-1][0] > moment

        eventually(there, "a ping", 10 * DEADLINE)

    def __enter__(self) -> "Pings":
        self._thread.start()
        self.wait_for_one_after(0.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()


if __name__ == "__main__":
    ping(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
