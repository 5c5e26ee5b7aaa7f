"""Nodes that answer /stats without end, registered at an nsqlookupd: the memory that they take from gnsqadmin and
the page, and whether these send them a token.

    python -m faults.attacks.hostile HOST:PORT COUNT        prints a line per request: time, 1 if it had a token

HOST:PORT is nsqlookupd's for nsqds.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

from faults.attacks.figures import MB, Attack, Figure, Memory, Setting, resident, running
from faults.attacks.floods import READ, token_files
from faults.attacks.stalls import Probe, say
from kit.daemons import DEADLINE, free_port, open_socket
from kit.lookupds import Lookupd, own_lookupd_command
from kit.nsq_client import sized

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
START = b'{"version":"1.3.0","health":"OK","start_time":1,"topics":['
COUNTS = {"depth": 1, "backend_depth": 0, "message_count": 1, "message_bytes": 1, "paused": False, "channels": []}
TOPICS = b"".join(json.dumps({"topic_name": f"t{number}", **COUNTS}).encode() + b"," for number in range(10_000))
MEMORY_LIMIT = 300.0  # MB
SETTLED = 5.0  # s


# The nodes


def serve(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def answer(connection: socket.socket) -> None:
    with connection:
        try:
            request = b""
            while b"\r\n\r\n" not in request:
                more = connection.recv(65536)
                if not more:
                    return
                request += more
            say(time.monotonic(), int(b"\nauthorization:" in request.lower()))
            if b" /stats" not in request.partition(b"\r\n")[0]:
                body = json.dumps({"version": "1.3.0", "http_port": 1, "tcp_port": 1}).encode()
                connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                return
            connection.sendall(HEAD + b"\r\n" + START)
            while True:
                connection.sendall(TOPICS)
        except OSError:
            pass


def register(lookupd: tuple[str, int], port: int) -> socket.socket:
    """As a node that listens on this port."""
    sock = open_socket(lookupd, DEADLINE)
    peer = {"broadcast_address": "127.0.0.1", "hostname": "h", "tcp_port": 1, "http_port": port, "version": "1.3.0"}
    sock.sendall(b"  V1IDENTIFY\n" + sized(json.dumps(peer).encode()) + b"REGISTER t0\n")
    while not sock.recv(4096).endswith(b"OK"):
        pass
    return sock


def main() -> None:
    host, _, port = sys.argv[1].rpartition(":")
    registered = []
    for _ in range(int(sys.argv[2])):
        listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        registered.append(register((host, int(port)), listener.getsockname()[1]))
    say(time.monotonic(), 0)
    threading.Event().wait()


# What they cost


def look_with_gnsqadmin(number: int, command: list[str], setting: Setting) -> list[Figure]:
    """By nsqlookupd, with a token."""
    *interpreter, program = command
    gnsqadmin = [*interpreter, program.removesuffix("gnsqd") + ("nsqadmin_cli" if interpreter else "gnsqadmin")]
    with tempfile.TemporaryDirectory() as directory, Lookupd(own_lookupd_command(), Path(directory)) as lookupd:
        token = token_files(Path(directory))[0].rpartition(":")[2]
        with Probe("hostile", lookupd.tcp_address, setting.scaled(number)) as nodes:
            flags = ["stats", f"--lookupd-http-address={lookupd.http_address}", f"--token-file={token}"]
            began = time.monotonic()
            process = subprocess.Popen([*gnsqadmin, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            _, _, usage = os.wait4(process.pid, 0)
            seconds = time.monotonic() - began
            time.sleep(0.2)  # what the nodes have received is printed
    return [
        Figure("seconds", seconds, "s"),
        Figure("RSS, peak", usage.ru_maxrss * 1024 / MB, "MB", at_most=MEMORY_LIMIT),
        *received(nodes),
    ]


def look_at_the_page(number: int, command: list[str], setting: Setting) -> list[Figure]:
    """With the read token, in the process of gnsqd."""
    page, tcp, http = (f"127.0.0.1:{free_port()}" for _ in range(3))
    addresses = {"admin-http": page, "embedded-lookupd-tcp": tcp, "embedded-lookupd-http": http}
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        flags = [*token_files(Path(directory)), *(f"--{name}-address={where}" for name, where in addresses.items())]
        daemon = stack.enter_context(running(command, *flags, topics=1))
        nodes = stack.enter_context(Probe("hostile", tcp, setting.scaled(number)))
        memory = Memory(daemon.pid)
        began = time.monotonic()
        for path in ("/topics", "/nodes", "/topics/t0"):
            connection = HTTPConnection(page, timeout=10 * DEADLINE)
            connection.request("GET", path, headers={"Authorization": f"Bearer {READ}"})
            connection.getresponse().read()
            connection.close()
        seconds = time.monotonic() - began
        time.sleep(setting.seconds(SETTLED))
        most, left = memory.stop(), resident(daemon.pid) / MB
    return [
        Figure("seconds", seconds, "s"),
        Figure("RSS, peak", most, "MB", at_most=MEMORY_LIMIT),
        Figure("RSS, afterwards", left, "MB", at_most=MEMORY_LIMIT),
        *received(nodes),
    ]


def received(nodes: Probe) -> list[Figure]:
    return [
        Figure("requests at the nodes", len(nodes.samples) - 1, "", at_least=1),
        Figure("of these with a token", sum(sample.value for sample in nodes.samples), "", at_most=0),
    ]


LOOKS: dict[str, Callable[[int, list[str], Setting], list[Figure]]] = {
    "gnsqadmin stats": look_with_gnsqadmin,
    "the page": look_at_the_page,
}
ATTACKS = tuple(
    Attack(f"{number} hostile nodes: {name}", partial(look, number))
    for name, look in LOOKS.items()
    for number in (10, 30)
)


if __name__ == "__main__":
    main()
