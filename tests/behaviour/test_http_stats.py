"""/stats of both daemons, to the byte, in both its forms. All combinations of its parameters are compared with the real
daemon in test_http_matrix.py."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kit.daemons import Daemon
from kit.http_api import ask, normal
from kit.nsq_client import Client
from kit.traffic import create, post, wait_for

LATENCY = '"e2e_processing_latency":{"count":0,"percentiles":null}'
MEMORY = (
    "heap_objects", "heap_idle_bytes", "heap_in_use_bytes", "heap_released_bytes", "gc_pause_usec_100",
    "gc_pause_usec_99", "gc_pause_usec_95", "next_gc_bytes", "gc_total_runs",
)  # fmt: skip


def test_stats_of_an_empty_daemon(nsqd: Daemon) -> None:
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


@pytest.fixture
def busy(nsqd: Daemon) -> Iterator[Daemon]:
    """Two topics, one paused with a channel that is; a consumer with a message in flight, and a producer."""
    create(nsqd, "b", "x")
    create(nsqd, "a", "c2", "c1")
    post(nsqd, "/channel/pause?topic=a&channel=c2")
    post(nsqd, "/topic/pause?topic=b")
    with Client(nsqd.tcp_address) as consumer, Client(nsqd.tcp_address) as producer:
        consumer.identify(client_id="me", hostname="host", user_agent="ua/1.0")
        consumer.subscribe("a", "c1", rdy=5)
        producer.identify(client_id="you", hostname="host", user_agent="<ua>")
        producer.publish("a", b"hello", b"you")
        finished, _ = consumer.message(), consumer.message()
        consumer.command(b"FIN " + finished.id)
        producer.publish("b", b"waits")
        wait_for(nsqd, "a", "c1", in_flight_count=1)
        wait_for(nsqd, "a", "c2", depth=2)
        yield nsqd


def client_json(client_id: str, state: int, counts: str, user_agent: str, publishes: str = "") -> str:
    return (
        f'{{"client_id":"{client_id}","hostname":"host","version":"V2","remote_address":"127.0.0.1:N",'
        f'"state":{state},{counts},"connect_ts":N,"sample_rate":0,"deflate":false,"snappy":false,'
        f'"user_agent":"{user_agent}",{publishes}"tls":false,"tls_cipher_suite":"","tls_version":"",'
        '"tls_negotiated_protocol":"","tls_negotiated_protocol_is_mutual":false}'
    )


CONSUMER = client_json(
    "me", 3, '"ready_count":5,"in_flight_count":1,"message_count":2,"finish_count":1,"requeue_count":0', "ua/1.0"
)
IDLE = '"ready_count":0,"in_flight_count":0,"message_count":0,"finish_count":0,"requeue_count":0'


def channel_json(name: str, depth: int, in_flight: int, clients: str, paused: str) -> str:
    return (
        f'{{"channel_name":"{name}","depth":{depth},"backend_depth":0,"in_flight_count":{in_flight},'
        f'"deferred_count":0,"message_count":2,"requeue_count":0,"timeout_count":0,'
        f'"client_count":{in_flight},"clients":{clients},"paused":{paused},{LATENCY}}}'
    )


def topic_json(channels: str) -> str:
    return (
        f'{{"topic_name":"a","channels":[{channels}],"depth":0,"backend_depth":0,'
        f'"message_count":2,"message_bytes":8,"paused":false,{LATENCY}}}'
    )


def test_stats_json_to_the_byte(busy: Daemon) -> None:
    def stats(query: str) -> str:
        return normal(ask(busy, f"GET /stats?format=json&{query}")[1])

    channels = channel_json("c1", 0, 1, f"[{CONSUMER}]", "false"), channel_json("c2", 2, 0, "[]", "true")
    producer = client_json("you", 0, IDLE, "\\u003cua\\u003e", '"pub_counts":[{"topic":"a","count":2}],')
    start = '{"version":"1.3.0","health":"OK","start_time":N,'
    assert stats("topic=a&include_mem=false") == (
        f'{start}"topics":[{topic_json(",".join(channels))}],"producers":[{producer}]}}'
    )
    bare = channel_json("c1", 0, 1, "null", "false")
    assert stats("topic=a&channel=c1&include_clients=false&include_mem=0") == (
        f'{start}"topics":[{topic_json(bare)}],"producers":null}}'
    )
    assert stats("topic=nope&include_mem=false") == f'{start}"topics":null,"producers":null}}'
    assert stats("channel=nope&include_mem=false&include_clients=0") == f'{start}"topics":[],"producers":null}}'


def test_stats_text_to_the_byte(busy: Daemon) -> None:
    page = normal(ask(busy, "GET /stats?include_mem=false&format=text&topic=a")[1])
    assert page == (
        "nsqd v1.3.0\nstart_time T\nuptime D\n\nHealth: OK\n\nTopics:\n"
        "   [a              ] depth: 0     be-depth: 0     msgs: 2        e2e%: \n"
        "      [c1                       ] depth: 0     be-depth: 0     inflt: 1    def: 0    re-q: 0     "
        "timeout: 0     msgs: 2        e2e%: \n"
        "        [V2 host:N ua/1.0    ] state: 3 inflt: 1    rdy: 5    fin: 1        re-q: 0        "
        "msgs: 2        connected: 0s\n"
        "   *P [c2                       ] depth: 2     be-depth: 0     inflt: 0    def: 0    re-q: 0     "
        "timeout: 0     msgs: 2        e2e%: \n"
        "\nProducers:\n"
        "   [V2 host:N <ua>      ] msgs: 2        topics: a=2 connected: 0s\n"
    )
    page = normal(ask(busy, "GET /stats?include_mem=false&include_clients=false")[1])
    assert page.endswith(
        "timeout: 0     msgs: 2        e2e%: \n"
        "\n*P [b              ] depth: 1     be-depth: 0     msgs: 1        e2e%: \n"
        "      [x                        ] depth: 0     be-depth: 0     inflt: 0    def: 0    re-q: 0     "
        "timeout: 0     msgs: 0        e2e%: \n"
        "\nProducers: None\n"
    )


def test_stats_filters_and_switches(busy: Daemon) -> None:
    def names(query: str) -> Any:
        topics = json.loads(ask(busy, f"GET /stats?format=json&{query}")[1])["topics"]
        return topics and [
            (topic["topic_name"], [channel["channel_name"] for channel in topic["channels"]]) for topic in topics
        ]

    assert names("") == [("a", ["c1", "c2"]), ("b", ["x"])]
    assert names("topic=b") == [("b", ["x"])]
    assert names("channel=c2") == [("a", ["c2"])]
    assert names("topic=b&channel=c2") == []
    for value, shown in [("true", True), ("1", True), ("false", False), ("0", False), ("no", True), ("", True)]:
        stats = json.loads(ask(busy, f"GET /stats?format=json&include_clients={value}&include_mem={value}")[1])
        assert (stats["producers"] is not None, "memory" in stats) == (shown, shown)
    for query in ("format=JSON", "format=json2", ""):
        assert ask(busy, f"GET /stats?{query}")[1].startswith("nsqd v1.3.0 (built w/")
