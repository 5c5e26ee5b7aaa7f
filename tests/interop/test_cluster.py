"""Several daemons behind two nsqlookupds: whoever looks a topic up gets all of it, whatever dies and comes back."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from interop.cluster import Program, port
from kit.daemons import DEADLINE, Instance, eventually, fixed_ports, own_command
from kit.handover import REAL, nothing_left
from kit.lookupds import RunningLookupd
from kit.peer_program import PeerProgram
from kit.traffic import DaemonFactory, create, post

pytestmark = pytest.mark.peer

HERE = Path(__file__).parent
PING_INTERVAL = 15.0  # seconds, of the real nsqd

MakeLookupd = Callable[[], RunningLookupd]


class NodesAndLookupds(NamedTuple):
    lookupds: list[RunningLookupd]
    nodes: list[Instance]


@pytest.fixture
def cluster(gnsqd_factory: DaemonFactory, start_lookupd: Callable[[], RunningLookupd]) -> NodesAndLookupds:
    lookupds = [start_lookupd() for _ in range(2)]
    flags = [lookupd.flag for lookupd in lookupds]
    nodes = [gnsqd_factory("--broadcast-address=127.0.0.1", *flags, *fixed_ports()) for _ in range(3)]
    eventually(lambda: [len(lookupd.producers()) for lookupd in lookupds] == [3, 3])
    return NodesAndLookupds(lookupds, nodes)


def are_found(cluster: NodesAndLookupds, topic: str, *nodes: Instance) -> None:
    """Waits until every nsqlookupd sends consumers of the topic to those nodes."""
    ports = {port(node) for node in nodes}
    eventually(lambda: all(lookupd.found(topic) == ports for lookupd in cluster.lookupds), f"{ports} found")


# Consumers

TOPIC = "orders"
COPIES = "copies"
CHANNELS = ("pynsq", "gnsq", "nsqjs", "tail", "file", "copy")
LINES = 50  # of each publisher, each time


@pytest.fixture
def consumers(
    cluster: NodesAndLookupds, peer_binary: Callable[[str], Path], nsqjs: Path, tmp_path: Path
) -> Iterator[dict[str, Callable[[], list[str]]]]:
    """Starts a consumer of each channel of TOPIC, which looks it up, and returns functions for all that it got so far.

    The consumer of `copy` puts what it gets into another topic, which is consumed in turn.
    """
    lookupds = [lookupd.http_address for lookupd in cluster.lookupds]
    flags = ["--consumer-opt=lookupd_poll_interval,200ms"]
    flags += [f"--lookupd-http-address={address}" for address in lookupds]
    to_file = ["--filename-format=<TOPIC>", f"--output-dir={tmp_path}/archive", "--sync-interval=100ms"]
    (tmp_path / "archive").mkdir()
    destination = "--destination-nsqd-tcp-address={}:{}".format(*cluster.nodes[0].tcp_address)

    def program(name: str, *arguments: str) -> list[str]:
        return [str(peer_binary(name)), *arguments, *flags]

    argv = {
        "pynsq": [sys.executable, str(HERE / "pynsq_consumer.py"), TOPIC, "pynsq", *lookupds],
        "gnsq": [sys.executable, str(HERE / "gnsq_consumer.py"), TOPIC, "gnsq", *lookupds],
        "nsqjs": ["node", str(nsqjs / "consumer.js"), TOPIC, "nsqjs", *lookupds],
        "tail": program("nsq_tail", f"--topic={TOPIC}", "--channel=tail"),
        "file": program("nsq_to_file", f"--topic={TOPIC}", "--channel=file", *to_file),
        "copier": program(
            "nsq_to_nsq", f"--topic={TOPIC}", "--channel=copy", f"--destination-topic={COPIES}", destination
        ),
        "copy": program("nsq_tail", f"--topic={COPIES}", "--channel=tail"),
    }
    with ExitStack() as stack:
        programs = {name: stack.enter_context(Program(command, tmp_path / name)) for name, command in argv.items()}
        got = {name: programs[name].lines for name in CHANNELS}
        archive = tmp_path / "archive" / TOPIC
        got["file"] = lambda: archive.read_text().split("\n")[:-1] if archive.exists() else []
        yield got


def publish(binary: Path, node: Instance, prefix: str) -> list[str]:
    lines = [f"{prefix}-{number}" for number in range(LINES)]
    command = [str(binary), f"--topic={TOPIC}", "--nsqd-tcp-address={}:{}".format(*node.tcp_address)]
    done = subprocess.run(command, input="\n".join(lines) + "\n", text=True, capture_output=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    return lines


def test_everybody_who_looks_a_topic_up_gets_all_of_it(
    cluster: NodesAndLookupds, consumers: dict[str, Callable[[], list[str]]], peer_binary: Callable[[str], Path]
) -> None:
    for lookupd, channels in zip(cluster.lookupds, (CHANNELS[::2], CHANNELS[1::2]), strict=True):
        for channel in channels:  # so that a new topic has them before any consumer comes
            lookupd.ask(f"/channel/create?topic={TOPIC}&channel={channel}", "POST")
    cluster.lookupds[0].ask(f"/channel/create?topic={COPIES}&channel=tail", "POST")
    to_nsq, published = peer_binary("to_nsq"), Counter[str]()

    def everybody_has_everything() -> None:
        for name, got in consumers.items():
            eventually(lambda got=got: Counter(got()) == published, f"{name} has everything")  # type: ignore[misc]
        for node in cluster.nodes:
            nothing_left(node)

    last = cluster.nodes[-1]
    for number, command in enumerate((own_command(), REAL, own_command())):
        if number:
            last.terminate()
            are_found(cluster, TOPIC, *cluster.nodes[:-1])
            last.command = command
            last.restart()
            are_found(cluster, TOPIC, *cluster.nodes)
        for index, node in enumerate(cluster.nodes):
            published.update(publish(to_nsq, node, f"{number}-{index}"))
        everybody_has_everything()
    assert published.total() == 9 * LINES


# What heals


def test_whoever_dies_is_found_again_within_an_interval_of_heartbeats(
    gnsqd_factory: DaemonFactory, make_lookupd: MakeLookupd, tmp_path: Path
) -> None:
    # Nothing happens in the daemons meanwhile that they would report. Either one nsqlookupd or the other is the
    # first to be there, and so is either daemon that dies.
    late, killed = make_lookupd(), make_lookupd().start()
    flags = ["--broadcast-address=127.0.0.1", late.flag, killed.flag]
    nodes = [gnsqd_factory(*flags, *fixed_ports()) for _ in range(3)]
    with Instance(REAL, tmp_path / "nsqd", *flags) as real:
        for node in (*nodes, real):
            create(node, "t", "c")
        everybody = {port(node) for node in (*nodes, real)}
        eventually(lambda: killed.having("t", "c") == everybody, "registered")
        steady, before, after = nodes
        killed.kill()
        before.kill()
        before.restart()
        after.kill()
        for lookupd in (late, killed):
            lookupd.start()
        started = time.monotonic()
        after.restart()
        ports = {port(node) for node in nodes}
        eventually(lambda: all(lookupd.found("t") >= ports for lookupd in (late, killed)), "found")
        assert time.monotonic() - started < PING_INTERVAL + 5  # the real one needs up to two intervals
        eventually(lambda: all(lookupd.having("t", "c") >= ports for lookupd in (late, killed)), "channels")
        error = f"ERROR: LOOKUPD({killed.tcp_address}): PING - "
        eventually(lambda: error in real.log())
        assert error in steady.log()


# nsqadmin


@pytest.fixture
def admin(cluster: NodesAndLookupds, peer_binary: Callable[[str], Path], tmp_path: Path) -> Iterator[PeerProgram]:
    flags = [f"--lookupd-http-address={lookupd.http_address}" for lookupd in cluster.lookupds]
    with PeerProgram(peer_binary("nsqadmin"), tmp_path / "admin", "--http-address=127.0.0.1:0", *flags) as program:
        yield program


def test_tombstoned_node_is_found_again_once_it_registers_again(cluster: NodesAndLookupds, admin: PeerProgram) -> None:
    for node in cluster.nodes:
        create(node, "t")
    are_found(cluster, "t", *cluster.nodes)
    gone, *others = cluster.nodes
    name = f"127.0.0.1:{gone.http_address[1]}"

    assert admin.ask("DELETE", f"/api/nodes/{name}", topic="t")[0] == 200  # tombstones it, and deletes the topic there
    assert gone.stats()["topics"] == []
    are_found(cluster, "t", *others)
    post(gone, "/pub?topic=t", b"x")
    are_found(cluster, "t", *cluster.nodes)

    for lookupd in cluster.lookupds:
        lookupd.ask(f"/topic/tombstone?topic=t&node={name}", "POST")
    are_found(cluster, "t", *others)
    for lookupd in cluster.lookupds:
        tombstones = {producer["tcp_port"]: producer["tombstones"] for producer in lookupd.producers()}
        assert tombstones == {port(node): [node is gone] for node in cluster.nodes}
    gone.restart()
    are_found(cluster, "t", *cluster.nodes)
