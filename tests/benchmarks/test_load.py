"""The load generator counts what the daemon counts, and servers that do no work keep to the protocol.

Expected counts come from the statistics of the daemon, ours or the real one, in the same run.
"""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lanes import GEVENT_ALONE, BenchmarkError, Lane
from benchmarks.programs import GENERATOR, check, generate, generator, holding, on_channel, parse, started
from benchmarks.queues import CHANNEL, TOPIC, create_channel, topic_stats
from kit.certificates import issue
from kit.daemons import DEADLINE, Daemon, eventually, free_port
from kit.nsq_client import Client

pytestmark = pytest.mark.peer

SINK = Lane("sink", (str(GENERATOR), "sink"))


@pytest.fixture(autouse=True)
def built(peer_binary: Callable[[str], Path]) -> None:
    peer_binary(GENERATOR.name)


@pytest.fixture
def sink() -> Iterator[Daemon]:
    with SINK.running() as daemon:
        yield daemon


def message_count(daemon: Daemon) -> int:
    count: int = daemon.stats(TOPIC)["topics"][0]["message_count"]
    return count


def client_of(daemon: Daemon) -> dict[str, Any]:
    client: dict[str, Any] = eventually(lambda: daemon.channel_stats(TOPIC, CHANNEL).get("clients"), "a client")[0]
    return client


@pytest.mark.parametrize("flags", [["-window=50"], ["-batch=20"], ["-batch=20", "-window=3"], ["-size=20"]])
def test_published_messages_are_those_that_the_daemon_counts(nsqd: Daemon, flags: list[str]) -> None:
    loaded = generate(nsqd, "move", 0.1, "-publishers=2", *flags)
    assert loaded.published == message_count(nsqd) > 0
    assert loaded.seconds >= 0.1
    assert loaded.cpu_seconds > 0
    assert loaded.consumed == 0


def test_messages_published_over_http_are_those_that_the_daemon_counts(nsqd: Daemon) -> None:
    http = "-http={}:{}".format(*nsqd.http_address)
    single = generate(nsqd, "move", 0.1, "-publishers=2", http).published
    assert single == message_count(nsqd) > 0
    batches = generate(nsqd, "move", 0.1, "-publishers=2", "-batch=20", http).published
    assert batches % 20 == 0
    assert single + batches == message_count(nsqd) > single


def test_a_count_is_kept_by_all_publishers_together(nsqd: Daemon) -> None:
    assert generate(nsqd, "move", 30, "-publishers=3", "-batch=20", "-window=5", "-count=1000").published == 1000
    assert message_count(nsqd) == 1000


def test_everything_that_was_published_is_finished_on_every_channel(nsqd: Daemon) -> None:
    loaded = generate(
        nsqd, "move", 0.1, "-channel=c", "-channels=2", "-publishers=2", "-batch=20", "-consumers=4", "-rdy=10"
    )
    assert loaded.published == message_count(nsqd)
    assert 2 * loaded.published - 2 * 10 * 4 <= loaded.consumed <= 2 * loaded.published
    for channel in ("c0", "c1"):
        stats = nsqd.channel_stats(TOPIC, channel)
        assert (stats["message_count"], stats["depth"]) == (loaded.published, 0)
        assert stats["requeue_count"] == stats["timeout_count"] == 0


def test_a_consumer_leaves_what_is_beyond_its_count(nsqd: Daemon) -> None:
    create_channel(nsqd)
    generate(nsqd, "move", 30, "-publishers=1", "-batch=20", "-count=2000")
    loaded = generate(nsqd, "move", 30, on_channel(), "-consumers=1", "-rdy=10", "-count=1000")
    assert 1000 <= loaded.consumed < 2000
    assert loaded.published == 0


def test_topics_are_published_to_in_turn(nsqd: Daemon) -> None:
    generate(nsqd, "move", 30, "-publishers=1", "-topics=300", "-count=600")
    counts = {topic["topic_name"]: topic["message_count"] for topic in nsqd.stats()["topics"]}
    assert counts == {f"{TOPIC}{number}": 2 for number in range(300)}


def test_deferred_messages_stay_deferred(nsqd: Daemon) -> None:
    create_channel(nsqd)
    assert generate(nsqd, "move", 30, "-publishers=1", "-window=10", "-count=100", "-defer=1h").published == 100
    eventually(lambda: nsqd.channel_stats(TOPIC, CHANNEL)["deferred_count"] == 100)


@pytest.mark.parametrize("layers", [["tls"], ["deflate"], ["snappy"], ["tls", "deflate"], ["tls", "snappy"]])
def test_connections_are_upgraded(nsqd_factory: Callable[..., Daemon], tmp_path: Path, layers: list[str]) -> None:
    cert, key = issue("localhost").write(tmp_path / "server")
    nsqd = nsqd_factory(f"--tls-cert={cert}", f"--tls-key={key}")
    flags = [on_channel(), *(f"-{layer}" for layer in layers)]
    loaded = generate(nsqd, "move", 0.1, "-publishers=1", "-batch=20", "-consumers=1", *flags)
    assert loaded.published == message_count(nsqd) > 0
    with holding(nsqd, "-consumers=1", *flags):
        client = client_of(nsqd)
    assert [layer for layer in ("tls", "deflate", "snappy") if client[layer]] == layers


def test_held_messages_stay_in_flight_and_held_connections_answer_heartbeats(nsqd: Daemon) -> None:
    create_channel(nsqd)
    generate(nsqd, "move", 30, "-publishers=1", "-count=30")
    with holding(nsqd, on_channel(), "-consumers=2", "-rdy=10", "-count=20", "-heartbeat=1s") as held:
        assert held.consumed == 20
        stats = nsqd.channel_stats(TOPIC, CHANNEL)
        assert (stats["in_flight_count"], stats["client_count"], stats["depth"]) == (20, 2, 10)
        with Client(nsqd.tcp_address) as silent:
            silent.identify(heartbeat_interval=1000)
            frames = iter(silent.frame, None)
            with pytest.raises(ConnectionError):
                list(frames)
        assert nsqd.channel_stats(TOPIC, CHANNEL)["client_count"] == 2


def test_single_messages_are_timed(nsqd: Daemon) -> None:
    for mode in ("latency", "trip"):
        loaded = generate(nsqd, mode, 0.2, on_channel(), "-rate=200", "-unbuffered")
        assert 0 < loaded.p50 <= loaded.p99 <= loaded.longest <= loaded.seconds
        assert loaded.published == 40
        assert loaded.consumed == (40 if mode == "latency" else 0)
    assert message_count(nsqd) == 80
    with pytest.raises(BenchmarkError, match="was the channel empty"):
        generate(nsqd, "latency", 0.2, on_channel())


def test_a_message_is_received_on_every_channel_before_the_next_is_sent(nsqd: Daemon) -> None:
    loaded = generate(nsqd, "latency", 0.2, on_channel(), "-rate=200", "-unbuffered", "-channels=3")
    assert (loaded.published, loaded.consumed) == (40, 120)
    assert {channel["channel_name"]: channel["message_count"] for channel in topic_stats(nsqd)["channels"]} == {
        f"{CHANNEL}{number}": 40 for number in range(3)
    }


def test_a_pause_shows_in_the_times_of_all_messages_that_were_due_meanwhile(nsqd: Daemon) -> None:
    create_channel(nsqd)

    def pause() -> None:
        eventually(lambda: message_count(nsqd) > 20)
        nsqd.send_signal(signal.SIGSTOP)
        time.sleep(0.4)
        nsqd.send_signal(signal.SIGCONT)

    with ThreadPoolExecutor(1) as pool:
        paused = pool.submit(pause)
        loaded = generate(nsqd, "trip", 1.2, "-rate=200")
        paused.result()
    assert loaded.published == 240
    # A third of them; only one would be late if each waited for the answer before.
    assert 0.2 < loaded.p99 <= loaded.longest


@pytest.mark.parametrize(
    "flags, complaint",
    [
        (["move", "-topic=no$", "-publishers=1"], "E_BAD_TOPIC"),
        (["move", "-tls", "-publishers=1"], "the daemon does not give tls_v1"),
        (["move"], "neither -publishers nor -consumers"),
        (["move", "-rdy=0", "-consumers=1"], "-rdy 0 is less than 1"),
        (["trip", "extra"], 'what is "extra"?'),
        (["latency", "-size=7"], "no room"),
        (["hold", "-channel=no$", "-consumers=1"], "E_BAD_CHANNEL"),
    ],
)
def test_what_cannot_be_is_reported_in_one_line(nsqd: Daemon, flags: list[str], complaint: str) -> None:
    run = subprocess.run(generator(nsqd, *flags), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    assert run.returncode == 1
    assert run.stdout == ""
    (line,) = run.stderr.splitlines()
    assert line.startswith("load: ")
    assert complaint in line


def test_a_daemon_that_goes_away_is_an_error(nsqd_factory: Callable[..., Daemon]) -> None:
    nsqd = nsqd_factory(*(f"--{kind}-address=127.0.0.1:{free_port()}" for kind in ("tcp", "http")))
    with started(generator(nsqd, "hold", "-consumers=1")) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        nsqd.kill()
        process.wait(DEADLINE)  # its input is still open
        with pytest.raises(BenchmarkError, match="load exited with 1"):
            check(process, "")
    with pytest.raises(BenchmarkError, match="connection refused"):
        generate(nsqd, "move", 0.1, "-publishers=1")


def test_a_result_that_is_none_is_an_error() -> None:
    for line in ("", "{}", json.dumps({"seconds": 1})):
        with pytest.raises(BenchmarkError, match="load gave no result"):
            parse(line)


# The sink


def test_sink_gives_consumers_what_was_published_and_no_more(sink: Daemon) -> None:
    for batch in (0, 20):
        flags = ["-publishers=2", f"-batch={batch}", "-consumers=4", "-channels=2", "-rdy=50"]
        loaded = generate(sink, "move", 0.1, f"-channel=c{batch}", *flags)
        assert 2 * loaded.published - 2 * 50 * 4 <= loaded.consumed <= 2 * loaded.published


def test_sink_counts_what_is_published_over_http(sink: Daemon) -> None:
    create_channel(sink)
    http = "-http={}:{}".format(*sink.http_address)
    published = sum(
        generate(sink, "move", 0.1, "-publishers=2", f"-batch={batch}", http).published for batch in (0, 20)
    )
    assert sink.channel_stats(TOPIC, CHANNEL)["depth"] == published > 0


def test_sink_sends_what_was_published_last(sink: Daemon) -> None:
    loaded = generate(sink, "latency", 0.1, on_channel(), "-rate=200")
    assert loaded.consumed == 20
    assert 0 < loaded.p50 < loaded.seconds


@pytest.mark.parametrize("layer", ["tls", "deflate", "snappy"])
def test_sink_upgrades(tmp_path: Path, layer: str) -> None:
    cert, key = issue("localhost").write(tmp_path / "server")
    with SINK.running(f"--tls-cert={cert}", f"--tls-key={key}") as sink:
        loaded = generate(sink, "move", 0.1, on_channel(), "-publishers=1", "-batch=20", "-consumers=1", f"-{layer}")
    assert loaded.published > 0


# gevent alone


@pytest.mark.parametrize(
    "flags", [["-publishers=2"], ["-publishers=2", "-batch=200"], ["-publishers=2", "-tls"],
              ["-publishers=2", "-batch=20", "-http={}:{}"], ["-publishers=4", "-consumers=4"]],
)  # fmt: skip
def test_gevent_alone_serves_the_loads_of_its_rows(tmp_path: Path, flags: list[str]) -> None:
    cert, key = issue("localhost").write(tmp_path / "server")
    with GEVENT_ALONE.running(f"--tls-cert={cert}", f"--tls-key={key}") as server:
        create_channel(server)
        loaded = generate(server, "move", 0.1, on_channel(), *(flag.format(*server.http_address) for flag in flags))
    assert loaded.published > 0
    if "-consumers=4" in flags:  # the first messages may come before the consumers
        assert loaded.published - 4 <= loaded.consumed <= loaded.published
