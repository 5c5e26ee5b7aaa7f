"""The load generator counts what the daemon counts.

Expected counts come from the statistics of the daemon, ours or the real one, in the same run.
"""

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kit.certificates import issue
from kit.daemons import DEADLINE, PEERS, Instance, eventually
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create

pytestmark = pytest.mark.peer

LOAD = str(PEERS / "load")


@pytest.fixture(autouse=True)
def built(peer_binary: Callable[[str], Path]) -> None:
    peer_binary("load")


def command(daemon: Instance, line: str) -> list[str]:
    """Returns the words of a command; `line` is a mode and flags, {http} in it the address for HTTP."""
    mode, *flags = line.format(http="{}:{}".format(*daemon.http_address)).split()
    return [LOAD, mode, "-tcp={}:{}".format(*daemon.tcp_address), "-topic=t", "-for=100ms", *flags]


def run(daemon: Instance, line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(daemon, line), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=2 * DEADLINE
    )


def generate(daemon: Instance, line: str) -> dict[str, Any]:
    """Returns what it prints at its end; it publishes for a tenth of a second, unless a flag differs."""
    done = run(daemon, line)
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


@contextlib.contextmanager
def holding(daemon: Instance, flags: str) -> Iterator[subprocess.Popen[str]]:
    """Keeps its input open, so that it stays connected until the end of the block."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command(daemon, f"hold {flags}"), stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        yield process
        process.communicate(timeout=DEADLINE)


def message_count(daemon: Instance) -> int:
    count: int = daemon.stats("t")["topics"][0]["message_count"]
    return count


@pytest.mark.parametrize(
    "flags", ["-window=50", "-batch=20", "-batch=20 -window=3", "-size=20", "-http={http}", "-http={http} -batch=20"]
)
def test_published_messages_are_the_ones_that_the_daemon_counts(nsqd: Instance, flags: str) -> None:
    loaded = generate(nsqd, f"move -publishers=2 {flags}")
    assert loaded["published"] == message_count(nsqd) > 0
    assert loaded["published"] % (20 if "-batch=20" in flags else 1) == 0
    assert loaded["seconds"] >= 0.1
    assert loaded["cpu_seconds"] > 0
    assert loaded["consumed"] == 0


def test_a_count_is_kept_by_all_publishers_together(nsqd: Instance) -> None:
    loaded = generate(nsqd, "move -for=30s -publishers=3 -batch=20 -window=5 -count=1000")
    assert loaded["published"] == message_count(nsqd) == 1000


def test_everything_that_was_published_is_finished_on_every_channel(nsqd: Instance) -> None:
    loaded = generate(nsqd, "move -channel=c -channels=2 -publishers=2 -batch=20 -consumers=4 -rdy=10")
    assert loaded["published"] == message_count(nsqd)
    assert 2 * loaded["published"] - 2 * 10 * 4 <= loaded["consumed"] <= 2 * loaded["published"]
    for channel in ("c0", "c1"):
        stats = nsqd.channel_stats("t", channel)
        assert (stats["message_count"], stats["depth"]) == (loaded["published"], 0)
        assert stats["requeue_count"] == stats["timeout_count"] == 0


def test_a_consumer_leaves_what_is_beyond_its_count(nsqd: Instance) -> None:
    create(nsqd, "t", "c")
    generate(nsqd, "move -for=30s -publishers=1 -batch=20 -count=2000")
    loaded = generate(nsqd, "move -for=30s -channel=c -consumers=1 -rdy=10 -count=1000")
    assert 1000 <= loaded["consumed"] < 2000
    assert loaded["published"] == 0


def test_topics_are_published_to_in_turn(nsqd: Instance) -> None:
    generate(nsqd, "move -for=30s -publishers=1 -topics=300 -count=600")
    counts = {topic["topic_name"]: topic["message_count"] for topic in nsqd.stats()["topics"]}
    assert counts == {f"t{number}": 2 for number in range(300)}


@pytest.mark.parametrize("upgrade", ["tls", "deflate", "snappy", "tls -snappy"])
def test_connections_are_upgraded(nsqd_factory: DaemonFactory, tmp_path: Path, upgrade: str) -> None:
    cert, key = issue("localhost").write(tmp_path / "server")
    nsqd = nsqd_factory(f"--tls-cert={cert}", f"--tls-key={key}")
    loaded = generate(nsqd, f"move -channel=c -publishers=1 -batch=20 -consumers=1 -{upgrade}")
    assert loaded["published"] == message_count(nsqd) > 0
    with holding(nsqd, f"-channel=c -consumers=1 -{upgrade}"):
        (client,) = eventually(lambda: nsqd.channel_stats("t", "c").get("clients"), "a client")
    assert [name for name in ("tls", "deflate", "snappy") if client[name]] == upgrade.split(" -")


def test_held_connections_answer_heartbeats(nsqd: Instance) -> None:
    create(nsqd, "t", "c")
    with holding(nsqd, "-channel=c -consumers=2 -rdy=10 -heartbeat=1s") as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        assert nsqd.channel_stats("t", "c")["client_count"] == 2
        with NSQClient(nsqd.tcp_address) as silent:
            silent.identify(heartbeat_interval=1000)
            silent.recv_until_closed()
        assert nsqd.channel_stats("t", "c")["client_count"] == 2


def test_single_messages_are_timed(nsqd: Instance) -> None:
    create(nsqd, "t", "c")
    loaded = generate(nsqd, "trip -for=200ms -rate=200")
    assert 0 < loaded["p50"] <= loaded["p99"] <= loaded["longest"] <= loaded["seconds"]
    assert loaded["published"] == message_count(nsqd) == 40


def test_a_pause_shows_in_the_times_of_all_messages_that_were_due_meanwhile(nsqd: Instance) -> None:
    create(nsqd, "t", "c")

    def pause() -> None:
        eventually(lambda: message_count(nsqd) > 20)
        nsqd.send_signal(signal.SIGSTOP)
        time.sleep(0.4)
        nsqd.send_signal(signal.SIGCONT)

    with ThreadPoolExecutor(1) as pool:
        paused = pool.submit(pause)
        loaded = generate(nsqd, "trip -for=1200ms -rate=200")
        paused.result()
    assert loaded["published"] == 240
    # A third of them; only one would be late if each waited for the answer before.
    assert 0.2 < loaded["p99"] <= loaded["longest"]


@pytest.mark.parametrize(
    "line, complaint",
    [
        ("move -topic=no$ -publishers=1", "E_BAD_TOPIC"),
        ("move -tls -publishers=1", "the daemon does not give tls_v1"),
        ("move", "neither -publishers nor -consumers"),
        ("move -rdy=0 -consumers=1", "-rdy 0 is less than 1"),
        ("move -tcp=127.0.0.1:1 -publishers=1", "connection refused"),
        ("trip extra", 'what is "extra"?'),
        ("hold -channel=no$ -consumers=1", "E_BAD_CHANNEL"),
    ],
)
def test_what_cannot_be_is_reported_in_one_line(nsqd: Instance, line: str, complaint: str) -> None:
    done = run(nsqd, line)
    assert (done.returncode, done.stdout) == (1, "")
    (printed,) = done.stderr.splitlines()
    assert printed.startswith("load: ")
    assert complaint in printed


def test_a_daemon_that_goes_away_is_an_error(nsqd: Instance) -> None:
    with holding(nsqd, "-consumers=1") as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        nsqd.kill()
        assert process.wait(DEADLINE) == 1  # its input is still open
