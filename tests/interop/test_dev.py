"""`gnsqd --dev` in a container, with clients in another container and on the host: network namespaces instead of both.

    host  127.0.0.1 - a relay, as with docker's -p -  10.99.1.2 \\
                                                                  gnsqd --dev
    container                                         10.99.2.2 /

The two sides know gnsqd by different addresses; no option of gnsqd or of a client concerns them.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from interop.cluster import Program
from kit.daemons import DEADLINE, eventually, own_command

pytestmark = [pytest.mark.peer, pytest.mark.slow]

HERE = Path(__file__).parent
TOPIC = "orders"
PORTS = ("4150", "4151", "4161")
ADDRESSES = {"host": "127.0.0.1", "container": "10.99.2.2"}  # of gnsqd
SECONDS = 1.0  # from the answer to the publisher until all have it; less than 0.3 also with a load of 17 on two cores


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=DEADLINE)


class Network:
    """Three namespaces; `command(name, argv)` runs in one."""

    def __init__(self) -> None:
        self._names = {name: f"gnsqd-{os.getpid()}-{name}" for name in ("gnsqd", *ADDRESSES)}

    def create(self) -> None:
        for name in self._names.values():
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        server = self._names["gnsqd"]
        for number, side in enumerate(ADDRESSES, 1):
            end = ["peer", "name", f"veth{number}", "netns", server]
            ip("-n", self._names[side], "link", "add", "veth0", "type", "veth", *end)
            for name, device, address in ((self._names[side], "veth0", 1), (server, f"veth{number}", 2)):
                ip("-n", name, "address", "add", f"10.99.{number}.{address}/24", "dev", device)
                ip("-n", name, "link", "set", device, "up")

    def delete(self) -> None:
        for name in self._names.values():
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=DEADLINE)

    def command(self, name: str, argv: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self._names[name], *argv]


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    try:
        network.create()
        yield network
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces can be made here: {error}")
    finally:
        network.delete()


def test_consumers_inside_and_outside_get_everything_and_the_first_message_at_once(
    network: Network, peer_binary: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pynsq and nsq_tail as they are by default: they look up when they start, and once a minute after that."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # for the data of gnsqd, which is killed
    with ExitStack() as stack:

        def run(where: str, name: str, *argv: str) -> Program:
            program = stack.enter_context(Program(network.command(where, [*argv]), tmp_path / f"{where}-{name}"))
            programs.append(program)
            return program

        programs: list[Program] = []
        run("gnsqd", "gnsqd", *own_command(), "--dev")
        log = tmp_path / "gnsqd-gnsqd" / "stderr"
        eventually(lambda: "INFO: DEV: " in log.read_text())
        relay = run("host", "relay", sys.executable, str(HERE / "relay.py"), *PORTS, "10.99.1.2")
        eventually(relay.lines)
        consumers = []
        for side, address in ADDRESSES.items():
            lookupd = f"{address}:4161"
            tail = [str(peer_binary("nsq_tail")), f"--topic={TOPIC}", f"--channel={side}-tail"]
            consumers.append(run(side, "tail", *tail, f"--lookupd-http-address={lookupd}"))
            pynsq = [sys.executable, str(HERE / "pynsq_consumer.py"), "--by-default"]
            consumers.append(run(side, "pynsq", *pynsq, TOPIC, f"{side}-pynsq", lookupd))
        for side in ADDRESSES:
            for kind in ("tail", "pynsq"):
                eventually(lambda name=f"{side}-{kind}": f"TOPIC({TOPIC}): new channel({name})" in log.read_text())  # type: ignore[misc]

        def lookups() -> int:
            return len(re.findall(rf" 200 GET /lookup\?topic={TOPIC}", log.read_text()))

        assert lookups() == len(consumers)
        published: list[str] = []
        for side, address in ADDRESSES.items():
            published.append(f"from {side}")
            to_nsq = [str(peer_binary("to_nsq")), f"--topic={TOPIC}", f"--nsqd-tcp-address={address}:4150"]
            started = time.monotonic()
            subprocess.run(
                network.command(side, to_nsq), input=f"{published[-1]}\n", text=True, check=True, timeout=DEADLINE
            )
            answered = time.monotonic()
            for consumer in consumers:
                eventually(lambda one=consumer: one.lines() == published, f"{published} consumed")  # type: ignore[misc]
            received = time.monotonic()
            sys.stdout.write(f"from {side}: {received - started:.2f} s after the start of the publisher\n")
            assert received - answered < SECONDS
        assert lookups() == len(consumers)  # so none of them has waited for its next one
