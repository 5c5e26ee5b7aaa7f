"""Floods of the page's port by clients without a token, and viewers with one: what they cost publishers.

A publisher sends 100 PUBs whenever the last ones are answered, alone and beside the flood in turns. The share of PUB/s
that is left is given as it is, and by the time that the daemon itself took for an answer (`probes`): a busy machine
changes that one less, and only that one is limited. Resident memory includes the daemon's child processes.
"""

import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import mean, median

from faults.attacks.figures import PAGE, Attack, Figure, Setting, page_of, running
from faults.attacks.probes import BATCH, Probe, Sampler, batches, pings, resident, watch_memory
from kit.daemons import DEADLINE, Address, address_of, open_socket

TOPICS = 1000
SECONDS = 4.0  # of each turn
TURNS = 2
FULL, READ = "full" * 8, "read" * 8  # tokens
BODY = 4 << 20
LOGIN = (
    b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n" % BODY
)
VIEW = f"GET /topics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAuthorization: Bearer {FULL}\r\n\r\n"
BAD = (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", b"GET / HTTP\r\n\r\n", b"GET / HTTP/1.x\r\n\r\n")

SHARE_LIMIT = 90.0  # %
MEMORY_LIMIT = 200.0  # MB, with everything that the page needs


def ask(sample: Sampler, to: Address, clients: int, times: int | None, requests: Sequence[bytes]) -> None:
    """Sends that many requests from each client, on new connections, however they are answered; None: for ever."""

    def ask() -> None:
        for request in islice(cycle(requests), times):
            try:
                sock = open_socket(to, DEADLINE)
            except OSError:  # the listener may be full
                time.sleep(0.01)
                continue
            sample(time.monotonic(), 1)
            with sock, suppress(OSError):  # a refusal may come before all is sent
                sock.sendall(request)
                while sock.recv(65536):
                    pass

    for _ in range(clients):
        threading.Thread(target=ask).start()


def token_flags(directory: Path) -> list[str]:
    """Writes the files of tokens."""
    flags = []
    for role, token in (("full", FULL), ("read", READ)):
        (directory / role).write_text(token + "\n")
        flags.append(f"--http-auth-token-file={role}:{directory / role}")
    return flags


def measure(
    clients: int, times: int | None, requests: Sequence[bytes], command: list[str], setting: Setting
) -> list[Figure]:
    seconds = setting.seconds(SECONDS)
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        flags = (PAGE, *token_flags(Path(directory)))
        daemon = stack.enter_context(running(command, *flags, topics=setting.scaled(TOPICS), channels=0))
        publisher, pinger = stack.enter_context(batches(daemon)), stack.enter_context(pings(daemon))
        to = address_of(page_of(daemon))
        time.sleep(seconds / 4)
        turns: dict[bool, list[tuple[float, float]]] = {True: [], False: []}  # True: with a flood
        asked = 0.0
        with Probe(watch_memory, daemon.pid) as memory:
            for with_flood in (False, True) * TURNS:
                with Probe(ask, to, clients, times, requests) if with_flood else nullcontext() as flood:
                    begin = time.monotonic()
                    time.sleep(seconds)
                    for probe in (publisher, pinger):
                        probe.wait_for_one_after(time.monotonic())
                    turns[with_flood].append((begin, time.monotonic()))
                asked += sum(flood.since(0.0)) if flood else 0
        time.sleep(seconds)
        left = resident(daemon.pid)
    took, waits = (
        {kind: [value for turn in turns[kind] for value in probe.since(*turn)] for kind in turns}
        for probe in (publisher, pinger)
    )
    rates = {kind: BATCH * len(took[kind]) / sum(end - begin for begin, end in turns[kind]) for kind in turns}
    own = {kind: BATCH / mean(took[kind]) for kind in turns}
    longest = 1000 * (max(waits[True]) - median(waits[False]))
    return [
        Figure("PUB/s alone", "/s", [rates[False]]),
        Figure("PUB/s left", "%", [100 * rates[True] / rates[False]]),
        Figure("PUB/s alone, by the daemon's time", "/s", [own[False]]),
        Figure("PUB/s left, by the daemon's time", "%", [100 * own[True] / own[False]], at_least=SHARE_LIMIT),
        Figure("longest wait", "ms", [longest], at_most=setting.limit),
        Figure("RSS, peak", "MB", [max(memory.since(0.0))], at_most=MEMORY_LIMIT),
        Figure("RSS, afterwards", "MB", [left]),
        Figure("requests", "", [asked]),
    ]


ATTACKS = (
    Attack("page: POST /login of 4 MiB", partial(measure, 8, None, [LOGIN + (b"token=" + b"%41" * BODY)[:BODY]])),
    Attack("page: 126 unfinished bodies", partial(measure, 126, 1, [LOGIN + bytes(BODY - 1)])),
    Attack("page: 8 viewers with the full token", partial(measure, 8, None, [VIEW.encode()])),
    Attack("page: 101 headers and bad versions", partial(measure, 1, None, BAD)),
)
