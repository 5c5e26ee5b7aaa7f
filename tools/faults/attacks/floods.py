"""Floods of the page's port by clients without a token, and viewers with one: what they cost publishers.

Publishers keep gnsqd busy, alone and beside the flood in turns. The share of messages that is left is given as it is,
and of the time in which both the daemon's main thread and the publisher had a CPU or waited for something else than a
CPU (`stalls`): only that one is limited, as a busy machine does not change it. Resident memory includes the daemon's
child processes.

    python -m faults.attacks.floods NAME HOST:PORT TOKEN        prints a line per request: time and 1
"""

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

from daemons import DEADLINE, free_port, open_socket
from faults.attacks.figures import MB, Attack, Figure, Memory, Setting, address, resident, running
from faults.attacks.stalls import Probe, run_delay, say

TOPICS = 1000
SECONDS = 4.0  # of each turn
TURNS = 2
BODY = 4 << 20
UNFINISHED = 126
VIEWERS = 8
FULL, READ = "full" * 8, "read" * 8  # tokens

PING_LIMIT = 50.0  # ms
SHARE_LIMIT = 90.0  # %
MEMORY_LIMIT = 200.0  # MB, with everything that the page needs


# The clients


def exchange(to: tuple[str, int], request: bytes) -> None:
    """One request on a connection of its own, however it is answered; a refusal may come before it is sent."""
    with open_socket(to, DEADLINE) as sock:
        say(time.monotonic(), 1)
        try:
            sock.sendall(request)
            while sock.recv(65536):
                pass
        except OSError:
            pass


def forever(act: Callable[[], None]) -> None:
    while True:
        try:
            act()
        except OSError:  # the listener may be full
            time.sleep(0.01)


def post_login(size: int) -> bytes:
    return b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % size


def login(to: tuple[str, int], token: str) -> None:
    forever(lambda: exchange(to, post_login(BODY) + b"token=" + bytes(BODY - 6)))


def unfinished(to: tuple[str, int], token: str) -> None:
    request = post_login(BODY) + b"token=" + bytes(BODY - 7)
    crowd([lambda: forever(lambda: exchange(to, request))] * UNFINISHED)


def viewers(to: tuple[str, int], token: str) -> None:
    view = f"GET /topics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
    crowd([lambda: forever(lambda: exchange(to, view.encode()))] * VIEWERS)


def bad_heads(to: tuple[str, int], token: str) -> None:
    """101 headers, and versions that are none."""
    heads = [b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", b"GET / HTTP\r\n\r\n", b"GET / HTTP/1.x\r\n\r\n"]
    numbers = count()
    forever(lambda: exchange(to, heads[next(numbers) % len(heads)]))


def crowd(bodies: list[Callable[[], None]]) -> None:
    for body in bodies:
        threading.Thread(target=body).start()


FLOODS = {"login": login, "unfinished": unfinished, "viewers": viewers, "bad_heads": bad_heads}


# What they cost


class Rates:
    """Messages a second that were published in a turn: as it is, and of the time without waiting for a CPU."""

    def __init__(self, publisher: Probe, pid: int) -> None:
        self._publisher = publisher
        self._pid = pid

    def _delay(self) -> float:
        return run_delay(self._pid) + run_delay(self._publisher.pid)

    def measure(self, seconds: float) -> tuple[float, float]:
        delay, begin = self._delay(), time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        waited = min(self._delay() - delay, 0.9 * (end - begin))
        messages = sum(self._publisher.since(begin, end))
        return messages / (end - begin), messages / (end - begin - waited)


def token_files(directory: Path) -> list[str]:
    """Flags; the files are there."""
    flags = []
    for role, token in (("full", FULL), ("read", READ)):
        path = directory / f"{role}.token"
        path.write_text(token + "\n")
        flags.append(f"--http-auth-token-file={role}:{path}")
    return flags


def measure(name: str, command: list[str], setting: Setting) -> list[Figure]:
    seconds = setting.seconds(SECONDS)
    to = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        flags = [f"--admin-http-address={to}", *token_files(Path(directory))]
        daemon = stack.enter_context(running(command, *flags, topics=setting.scaled(TOPICS)))
        publisher = stack.enter_context(Probe("stalls", "publish", address(daemon.tcp_address), 0))
        pings = stack.enter_context(Probe("stalls", "ping", address(daemon.http_address), daemon.pid))
        time.sleep(seconds / 4)
        rates = Rates(publisher, daemon.pid)
        alone, beside, waits, usual = [], [], [], []
        lines, requests = 0, 0.0
        memory = Memory(daemon.pid)
        for _ in range(TURNS):
            begin = time.monotonic()
            alone.append(rates.measure(seconds))
            usual += pings.since(begin)
            logged = len(daemon.log().splitlines())
            with Probe("floods", name, to, FULL) as flood:
                begin = time.monotonic()
                beside.append(rates.measure(seconds))
                pings.wait_for(time.monotonic())
                waits += pings.since(begin)
            requests += sum(flood.since(0.0))
            lines += len(daemon.log().splitlines()) - logged
        most = memory.stop()
        time.sleep(seconds)
        left = resident(daemon.pid) / MB
        tracebacks = daemon.log().count("Traceback (most recent")
    raw, of_time = (100 * sum(turn[kind] for turn in beside) / sum(turn[kind] for turn in alone) for kind in range(2))
    return [
        Figure("PUB/s alone", sum(turn[0] for turn in alone) / TURNS, "/s"),
        Figure("PUB/s left", raw, "%"),
        Figure("PUB/s left, of the time with a CPU", of_time, "%", at_least=SHARE_LIMIT),
        Figure("longest ping", 1000 * (max(waits) - median(usual)), "ms", at_most=PING_LIMIT),
        Figure("RSS, peak", most, "MB", at_most=MEMORY_LIMIT),
        Figure("RSS, afterwards", left, "MB"),
        Figure("requests", requests, ""),
        Figure("log lines per request", lines / max(requests, 1.0), "", at_most=1.0),
        Figure("tracebacks", tracebacks, "", at_most=0),
    ]


ATTACKS = (
    Attack("page: POST /login of 4 MiB", partial(measure, "login")),
    Attack("page: 126 unfinished bodies", partial(measure, "unfinished")),
    Attack("page: 8 viewers with the full token", partial(measure, "viewers")),
    Attack("page: 101 headers and bad versions", partial(measure, "bad_heads")),
)


def main() -> None:
    name, to, token = sys.argv[1:]
    host, _, port = to.rpartition(":")
    FLOODS[name]((host, int(port)), token)


if __name__ == "__main__":
    main()
