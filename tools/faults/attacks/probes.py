"""Measures in processes of their own, so that what attacks do takes nothing from what is measured.

A ping every 10 ms measures for how long a daemon stops, on a machine that is busy with other things: from the time that
an answer takes, it subtracts the time that the daemon's main thread and the probe were ready to run and had no CPU
(run_delay in /proc/PID/schedstat). The rest is what the daemon itself did, or waited for.
"""

import multiprocessing
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from mmap import PAGESIZE
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kit.daemons import DEADLINE, Address, Instance, eventually, open_socket
from kit.nsq_client import sized

INTERVAL = 0.01  # s
BATCH = 100  # PUBs that are sent together
SPAWN = multiprocessing.get_context("spawn")

Sampler = Callable[[float, float], None]  # takes a time of time.monotonic, and what was measured then


class Probe:
    """The samples of a function, which has a process of its own, from the first one until `with` ends."""

    def __init__(self, act: Callable[..., None], *arguments: Any) -> None:
        self._samples: list[tuple[float, float]] = []
        self._receiver, sender = SPAWN.Pipe(duplex=False)
        self._process = SPAWN.Process(target=_run, args=(act, sender, *arguments), daemon=True)
        self._process.start()
        sender.close()
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        with suppress(EOFError):  # the process has ended
            while True:
                self._samples.append(self._receiver.recv())

    def since(self, begin: float, end: float = float("inf")) -> list[float]:
        return [value for at, value in self._samples if begin <= at < end]

    def wait_for_one_after(self, moment: float) -> None:
        def there() -> bool:
            assert self._process.is_alive(), "the probe ended"
            return bool(self._samples) and self._samples[-1][0] > moment

        eventually(there, "a sample", 10 * DEADLINE)

    def __enter__(self) -> "Probe":
        self._thread.start()
        self.wait_for_one_after(0.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._thread.join()


def _run(act: Callable[..., None], sender: Connection, *arguments: Any) -> None:
    lock = threading.Lock()

    def sample(at: float, value: float) -> None:
        with lock:
            sender.send((at, value))

    act(sample, *arguments)


def pings(daemon: Instance) -> Probe:
    """Samples the seconds that a ping takes."""
    return Probe(_ask, daemon.http_address, daemon.pid, b"", b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n", 1, INTERVAL)


def batches(daemon: Instance, rate: int = 0) -> Probe:
    """Samples PUBs of 200 bytes: `rate` a second, or BATCH whenever the last ones are answered (0)."""
    count = max(int(rate * INTERVAL), 1) if rate else BATCH
    identify = b"  V2IDENTIFY\n" + sized(b'{"heartbeat_interval":-1}')
    commands = (b"PUB beside\n" + sized(bytes(200))) * count
    return Probe(_ask, daemon.tcp_address, daemon.pid, identify, commands, 10 * count, count / rate if rate else 0.0)


def _ask(sample: Sampler, address: Address, pid: int, first: bytes, request: bytes, size: int, interval: float) -> None:
    """Sends `request` again and again, which is answered with at least that many bytes, of which the last are OK."""

    def run_delay() -> float:
        """Returns the seconds for which the main thread of either process was ready to run and had no CPU, so far."""
        return sum(int(Path(f"/proc/{each}/schedstat").read_text().split()[1]) for each in (pid, "self")) / 1e9

    with open_socket(address, 10 * DEADLINE) as sock:

        def exchange(data: bytes, size: int) -> None:
            sock.sendall(data)
            answer = b""
            while len(answer) < size or not answer.endswith(b"OK"):
                more = sock.recv(65536)
                assert more, "the daemon closed the connection"
                answer += more

        if first:
            exchange(first, 1)
        while True:
            delay, begin = run_delay(), time.monotonic()
            exchange(request, size)
            wait = time.monotonic() - begin
            sample(begin, max(wait - (run_delay() - delay), 0.0))
            time.sleep(max(begin + interval - time.monotonic(), 0.0))


def resident(pid: int) -> float:
    """Returns the MB of memory of a process and of all that it has started."""
    try:
        own = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGESIZE / 1e6
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # it has ended
        return 0.0
    return own + sum(resident(int(child)) for children in lists for child in children.split())


def watch_memory(sample: Sampler, pid: int) -> None:
    while True:
        sample(time.monotonic(), resident(pid))
        time.sleep(0.05)
