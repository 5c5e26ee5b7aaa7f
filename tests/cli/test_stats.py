"""`gnsqadmin stats` against running daemons: what it shows is what they say in /stats."""

import json
from typing import Any

import pytest

from cli.gnsqadmin import gnsqadmin
from cli.nodes import address, at, fill, publish
from kit.daemons import Daemon, eventually
from kit.nsq_client import Client
from kit.traffic import create, post, wait_for

CHANNEL_COUNTS = (
    "depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "message_count",
    "client_count",
)
NO_LATENCY = {"count": 0, "percentiles": []}


def stats(*daemons: Daemon, more: tuple[str, ...] = ()) -> str:
    """Standard output of a run over `daemons` that must go well."""
    everything = ("--columns=all", "--nodes") if "--json" not in more else ()
    result = gnsqadmin("stats", *at(*daemons), *everything, *more)
    assert (result.code, result.err) == (0, "")
    return result.out


def document(*daemons: Daemon, more: tuple[str, ...] = ()) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(stats(*daemons, more=("--json", *more)))
    return parsed


def rows(table: str) -> list[list[str]]:
    """The words of each line."""
    return [line.split() for line in table.splitlines()]


@pytest.fixture
def busy(nsqd: Daemon) -> Daemon:
    """A daemon with every count of a channel at a number of its own."""
    create(nsqd, "quiet")
    create(nsqd, "orders", "archive", "billing")
    post(nsqd, "/channel/pause?topic=orders&channel=billing")
    publish(nsqd, "orders", 1234)
    wait_for(nsqd, "orders", "archive", depth=1234)
    wait_for(nsqd, "orders", "billing", depth=1234)
    return nsqd


def test_table_shows_the_counts_of_the_daemon(busy: Daemon) -> None:
    with Client(busy.tcp_address) as consumer:
        consumer.subscribe("orders", "archive", rdy=7)
        messages = [consumer.message() for _ in range(7)]
        consumer.command(b"RDY 0")
        consumer.command(b"REQ %s 60000" % messages[0].id)
        consumer.command(b"REQ %s 60000" % messages[1].id)
        consumer.command(b"FIN %s" % messages[2].id)
        # The last answer is to a command that came after all of them.
        consumer.command(b"FIN 0000000000000000")
        assert consumer.error().startswith(b"E_FIN_FAILED")
        eventually(lambda: busy.channel_stats("orders", "archive").get("deferred_count") == 2)
        said = busy.channel_stats("orders", "archive")
        table = rows(stats(busy))
    depth, disk, *others = (f"{said[name]:,}" for name in CHANNEL_COUNTS)
    memory = f"{said['depth'] - said['backend_depth']:,}"
    assert ["archive", depth, memory, disk, *others] in table
    assert ["archive", "1,227", "1,227", "0", "4", "2", "2", "0", "1,234", "1"] in table
    assert ["orders", "0", "0", "0", "1,234"] in table
    assert ["quiet", "0", "0", "0", "0"] in table
    assert ["2", "topics,", "2", "channels", "2,461", "2,461", "0", "4", "2", "2", "0", "1,234", "1"] in table


def test_table_says_which_channels_are_paused(busy: Daemon) -> None:
    lines = stats(busy).splitlines()
    assert [line.split()[0] for line in lines if "(paused)" in line] == ["billing"]
    post(busy, "/channel/unpause?topic=orders&channel=billing")
    post(busy, "/topic/pause?topic=quiet")
    assert [line.split()[0] for line in stats(busy).splitlines() if "(paused)" in line] == ["quiet"]


def test_table_tells_memory_from_disk(nsqd_factory: Any) -> None:
    daemon = nsqd_factory("--mem-queue-size=10")
    fill(daemon, "t", "c", count=110)
    disk = daemon.channel_stats("t", "c")["backend_depth"]
    assert 0 < disk < 110
    assert ["c", "110", str(110 - disk), str(disk), "0", "0", "0", "0", "110", "0"] in rows(stats(daemon))


def test_head_line_shows_the_node_and_its_health(nsqd: Daemon) -> None:
    first = stats(nsqd).splitlines()[0]
    assert first.startswith(f"{address(nsqd)}   nsqd 1.3.0   up ")
    assert first.endswith("healthy")


def test_json_repeats_what_the_daemon_says_of_itself(busy: Daemon) -> None:
    said = busy.stats()
    [node] = document(busy)["nodes"]
    assert node.pop("address") == address(busy)
    assert node.pop("error") is None
    topics = node.pop("topics")
    assert node.pop("producers") is None
    assert node == {name: said[name] for name in ("version", "health", "start_time")}
    assert [topic["topic_name"] for topic in topics] == ["orders", "quiet"]
    for topic, expected in zip(topics, said["topics"], strict=True):
        channels = topic.pop("channels")
        assert topic.pop("e2e_processing_latency") == NO_LATENCY
        assert topic == {name: expected[name] for name in topic}
        for channel, original in zip(channels, expected["channels"], strict=True):
            assert channel.pop("e2e_processing_latency") == NO_LATENCY
            assert channel.pop("clients") is None
            assert channel == {name: original[name] for name in channel}


def test_json_has_the_keys_that_help_lists(busy: Daemon) -> None:
    described = gnsqadmin("stats", "--help").out
    found = document(busy)
    keys = {*found["nodes"][0], *found["totals"], *found["nodes"][0]["topics"][0]}
    keys |= {*found["nodes"][0]["topics"][0]["channels"][0]}
    assert {key for key in keys if key not in described} == set()
    assert sorted(found) == ["flows", "nodes", "time", "totals"]


def test_topic_and_channel_options_filter(busy: Daemon) -> None:
    create(busy, "other", "archive")

    def names(*more: str) -> list[tuple[str, list[str]]]:
        [node] = document(busy, more=more)["nodes"]
        return [(topic["topic_name"], [c["channel_name"] for c in topic["channels"]]) for topic in node["topics"]]

    assert names("--topic=quiet") == [("quiet", [])]
    assert names("--channel=archive") == [("orders", ["archive"]), ("other", ["archive"])]
    assert names("--topic=orders", "--channel=billing") == [("orders", ["billing"])]


def test_nothing_to_show_is_said(nsqd: Daemon) -> None:
    assert stats(nsqd).splitlines()[-1] == "No topics."
    create(nsqd, "t")
    assert stats(nsqd, more=("--topic=t",)).splitlines()[-1].split() == ["t", *"0000"]


def test_several_nodes_are_summed_up_and_shown_one_by_one(nsqd_factory: Any) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    for daemon, count in ((a, 30), (b, 12)):
        fill(daemon, "both", "c", count=count)
    create(b, "only_b")
    post(b, "/channel/pause?topic=both&channel=c")
    table = rows(stats(a, b))
    assert [line[0] for line in table[:2]] == [address(a), address(b)]
    assert table[3][:4] == ["topic", "/", "channel", "node"]
    zeros = ["0", "0", "0", "0"]
    assert table[5:] == [
        ["both", "2", "nodes", "0", "0", "0", "42"],
        [address(a), "0", "0", "0", "30"],
        [address(b), "0", "0", "0", "12"],
        ["c", "(paused", "1/2)", "2", "nodes", "42", "42", "0", *zeros, "42", "0"],
        [address(a), "30", "30", "0", *zeros, "30", "0"],
        ["(paused)", address(b), "12", "12", "0", *zeros, "12", "0"],
        ["only_b", address(b), "0", "0", "0", "0"],
        table[12],  # the rule
        ["2", "topics,", "1", "channel", "42", "42", "0", *zeros, "42", "0"],
    ]
    totals = document(a, b)["totals"]
    assert {name: value for name, value in totals.items() if value and name != "topics"} == {
        "topic_count": 2,
        "channel_count": 1,
        "depth": 42,
        "message_count": 42,
        "message_bytes": sum(daemon.stats("both")["topics"][0]["message_bytes"] for daemon in (a, b)),
    }
    assert [topic["topic_name"] for topic in totals["topics"]] == ["both", "only_b"]
    assert totals["topics"][0]["channels"][0]["depth"] == 42
    assert totals["topics"][0]["channels"][0]["paused"] is True


def test_a_node_named_twice_counts_once(busy: Daemon) -> None:
    found = document(busy, more=(f"--nsqd-http-address=http://{address(busy)}/",))
    assert len(found["nodes"]) == 1


def test_a_node_that_is_down_leaves_the_others_shown(busy: Daemon) -> None:
    arguments = ["stats", "--columns=all", *at(DOWN), f"--nsqd-http-address={address(busy)}"]
    table = gnsqadmin(*arguments)
    assert table.code == 1
    assert table.err == f"Error: nsqd at {DOWN}: connection refused\n"
    assert rows(table.out)[0] == [DOWN, "failed"]
    assert ["orders", address(busy), "0", "0", "0", "1,234"] in rows(table.out)
    as_json = gnsqadmin(*arguments, "--json")
    assert (as_json.code, as_json.err) == (1, table.err)
    failed, fine = json.loads(as_json.out)["nodes"]
    assert failed == {
        "address": DOWN,
        "error": "connection refused",
        "version": None,
        "health": None,
        "start_time": None,
        "topics": [],
        "producers": None,
    }
    assert fine["error"] is None
    assert failed.keys() == fine.keys()


def test_the_tcp_address_of_a_daemon_is_told_from_its_http_address(nsqd: Daemon) -> None:
    tcp_address = "{}:{}".format(*nsqd.tcp_address)
    result = gnsqadmin("stats", "--nsqd-http-address", tcp_address)
    problem = "does not answer in HTTP; is this the TCP address of an nsqd?"
    assert result == (1, "", f"Error: nsqd at {tcp_address}: {problem}\n")
