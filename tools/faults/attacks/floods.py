"""Floods of the page's port by clients without a token, and viewers with one: what they cost publishers.

A publisher sends 100 PUBs whenever the last ones are answered, alone and beside the flood in turns. The share of PUB/s
that is left is given as it is, and by the time that the daemon itself took for an answer (`stalls`): a busy machine
changes that one less, and only that one is limited. Resident memory includes the daemon's child processes.

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
from statistics import mean, median

from faults.attacks.figures import MB, Attack, Figure, Memory, Setting, address, resident, running
from faults.attacks.stalls import WINDOW, Probe, say
from kit.daemons import DEADLINE, Daemon, free_port, open_socket

TOPICS = 1000
SECONDS = 4.0  # of each turn
TURNS = 2
BODY = 4 << 20
LOGIN = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\nConnection: close\r\n"
LOGINS = 8  # at once
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
    return LOGIN + b"Content-Length: %d\r\n\r\n" % size


def login(to: tuple[str, int], token: str) -> None:
    request = post_login(BODY) + (b"token=" + b"%41" * (BODY // 3))[:BODY]
    crowd([lambda: forever(lambda: exchange(to, request))] * LOGINS)


def unfinished(to: tuple[str, int], token: str) -> None:
    """Each sends all but one byte, together with the others, and then nothing."""
    piece = bytes(1 << 16)
    sockets = [open_socket(to, DEADLINE) for _ in range(UNFINISHED)]
    for sock in sockets:
        sock.sendall(post_login(BODY) + piece[1:])
        say(time.monotonic(), 1)
    for _ in range(BODY // len(piece) - 1):
        for sock in sockets.copy():
            try:
                sock.sendall(piece)
            except OSError:  # it is refused
                sockets.remove(sock)
    threading.Event().wait()


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


def token_files(directory: Path) -> list[str]:
    """Flags; the files are there."""
    flags = []
    for role, token in (("full", FULL), ("read", READ)):
        path = directory / f"{role}.token"
        path.write_text(token + "\n")
        flags.append(f"--http-auth-token-file={role}:{path}")
    return flags


def page_lines(daemon: Daemon) -> int:
    """Lines in the log that are the page's, but not of a start of its process, or nobody's: tracebacks."""
    lines = (line for line in daemon.log().splitlines() if not line.endswith(" serves the page"))
    return sum("ADMIN" in line or not line.startswith("[nsqd]") for line in lines)


def measure(name: str, command: list[str], setting: Setting) -> list[Figure]:
    seconds = setting.seconds(SECONDS)
    to = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        flags = [f"--admin-http-address={to}", *token_files(Path(directory))]
        daemon = stack.enter_context(running(command, *flags, topics=setting.scaled(TOPICS)))
        publisher = stack.enter_context(Probe("stalls", "publish", address(daemon.tcp_address), daemon.pid, 0))
        pings = stack.enter_context(Probe("stalls", "ping", address(daemon.http_address), daemon.pid))
        time.sleep(seconds / 4)
        turns: dict[bool, list[float]] = {True: [], False: []}  # True: with a flood; seconds for each batch
        waits: dict[bool, list[float]] = {True: [], False: []}
        lasted = {True: 0.0, False: 0.0}
        lines, requests = 0, 0.0

        def turn(with_flood: bool) -> None:
            begin = time.monotonic()
            time.sleep(seconds)
            for probe, values in ((publisher, turns), (pings, waits)):
                probe.wait_for(time.monotonic())
                values[with_flood] += probe.since(begin)
            lasted[with_flood] += time.monotonic() - begin

        memory = Memory(daemon.pid)
        for _ in range(TURNS):
            turn(False)
            logged = page_lines(daemon)
            with Probe("floods", name, to, FULL) as flood:
                turn(True)
            requests += sum(flood.since(0.0))
            lines += page_lines(daemon) - logged
        most = memory.stop()
        time.sleep(seconds)
        left = resident(daemon.pid) / MB
        tracebacks = daemon.log().count("Traceback (most recent")
    rates = {kind: WINDOW * len(turn) / lasted[kind] for kind, turn in turns.items()}
    services = {kind: mean(turn) for kind, turn in turns.items()}
    return [
        Figure("PUB/s alone", rates[False], "/s"),
        Figure("PUB/s left", 100 * rates[True] / rates[False], "%"),
        Figure("PUB/s alone, by the daemon's time", WINDOW / services[False], "/s"),
        Figure("PUB/s left, by the daemon's time", 100 * services[False] / services[True], "%", at_least=SHARE_LIMIT),
        Figure("longest ping", 1000 * (max(waits[True]) - median(waits[False])), "ms", at_most=PING_LIMIT),
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
