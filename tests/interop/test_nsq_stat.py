"""The real nsq_stat prints the same rows of gnsqd as of the real nsqd with the same traffic."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit.daemons import DEADLINE, Instance, eventually, own_command
from kit.nsq_client import NSQClient
from kit.peer_program import start_nsqlookupd
from kit.traffic import publish, wait_for

pytestmark = pytest.mark.peer

HEADER = [
    "------rate------+----------------depth----------------+--------------metadata---------------",
    "ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients",
]
Stat = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def stat(peer_binary: Callable[[str], Path]) -> Stat:
    def run(*flags: str) -> subprocess.CompletedProcess[str]:
        argv = [str(peer_binary("nsq_stat")), "--interval=100ms", "--count=3", *flags]
        return subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE, check=False)

    return run


@pytest.fixture
def busy(peer_binary: Callable[[str], Path], tmp_path: Path) -> Iterator[list[tuple[Instance, str]]]:
    """Ours and the real one with the same messages in all states, each with the flag that finds it by nsqlookupd."""
    found = []
    with ExitStack() as stack:
        for name, command in (("gnsqd", own_command()), ("nsqd", [str(peer_binary("nsqd"))])):
            lookupd = stack.enter_context(start_nsqlookupd(peer_binary("nsqlookupd"), tmp_path / f"{name}-lookupd"))
            flags = ["--broadcast-address=127.0.0.1", f"--lookupd-tcp-address={lookupd.address['TCP']}"]
            nsqd = stack.enter_context(Instance(command, tmp_path / name, "--mem-queue-size=2", *flags))
            occupy(nsqd, stack)
            eventually(lambda lookupd=lookupd: "channel:t:c" in lookupd.ask("GET", "/debug")[1])  # type: ignore[misc]
            found.append((nsqd, f"--lookupd-http-address={lookupd.address['HTTP']}"))
        yield found


def occupy(nsqd: Instance, clients: ExitStack) -> None:
    consumer = clients.enter_context(NSQClient(nsqd.tcp_address))
    consumer.identify(output_buffer_timeout=25)
    consumer.subscribe("t", "c", rdy=2)
    publish(nsqd, "t", *[b"x"] * 4)
    finished, requeued = consumer.message(), consumer.message()
    consumer.command(b"FIN " + finished.id)
    consumer.command(b"REQ " + requeued.id + b" 60000")
    consumer.message(), consumer.message()
    publish(nsqd, "t", *[b"x"] * 5)
    wait_for(nsqd, "t", "c", backend_depth=3)


def address(nsqd: Instance) -> str:
    return f"--nsqd-http-address=127.0.0.1:{nsqd.http_address[1]}"


def test_rows_are_the_same(busy: list[tuple[Instance, str]], stat: Stat) -> None:
    row = "      0       0 |       5       2       3     2     1 |       1       0            9       1"
    for nsqd, lookupd in busy:
        for flag in (address(nsqd), lookupd):
            done = stat("--topic=t", "--channel=c", flag)
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.splitlines() == [*HEADER, row, row, row]


def test_what_is_not_there_is_complained_of_alike(busy: list[tuple[Instance, str]], stat: Stat) -> None:
    for topic, channel in (("t", "nope"), ("nope", "c"), ("$", "c")):
        for column in (0, 1):
            flags = [address(each[0]) if column == 0 else each[1] for each in busy]
            ours, real = (stat(f"--topic={topic}", f"--channel={channel}", flag) for flag in flags)
            assert ours.returncode == real.returncode == 1
            assert ours.stderr.partition("ERROR: ")[2] == real.stderr.partition("ERROR: ")[2] != ""
