"""Measures for how long a daemon stops, on a machine that is busy with other things.

A process of its own asks /ping every 10 ms, and measures how long each answer takes. From that time it subtracts the
time that the daemon's main thread and this process were ready to run and had no CPU (run_delay in
/proc/PID/schedstat). The rest is what the daemon itself did, or waited for. A second process publishes beside it, at a
given rate or as fast as it can.

    python -m faults.attacks.stalls ping HOST:PORT PID          for each ping, when it began and how long it took, s
    python -m faults.attacks.stalls publish HOST:PORT PID RATE  the same for each batch of PUBs
"""

import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from kit.daemons import DEADLINE, Address, eventually, open_socket
from kit.nsq_client import sized

INTERVAL = 0.01  # s
TOPIC = "beside"
WINDOW = 100  # PUBs that are sent together
ANSWER = 10  # bytes of OK


class Sample(NamedTuple):
    at: float  # of time.monotonic
    value: float


class Stopwatch:
    """Measures, from its construction, for how long this process waits for the daemon with that pid."""

    def __init__(self, pid: int) -> None:
        self._processes = (str(pid), "self")
        self._delay = self._run_delay()
        self.begin = time.monotonic()

    def _run_delay(self) -> float:
        """Seconds for which the main thread of either process was ready to run and had no CPU, so far."""
        return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) for pid in self._processes) / 1e9

    def stop(self) -> float:
        wait = time.monotonic() - self.begin
        return max(wait - (self._run_delay() - self._delay), 0.0)


def ping(address: Address, pid: int) -> None:
    with open_socket(address, 10 * DEADLINE) as sock:
        for number in itertools.count():
            if number:
                time.sleep(INTERVAL)
            watch = Stopwatch(pid)
            sock.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while not answer.endswith((b"OK", b"}")):
                more = sock.recv(4096)
                assert more, "the daemon closed the connection"
                answer += more
            say(watch.begin, watch.stop())


def publish(address: Address, pid: int, rate: float) -> None:
    """PUBs of 200 bytes: `rate` a second, or WINDOW whenever the last ones are answered (0)."""
    count = max(int(rate * INTERVAL), 1) if rate else WINDOW
    commands = (f"PUB {TOPIC}\n".encode() + sized(bytes(200))) * count
    with open_socket(address, 10 * DEADLINE) as sock:
        sock.sendall(b"  V2IDENTIFY\n" + sized(b'{"heartbeat_interval":-1}'))
        receive(sock, ANSWER)
        begin = time.monotonic()
        for number in itertools.count(1):
            watch = Stopwatch(pid)
            sock.sendall(commands)
            receive(sock, count * ANSWER)
            say(watch.begin, watch.stop())
            if rate:
                time.sleep(max(begin + number * count / rate - time.monotonic(), 0.0))


def receive(sock: socket.socket, size: int) -> None:
    while size:
        data = sock.recv(size)
        assert data, "the daemon closed the connection"
        size -= len(data)


def say(*numbers: float) -> None:
    sys.stdout.write(" ".join(map(str, numbers)) + "\n")
    sys.stdout.flush()


class Probe:
    """The lines that a module prints as a process of its own, from the first one until `with` ends."""

    def __init__(self, module: str, *arguments: object) -> None:
        self.samples: list[Sample] = []
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"faults.attacks.{module}", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._thread = threading.Thread(target=self._read)

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.samples.append(Sample(*map(float, line.split())))

    def since(self, begin: float, end: float = float("inf")) -> list[float]:
        return [sample.value for sample in self.samples if begin <= sample.at < end]

    def wait_for(self, begin: float) -> None:
        """Until there is a sample that began later."""

        def there() -> bool:
            if self._process.poll() is not None:
                raise AssertionError(f"ended: {self._process.communicate()[1]}")
            return bool(self.samples) and self.samples[-1].at > begin

        eventually(there, "a sample", 10 * DEADLINE)

    def __enter__(self) -> "Probe":
        self._thread.start()
        self.wait_for(0.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()


def main() -> None:
    what, address, pid, *rate = sys.argv[1:]
    host, _, port = address.rpartition(":")
    if what == "ping":
        ping((host, int(port)), int(pid))
    else:
        publish((host, int(port)), int(pid), float(rate[0]))


if __name__ == "__main__":
    main()
