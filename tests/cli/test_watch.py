"""Looking again and again: rates between two looks, one document a line, one heading for many rows."""

import json
from typing import Any

from msgspec.structs import replace

from cli.gnsqadmin import ok, words
from cli.nodes import at
from kit.daemons import Instance
from kit.traffic import create
from nsqadmin_cli.api import ChannelStats, ClientCounts, NodeStats, TopicStats
from nsqadmin_cli.http_client import Address, NodeError
from nsqadmin_cli.snapshot import ClusterSnapshot, Flow, Key, drain_seconds, node_flows, oldest_age, summed

A, B = Address("a", 1), Address("b", 1)
CHANNEL = ChannelStats("c", 100, 0, 5, 5, 1000, 10, 0, 1, False)
TOPIC = TopicStats("t", 0, 0, 1000, 0, False, channels=(CHANNEL,))
NODE = NodeStats("1.3.0", "OK", 1, (TOPIC,), moment=100.0)


def node(topic: int = 0, seconds: float = 1.0, **changes: int) -> NodeStats:
    """Returns NODE `seconds` later, with a channel and a topic that moved by so much."""
    channel = replace(CHANNEL, **{name: getattr(CHANNEL, name) + change for name, change in changes.items()})
    topics = (replace(TOPIC, message_count=1000 + topic, channels=(channel,)),)
    return replace(NODE, topics=topics, moment=NODE.moment + seconds)


def flows_between(before: dict[Address, NodeStats], after: dict[Address, NodeStats]) -> dict[Key, Flow]:
    return summed(node_flows(before.get(address), node) for address, node in after.items())


def test_flows_are_what_came_and_what_is_done_with_each_second() -> None:
    changes = {"in_flight_count": 5, "deferred_count": -3, "requeue_count": 6, "timeout_count": 2}
    found = flows_between({A: NODE}, {A: node(40, 2.0, message_count=40, depth=10, **changes)})
    assert found == {("t", ""): Flow(20, 20), ("t", "c"): Flow(20, 14, 3, 1)}
    found = flows_between({A: NODE, B: NODE}, {A: node(10, message_count=10), B: node(20, 4.0)})
    assert (found["t", ""].ingress, found["t", "c"]) == (15, Flow(10, 10))


def test_emptied_messages_are_not_finished_where_the_node_or_its_clients_count_what_is() -> None:
    def flow(before: ChannelStats, after: ChannelStats) -> float:
        looks = [replace(TOPIC, channels=(one,)) for one in (before, after)]
        then, now = (replace(NODE, topics=(look,), moment=float(index)) for index, look in enumerate(looks))
        return flows_between({A: then}, {A: now})["t", "c"].egress

    emptied = replace(CHANNEL, depth=0)
    assert flow(CHANNEL, emptied) == 100  # a node that does not count
    assert flow(replace(CHANNEL, finish_count=7), replace(emptied, finish_count=9)) == 2
    assert flow(replace(CHANNEL, clients=()), replace(emptied, clients=())) == 0
    one, two = client(5), client(8, "b:2")
    assert flow(replace(CHANNEL, clients=(one,)), replace(emptied, clients=(client(6), two))) == 9
    assert flow(replace(CHANNEL, clients=(one, two)), replace(emptied, clients=(client(6),))) == 100  # one has gone


def client(finished: int, address: str = "a:1") -> ClientCounts:
    return ClientCounts("client", "host", address, "V2", "", 3, 1, 0, finished, finished, 0, 1, 0, False, False)


def test_what_is_new_flows_with_the_next_look() -> None:
    restarted = replace(node(-10, message_count=-10), start_time=0)
    created_again, without = node(100, message_count=100), replace(NODE, topics=())
    for before in ({}, {A: restarted}, {A: created_again}, {A: without}):
        assert flows_between(before, {A: NODE}) == {("t", ""): Flow(), ("t", "c"): Flow()}, before


def test_the_rate_after_an_error_counts_from_the_last_answer() -> None:
    first = ClusterSnapshot({A: NODE}, [])
    failed = ClusterSnapshot({A: NodeError("nsqd", A, "no complete answer within 5 s")}, [], first)
    assert failed.flows == {}
    assert ClusterSnapshot({A: node(40, 20.0)}, [], failed).flows == {("t", ""): Flow(2, 2), ("t", "c"): Flow()}


def held(depth: int, in_flight: int, **changes: Any) -> ChannelStats:
    return replace(CHANNEL, depth=depth, in_flight_count=in_flight, **changes)


def test_a_queue_is_empty_when_more_goes_than_comes_and_slow_consumers_finish_what_is_in_flight() -> None:
    for flow, times in (
        (Flow(10, 30), {100: 5}),
        (Flow(0, 1), {0: 0}),
        (Flow(30, 10), {5: 0.5, 15: None}),
        (Flow(1, 0.5), {1: 2, 2: 4, 3: None}),
        (Flow(), {0: 0, 1: None}),
    ):
        assert {depth: flow.drain_seconds(depth) for depth in times} == times, flow
    rows: list[tuple[TopicStats | ChannelStats, Flow, float | None]] = [
        (held(1, 1), Flow(), 5),
        (held(1, 0), Flow(), 5),
        (held(2, 1), Flow(3), 10),
        (held(40, 20), Flow(), 10),
        (held(40, 20), Flow(1), None),
        (held(40, 20), Flow(0, 2), 20),
        (held(40, 0), Flow(), None),
        (held(1, 0, client_count=0), Flow(), None),
        (held(1, 1, paused=True), Flow(), None),
        (replace(TOPIC, depth=1), Flow(1), 5),
        (replace(TOPIC, depth=3), Flow(1), None),
        (replace(TOPIC, depth=1, channels=()), Flow(1), None),
    ]
    for row, flow, seconds in rows:
        assert drain_seconds(row, flow, 5) == seconds, (row, flow)


def test_watching_prints_one_document_a_line_with_flows_from_the_second_on(nsqd: Instance) -> None:
    create(nsqd, "t", "c")
    out = ok("stats", "--json", "--watch=10ms", "--count=3", *at(nsqd))
    first, second, third = map(json.loads, out.splitlines())
    still = {"ingress_rate": 0.0, "egress_rate": 0.0}
    expected = [{"topic": "t", "channel": channel} | still for channel in ("", "c")]
    assert [first["flows"], second["flows"], third["flows"]] == [None, expected, expected]
    assert first["time"] < second["time"] < third["time"]
    table = words("counter", "--watch=10ms", "--count=3", *at(nsqd))
    assert [line[1:] for line in table[2:]] == [["0", "0"], ["0", "0", "0", "0"], ["0", "0", "0", "0"]]


def test_one_channel_watched_is_one_row_below_the_other(nsqd: Instance) -> None:
    create(nsqd, "t", "c")
    watching = ["stats", "--topic=t", "--channel=c", "--by=channel", "--watch=5ms", "--count=27", *at(nsqd)]
    lines = words(*watching)
    headings = [index for index, line in enumerate(lines) if line[0] == "channel"]
    assert (headings, len(lines)) == ([0, 27], 27 + 4)  # a heading and a rule before 25 rows
    assert lines[2:4] == [["c", "t", *["0"] * 9], ["c", "t", *["0"] * 11]]  # the second with rates
    csv = ok(*watching, "-o", "csv").splitlines()
    assert len(csv) == 28
    assert csv[0].startswith("channel,topic,ingress_rate,egress_rate,depth,")


def test_the_oldest_message_is_unknown_if_a_queue_with_messages_does_not_report_its_age() -> None:
    def oldest(*queues: tuple[int, float | None]) -> float | None:
        return oldest_age([replace(CHANNEL, depth=depth, oldest_message_age_seconds=age) for depth, age in queues])

    assert oldest((1, 2.5), (3, 7.5), (0, None)) == 7.5
    assert oldest((1, 2.5), (1, None)) is None
    assert oldest((0, None)) is oldest() is None
