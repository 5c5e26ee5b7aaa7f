"""`bench`: that it measures what it says, loses nothing and leaves nothing behind."""

import signal
import subprocess
import threading
from collections.abc import Sequence
from itertools import pairwise

import pytest

from cli.gnsqadmin import FakeNode, Terminal, ctrl_c, document, end, failure, gnsqadmin, ok, rows, start
from cli.nodes import DOWN, Registered, address, at, topics
from kit.daemons import DEADLINE, Instance, eventually
from kit.traffic import DaemonFactory, create, post
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.commands.bench import BenchLoad, Histogram, Measurements
from nsqadmin_cli.http_client import Address, NodeClient, TLSSettings


def test_it_loses_nothing_and_leaves_nothing(nsqd: Instance) -> None:
    create(nsqd, "t", "c")
    measured = document("bench", "--duration=0.5", "--size=100", *at(nsqd))
    published = measured["published"]
    assert (measured["lost"], measured["redelivered"], measured["errors"]) == (0, 0, [])
    assert 0 < measured["received"] <= published == measured["delivery_latency"]["count"]
    assert published == measured["publish_latency"]["count"] * measured["batch"]
    assert published == sum(bar["count"] for bar in measured["histogram"])
    assert measured["topic"].endswith("#ephemeral")
    measured = document("bench", "--duration=1", "--rate=100", "--consumers=0", *at(nsqd))
    assert (measured["batch"], measured["rate"]) == (2, 100)
    assert 0 < measured["published"] <= 100 * (measured["seconds"] + 1)  # a slow machine publishes less, but none more
    assert (measured["received"], measured["lost"], measured["delivery_latency"]["p50"]) == (0, 0, None)
    assert topics(nsqd) == ["t"]


@pytest.mark.peer
def test_all_nodes_are_loaded_and_ctrl_c_leaves_no_topic_at_nsqlookupd(cluster: Registered) -> None:
    measured = document("bench", "--duration=0.5", "--batch=10", "--durable", cluster.flag)
    assert sorted(measured["nodes"]) == sorted(map(address, cluster.nodes))
    assert "#" not in measured["topic"]
    assert (measured["publishers"], measured["consumers"], measured["lost"]) == (2, 2, 0)
    for daemon in cluster.nodes:
        assert daemon.log().count("POST /channel/create?topic=gnsqadmin-bench-") == 1
        assert topics(daemon) == []

    def listed() -> list[str]:
        names: list[str] = cluster.lookupd.ask("GET", "/topics")[1]["topics"]
        return names

    with start("bench", "--duration=600", "--durable", cluster.flag) as process:
        eventually(lambda: topics(cluster.nodes[1]) and listed(), "the topic is registered")
        code, out, err = ctrl_c(process)
    assert (code, out, err.strip(), topics(cluster.nodes[1])) == (130, "", "", [])
    eventually(lambda: not listed(), "the topic is deleted")


def test_people_get_a_histogram_and_programs_rows(nsqd_factory: DaemonFactory) -> None:
    """Measures a node with little memory, which loses messages."""
    flags = ("--duration=0.3", *at(nsqd_factory("--mem-queue-size=1")))
    out = ok("bench", "--batch=500", *flags)
    assert "1 node, 2 publishers, 2 consumers" in out
    assert "200 B each, 500 per request, as fast as possible" in out
    assert "█" * 36 in out  # the tallest, or several of the same height
    assert "messages lost: its --mem-queue-size is smaller than --window, or it failed." in out
    table = rows("bench", *flags)
    assert [row["what"] for row in table] == ["published", "delivered"]
    assert int(table[0]["messages"]) > 0  # a slow machine receives the rest afterwards
    assert all(float(row["p50"]) <= float(row["p99"]) for row in table)
    with Terminal(100, 40, "bench", *flags) as terminal:
        terminal.wait_for("load for 0.3 s", "published", "received")
        terminal.wait_for("Latency from publishing")
        assert terminal.end() == 0


def loading(*flags: str, nodes: list[Instance]) -> "subprocess.Popen[bytes]":
    """Starts a long run, and waits until it has published to all nodes."""
    process = start("bench", "--duration=600", *flags, *at(*nodes))
    for node in nodes:
        eventually(lambda node=node: topics(node) and node.stats()["topics"][0]["message_count"], "messages")  # type: ignore[misc]
    return process


def test_ctrl_c_deletes_the_topic_at_other_nodes_while_one_hangs(nsqd_factory: DaemonFactory) -> None:
    hanging, well = nsqd_factory(), nsqd_factory()
    with loading("--durable", f"--timeout={DEADLINE}", nodes=[hanging, well]) as process:
        hanging.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        eventually(lambda: topics(well) == [], "the topic is deleted")
        assert process.poll() is None
        assert ctrl_c(process).code == 130
    assert topics(well) == []


def test_ctrl_c_names_a_node_where_the_topic_may_be_left(nsqd: Instance) -> None:
    with loading("--timeout=2", nodes=[nsqd]) as process:
        [name] = topics(nsqd)
        nsqd.send_signal(signal.SIGSTOP)
        err = ctrl_c(process).err
    reason = "no complete answer within 2 s"
    assert f"Warning: nsqd at {address(nsqd)}: {reason}; the topic {name} may still exist there\n" in err


class SlowNode(Nsqd):
    """Notes what it did, and does what is slow when a test lets it go on."""

    def __init__(self, slow: str) -> None:
        super().__init__(Address("slow.example", 4151), NodeClient(DEADLINE))
        self.asked = threading.Event()
        self.go_on = threading.Event()
        self.done: list[str] = []
        self._slow = slow

    def act(self, action: str, topic: str, channel: str = "") -> None:
        self._do(f"{action} topic")

    def publish(self, topic: str, bodies: Sequence[bytes], *, defer_ms: int = 0) -> None:
        self._do("publish")

    def _do(self, what: str) -> None:
        if what == self._slow:
            self.asked.set()
            assert self.go_on.wait(DEADLINE)
        self.done.append(what)


@pytest.mark.parametrize("interrupted", ["while it creates the topic", "while it looks", "while its thread starts"])
def test_the_topic_is_deleted_after_the_last_request(monkeypatch: pytest.MonkeyPatch, interrupted: str) -> None:
    done = ["create topic", *(["publish"] if interrupted != "while it creates the topic" else [])]
    node, testing = SlowNode(done[-1]), threading.get_ident()
    load = BenchLoad([node], "t", "c", 600, 8, 2, 1, 0, 2, DEADLINE, TLSSettings())

    def interrupt(so_far: Measurements | None = None) -> None:
        assert node.asked.wait(DEADLINE)
        signal.pthread_kill(testing, signal.SIGINT)

    class Interrupted(threading.Thread):
        def start(self) -> None:
            super().start()
            interrupt()

    def run() -> None:
        if interrupted == "while it creates the topic":
            threading.Thread(target=interrupt).start()
        load.connect()
        if interrupted == "while its thread starts":
            patched.setattr("nsqadmin_cli.commands.bench.threading.Thread", Interrupted)
        load.run(interrupt)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        run()
    threading.Timer(0.2, node.go_on.set).start()
    load.close()
    assert node.done == [*done, "delete topic"]


def test_a_node_that_refuses_or_dies_is_one_line_of_error(gnsqd: Instance, nsqd: Instance) -> None:
    assert failure("bench", *at(DOWN)) == f"nsqd at {DOWN}: connection refused"
    with FakeNode(hangs=True) as hanging:
        code, _, err = gnsqadmin("bench", "--timeout=0.3", *at(hanging))
    warning, error = err.splitlines()
    reason = f"nsqd at {hanging.address}: no complete answer within 0.3 s"
    assert (code, error) == (1, f"Error: {reason}")
    assert warning.startswith(f"Warning: {reason}; the topic ")
    create(gnsqd, "t", "c")
    post(gnsqd, "/pub?topic=t", b"x")  # or the drain would end at once
    post(gnsqd, "/drain")
    code, _, err = gnsqadmin("bench", "--duration=60", *at(gnsqd))
    assert f"Error: nsqd at {address(gnsqd)}: answered HTTP 503 (DRAINING)\n" in err
    assert (code, topics(gnsqd)) == (1, ["t"])
    with loading("--timeout=2", nodes=[nsqd]) as process:
        nsqd.kill()
        code, _, err = end(process)
    assert code == 1
    assert "Traceback" not in err
    assert err.startswith(f"Error: nsqd at {address(nsqd)}: ")


def test_quantiles_are_right_to_a_few_percent_and_bars_have_round_ends_and_no_gaps() -> None:
    histogram = Histogram()
    for microseconds in range(1, 10_001):
        histogram.add(microseconds * 1000)
    for part in (0.5, 0.9, 0.99, 0.999):
        assert abs(histogram.quantile(part) / (part * 1e-2) - 1) < 0.03
    assert histogram.quantile(1.0) <= 1e-2
    assert abs(histogram.mean - 5.0005e-3) < 1e-9
    assert Histogram().quantile(0.5) == 0.0
    histogram = Histogram()
    for nanoseconds, count in ((30_000, 1), (700, 2), (10**15, 1)):
        histogram.add(nanoseconds, count)
    bars = list(histogram.bars())
    ends = [0.0, 1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5]
    assert [(bar.least, bar.most) for bar in bars[:6]] == list(pairwise(ends))
    assert [bar.count for bar in [*bars[:6], bars[-1]]] == [2, 0, 0, 0, 0, 1, 1]
    assert all(one.most == other.least for one, other in pairwise(bars))
