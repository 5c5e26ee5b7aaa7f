"""/stats in both its forms: to the byte against the real daemon, with every combination of its parameters."""

import itertools
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from kit.daemons import Instance, own_command
from kit.http_api import Answer, ask, head, normal, whole_answer
from kit.nsq_client import NSQClient
from kit.pairs import Pair, difference, running_pair
from kit.traffic import DaemonFactory, create, post, wait_for

FLAGS = ("--mem-queue-size=2", "--msg-timeout=15m")
MEMORY = (
    "heap_objects", "heap_idle_bytes", "heap_in_use_bytes", "heap_released_bytes", "gc_pause_usec_100",
    "gc_pause_usec_99", "gc_pause_usec_95", "next_gc_bytes", "gc_total_runs",
)  # fmt: skip


def test_stats_of_an_empty_daemon(nsqd: Instance) -> None:
    status, body = ask(nsqd, "GET /stats?format=json")
    memory = ",".join(f'"{name}":N' for name in MEMORY)
    assert (status, normal(body)) == (
        200,
        '{"version":"1.3.0","health":"OK","start_time":N,"topics":[],"memory":{' + memory + '},"producers":null}',
    )
    memory = "".join(f"   {name:<25}\tN\n" for name in MEMORY)
    assert normal(ask(nsqd, "GET /stats")[1]) == (
        f"nsqd v1.3.0\nstart_time T\nuptime D\n\nHealth: OK\n\nMemory:\n{memory}\nTopics: None\n\nProducers: None\n"
    )


def occupy(nsqd: Instance) -> list[NSQClient]:
    """Creates paused and ephemeral ones, messages everywhere, consumers and producers."""
    for topic, channels in {"b": ["x"], "a": ["none", "c1", "c2"], "idle": [], "q" * 40: ["r" * 40]}.items():
        create(nsqd, topic, *channels)
    post(nsqd, "/channel/pause?topic=a&channel=c2")
    post(nsqd, "/topic/pause?topic=b")
    clients = consumer, anonymous, producer = [NSQClient(nsqd.tcp_address) for _ in range(3)]
    consumer.identify(client_id="me", hostname="host", user_agent="ua/1.0", sample_rate=0)
    consumer.subscribe("a", "c1", rdy=5)
    producer.identify(client_id="you", hostname="a.very.long.hostname.example", user_agent="<u&a> \u00fc")
    producer.publish("a", b"one", b"two", b"three", b"four", b"five")
    first, second, *_ = [consumer.message() for _ in range(5)]
    consumer.send(b"FIN %b\nREQ %b 3600000\n" % (first.id, second.id))
    for _ in range(3):
        post(nsqd, "/pub?topic=b", b"waits")
    post(nsqd, "/pub?topic=idle&defer=1000", b"later")
    post(nsqd, f"/pub?topic={'q' * 40}", b"x" * 1000)
    anonymous.subscribe("e#ephemeral", "f#ephemeral", rdy=1)
    anonymous.publish("e#ephemeral", b"x", b"y")
    anonymous.message()
    wait_for(nsqd, "a", "c1", deferred_count=1, in_flight_count=3)
    for name in ("none", "c2"):
        wait_for(nsqd, "a", name, depth=5)
    wait_for(nsqd, "e#ephemeral", "f#ephemeral", in_flight_count=1)
    return clients


@pytest.fixture(scope="module")
def pair(
    peer_binary: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Pair, list[NSQClient]]]:
    """Starts both daemons with the same traffic, and returns their clients as well."""
    with running_pair(tmp_path_factory.mktemp("pair"), peer_binary("nsqd"), *FLAGS) as pair, ExitStack() as stack:
        clients = [stack.enter_context(client) for nsqd in pair for client in occupy(nsqd)]
        yield pair, clients


def answer(nsqd: Instance, query: str) -> Answer:
    return whole_answer(nsqd.http_address, head(f"GET /stats?{query}"), normal)


FILTERS = [
    f"{topic}{channel}"
    for topic in ("", *(f"&topic={name}" for name in ("a", "b", "e%23ephemeral", "idle", "nope", "$", "")))
    for channel in ("", "&channel=c1", "&channel=f%23ephemeral", "&channel=nope", "&channel=")
]  # fmt: skip
SWITCHES = ["", "&include_clients=false", "&include_mem=false", "&include_mem=0&include_clients=0",
            "&include_clients=x&include_mem=", "&include_clients=true&include_mem=1",
            "&include_mem=False&include_clients=F"]  # fmt: skip


@pytest.mark.peer
@pytest.mark.parametrize("format", ["json", "text", "JSON", ""])
def test_stats_to_the_byte(pair: tuple[Pair, list[NSQClient]], format: str) -> None:
    daemons, clients = pair
    for query in map("".join, itertools.product(FILTERS, SWITCHES)):
        for client in clients:
            client.command(b"NOP")  # the daemons close what is silent for a minute
        assert difference(partial(answer, query=f"format={format}{query}"), daemons, query) is None


@pytest.mark.peer
def test_stats_of_clients_on_unix_sockets(peer_binary: Callable[[str], Path], tmp_path: Path) -> None:
    found = []
    for name, command in (("gnsqd", own_command()), ("nsqd", [str(peer_binary("nsqd"))])):
        sockets = [f"--{kind}-address={tmp_path / name}.{kind}" for kind in ("tcp", "http")]
        with Instance(command, tmp_path / name, *sockets) as nsqd, NSQClient(nsqd.tcp_address) as client:
            client.publish("t", b"x")
            found.append([answer(nsqd, f"format={format}") for format in ("json", "text")])
    assert found[0] == found[1]
    assert '"remote_address":"@"' in found[0][0].body


def test_finished_messages_are_counted_for_who_asks(gnsqd: Instance) -> None:
    with NSQClient(gnsqd.tcp_address) as client:
        client.publish("t", b"x")
        client.publish("t", b"y")
        client.subscribe("t", "c", rdy=2)
        client.command(b"FIN " + client.message().id)
        wait_for(gnsqd, "t", "c", depth=0, in_flight_count=1)
    answers = {query: ask(gnsqd, f"GET /stats?format=json{query}")[1] for query in ("", "&include_finished=true")}
    assert "finish_count" not in answers[""]
    (topic,) = json.loads(answers["&include_finished=true"])["topics"]
    assert topic["channels"][0]["finish_count"] == 1


@pytest.mark.parametrize("flag", ["--mem-queue-size=10", "--mem-queue-size=0", "--durability=process"])
def test_ages_and_figures_of_the_process_are_reported_to_who_asks(gnsqd_factory: DaemonFactory, flag: str) -> None:
    gnsqd = gnsqd_factory(flag)
    create(gnsqd, "t", "c", "empty")
    with NSQClient(gnsqd.tcp_address) as client:
        client.publish("t", b"x")
        wait_for(gnsqd, "t", "c", depth=1)
        post(gnsqd, "/channel/empty?topic=t&channel=empty")
        query = "GET /stats?format=json&include_ages=true&include_process=true"
        first, second = (json.loads(ask(gnsqd, query)[1]) for _ in range(2))
        plain = ask(gnsqd, "GET /stats?format=json")[1]
    assert "oldest_message_age_seconds" not in plain
    assert '"process"' not in plain
    ages = [look["topics"][0]["channels"][0]["oldest_message_age_seconds"] for look in (first, second)]
    scraped = re.search(
        r'gnsqd_channel_oldest_message_age_seconds{channel="c",topic="t"} (\S+)', ask(gnsqd, "GET /metrics")[1]
    )
    assert scraped is not None
    assert 0 < ages[0] < ages[1] < float(scraped[1])
    assert first["topics"][0]["oldest_message_age_seconds"] is None
    assert first["topics"][0]["channels"][1]["oldest_message_age_seconds"] is None
    before, after = first["process"], second["process"]
    assert 0 < before["cpu_seconds"] < after["cpu_seconds"]
    assert after["connection_count"] == 1
    assert 1e6 < after["memory_bytes"] < 1e9
    disk = os.statvfs(gnsqd.data_path)
    assert 0 < after["free_disk_bytes"] < after["disk_bytes"] == disk.f_blocks * disk.f_frsize
