"""/stats of both daemons, to the byte, in both its forms; and /metrics, which only ours has."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kit.daemons import Daemon, eventually
from kit.http_api import ask, message
from kit.nsq_client import Client

NORMAL = [
    (r'"memory":{[^}]*}', '"memory":{}'),
    (r'"start_time":\d+', '"start_time":1'),
    (r'"connect_ts":\d+', '"connect_ts":1'),
    (r"127\.0\.0\.1:\d+", "127.0.0.1:1"),
    (r"nsqd v1\.3\.0 \(built w/.*\)", "nsqd v1.3.0"),
    (r"start_time \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)", "start_time T"),
    (r"uptime (\d+m)?[\d.]+(ns|\u00b5s|ms|s)", "uptime D"),
    (r"connected: \d+s", "connected: 0s"),
    (r"\t\d+", "\tN"),
    (r"V2 host:\d+", "V2 host:1"),
]


def normal(text: str) -> str:
    for pattern, replacement in NORMAL:
        text = re.sub(pattern, replacement, text)
    return text


LATENCY = '"e2e_processing_latency":{"count":0,"percentiles":null}'
MEMORY = (
    "heap_objects", "heap_idle_bytes", "heap_in_use_bytes", "heap_released_bytes", "gc_pause_usec_100",
    "gc_pause_usec_99", "gc_pause_usec_95", "next_gc_bytes", "gc_total_runs",
)  # fmt: skip


def test_stats_of_an_empty_daemon(nsqd: Daemon) -> None:
    status, body = ask(nsqd, "GET /stats?format=json")
    assert (status, normal(body)) == (
        200,
        '{"version":"1.3.0","health":"OK","start_time":1,"topics":[],"memory":{},"producers":null}',
    )
    assert tuple(json.loads(body)["memory"]) == MEMORY
    memory = "".join(f"   {name:<25}\tN\n" for name in MEMORY)
    assert normal(ask(nsqd, "GET /stats")[1]) == (
        f"nsqd v1.3.0\nstart_time T\nuptime D\n\nHealth: OK\n\nMemory:\n{memory}\nTopics: None\n\nProducers: None\n"
    )


@pytest.fixture
def busy(nsqd: Daemon) -> Iterator[Daemon]:
    """Two topics, one paused with a channel that is; a consumer with a message in flight, and a producer."""
    for topic, channel in (("a", "c1"), ("a", "c2"), ("b", "x")):
        ask(nsqd, f"POST /topic/create?topic={topic}")
        ask(nsqd, f"POST /channel/create?topic={topic}&channel={channel}")
    ask(nsqd, "POST /channel/pause?topic=a&channel=c2")
    ask(nsqd, "POST /topic/pause?topic=b")
    with Client(nsqd.tcp_address) as consumer, Client(nsqd.tcp_address) as producer:
        consumer.identify(client_id="me", hostname="host", user_agent="ua/1.0")
        consumer.subscribe("a", "c1", rdy=5)
        producer.identify(client_id="you", hostname="host", user_agent="<ua>")
        producer.publish("a", b"hello", b"you")
        finished, _ = consumer.message(), consumer.message()
        consumer.command(b"FIN " + finished.id)
        producer.publish("b", b"waits")
        eventually(lambda: nsqd.channel_stats("a", "c1")["in_flight_count"] == 1)
        eventually(lambda: nsqd.channel_stats("a", "c2")["depth"] == 2)
        yield nsqd


def client_json(client_id: str, state: int, counts: str, user_agent: str, publishes: str = "") -> str:
    return (
        f'{{"client_id":"{client_id}","hostname":"host","version":"V2","remote_address":"127.0.0.1:1",'
        f'"state":{state},{counts},"connect_ts":1,"sample_rate":0,"deflate":false,"snappy":false,'
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
    start = '{"version":"1.3.0","health":"OK","start_time":1,'
    assert stats("topic=a") == (
        f'{start}"topics":[{topic_json(",".join(channels))}],"memory":{{}},"producers":[{producer}]}}'
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
        "        [V2 host:1 ua/1.0    ] state: 3 inflt: 1    rdy: 5    fin: 1        re-q: 0        "
        "msgs: 2        connected: 0s\n"
        "   *P [c2                       ] depth: 2     be-depth: 0     inflt: 0    def: 0    re-q: 0     "
        "timeout: 0     msgs: 2        e2e%: \n"
        "\nProducers:\n"
        "   [V2 host:1 <ua>      ] msgs: 2        topics: a=2 connected: 0s\n"
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
    assert ask(busy, "GET /stats?format=json&a=%zz") == (400, message("INVALID_REQUEST"))


# Only ours


def test_metrics_count_what_happens(gnsqd: Daemon) -> None:
    for body in (b"abc", b"de"):
        ask(gnsqd, "POST /pub?topic=t", body)
    ask(gnsqd, "POST /channel/create?topic=t&channel=c")
    eventually(lambda: gnsqd.channel_stats("t", "c")["depth"] == 2)
    status, headers, body = gnsqd.http("GET", "/metrics")
    assert (status, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parse_text(body.decode())
        for sample in family.samples
    }
    assert found["gnsqd_topic_messages_total", ("topic", "t")] == 2
    assert found["gnsqd_topic_message_bytes_total", ("topic", "t")] == 5
    assert found["gnsqd_channel_depth", ("channel", "c"), ("topic", "t")] == 2
    assert found["process_resident_memory_bytes",] > 1 << 20


def test_metrics_come_as_openmetrics_when_asked_for(gnsqd: Daemon) -> None:
    ask(gnsqd, "POST /pub?topic=t", b"x")
    accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}
    _, headers, body = gnsqd.http("GET", "/metrics", headers=accept)
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    families = parse_openmetrics(body.decode())  # type: ignore[no-untyped-call]
    assert "gnsqd_topic_messages" in {family.name for family in families}
