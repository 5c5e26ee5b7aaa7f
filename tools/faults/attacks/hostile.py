"""Nodes that answer /stats without end, registered at an nsqlookupd: the memory that they take from gnsqadmin and
the page, and whether these send them a token."""

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from faults.attacks.figures import PAGE, Attack, Figure, Setting, look_at_page, running
from faults.attacks.floods import READ, token_flags
from faults.attacks.probes import Probe, Sampler, resident, watch_memory
from kit.daemons import free_port
from kit.lookupds import EMBEDDED, IDENTITY, LookupdInside, Registrant, RunningLookupd, own_lookupd_command

START = b'{"version":"1.3.0","health":"OK","start_time":1,"topics":['
COUNTS = {"depth": 1, "backend_depth": 0, "message_count": 1, "message_bytes": 1, "paused": False, "channels": []}
TOPICS = b"".join(json.dumps({"topic_name": f"t{number}", **COUNTS}).encode() + b"," for number in range(10_000))
INFO = json.dumps({"version": "1.3.0", "http_port": 1, "tcp_port": 1}).encode()
MEMORY_LIMIT = 300.0  # MB
SETTLED = 5.0  # s


def serve(sample: Sampler, ports: list[int]) -> None:
    """Samples each request: 1 if it had a token."""

    class Node(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sample(time.monotonic(), "Authorization" in self.headers)
            endless = self.path.startswith("/stats")
            with suppress(OSError):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(START if endless else INFO)
                while endless:
                    self.wfile.write(TOPICS)

        def log_message(self, *_: object) -> None:
            pass

    for port in ports:
        threading.Thread(target=ThreadingHTTPServer(("127.0.0.1", port), Node).serve_forever).start()
    sample(time.monotonic(), 0)


@contextmanager
def registered(lookupd: RunningLookupd, number: int) -> Iterator[Probe]:
    ports = [free_port() for _ in range(number)]
    with Probe(serve, ports) as nodes, ExitStack() as stack:
        for port in ports:
            identity = IDENTITY | {"broadcast_address": "127.0.0.1", "http_port": port}
            stack.enter_context(Registrant(lookupd, identity)).register("t0")
        yield nodes
        time.sleep(0.2)  # what the nodes have received arrives here


def figures(seconds: float, peak: float, nodes: Probe) -> list[Figure]:
    requests = nodes.since(0.0)[1:]
    return [
        Figure("seconds", "s", [seconds]),
        Figure("RSS, peak", "MB", [peak], at_most=MEMORY_LIMIT),
        Figure("requests at the nodes", "", [len(requests)], at_least=1),
        Figure("of these with a token", "", [sum(requests)], at_most=0),
    ]


def look_with_gnsqadmin(number: int, command: list[str], setting: Setting) -> list[Figure]:
    """Asks by nsqlookupd, with a token."""
    *interpreter, program = command
    gnsqadmin = [*interpreter, program.removesuffix("gnsqd") + ("nsqadmin_cli" if interpreter else "gnsqadmin")]
    with tempfile.TemporaryDirectory() as directory, RunningLookupd(own_lookupd_command(), Path(directory)) as lookupd:
        token = token_flags(Path(directory))[0].rpartition(":")[2]
        with registered(lookupd, setting.scaled(number)) as nodes:
            flags = ["stats", f"--lookupd-http-address={lookupd.http_address}", f"--token-file={token}"]
            began = time.monotonic()
            process = subprocess.Popen([*gnsqadmin, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            _, _, usage = os.wait4(process.pid, 0)
            seconds = time.monotonic() - began
    return figures(seconds, usage.ru_maxrss * 1024 / 1e6, nodes)


def look_at_the_page(number: int, command: list[str], setting: Setting) -> list[Figure]:
    """Asks with the read token, in the process of gnsqd."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        flags = (PAGE, *EMBEDDED, *token_flags(Path(directory)))
        daemon = stack.enter_context(running(command, *flags, topics=1, channels=0))
        nodes = stack.enter_context(registered(LookupdInside(daemon), setting.scaled(number)))
        memory = stack.enter_context(Probe(watch_memory, daemon.pid))
        began = time.monotonic()
        for path in ("/topics", "/nodes", "/topics/t0"):
            look_at_page(daemon, path, READ)
        seconds = time.monotonic() - began
        time.sleep(setting.seconds(SETTLED))
        left = Figure("RSS, afterwards", "MB", [resident(daemon.pid)], at_most=MEMORY_LIMIT)
    return [*figures(seconds, max(memory.since(0.0)), nodes), left]


ATTACKS = tuple(
    Attack(f"{number} hostile nodes: {name}", partial(look, number))
    for name, look in (("gnsqadmin stats", look_with_gnsqadmin), ("the page", look_at_the_page))
    for number in (10, 30)
)
