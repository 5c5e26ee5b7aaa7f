"""`gnsqadmin stats` against running daemons: what it shows is what they report in /stats."""

import json
import re

import pytest

from cli.gnsqadmin import ageless, document, gnsqadmin, ok, rows, words
from cli.nodes import DOWN, address, at, fill
from kit.daemons import Daemon
from kit.nsq_client import Client
from kit.traffic import DaemonFactory, create, post, wait_for

EVERYTHING = ("--columns=all", "--nodes")
ZEROS = ["0"] * 4


@pytest.fixture
def busy(nsqd: Daemon) -> Daemon:
    """A daemon with every count of a channel at a number of its own."""
    create(nsqd, "quiet")
    fill(nsqd, "orders", "archive", "billing", count=1234)
    post(nsqd, "/channel/pause?topic=orders&channel=billing")
    return nsqd


def test_table_shows_the_counts_of_the_daemon(busy: Daemon) -> None:
    with Client(busy.tcp_address) as consumer:
        consumer.subscribe("orders", "archive", rdy=7)
        messages = [consumer.message() for _ in range(7)]
        consumer.command(b"RDY 0")
        for message in messages[:2]:
            consumer.command(b"REQ %s 60000" % message.id)
        consumer.command(b"FIN %s" % messages[2].id)
        wait_for(busy, "orders", "archive", deferred_count=2, in_flight_count=4, requeue_count=2)
        table = ageless("stats", *EVERYTHING, *at(busy))
    assert table[0][:5] == [address(busy), "nsqd", "1.3.0", "up", table[0][4]]
    assert table[0][-1] == "healthy"
    assert ["archive", "1,227", "1,227", "0", "4", "2", "2", "0", "1,234", "1"] in table
    assert ["orders", *ZEROS[:3], "1,234"] in table
    assert ["quiet", *ZEROS] in table
    assert ["2", "topics,", "2", "channels", "2,461", "2,461", "0", "4", "2", "2", "0", "1,234", "1"] in table
    assert [line[0] for line in table if "(paused)" in line] == ["billing"]


def test_table_distinguishes_memory_from_disk(nsqd_factory: DaemonFactory) -> None:
    daemon = nsqd_factory("--mem-queue-size=10")
    fill(daemon, "t", "c", count=110)
    disk = daemon.channel_stats("t", "c")["backend_depth"]
    assert 0 < disk < 110
    assert ["c", "110", str(110 - disk), str(disk), *ZEROS, "110", "0"] in ageless("stats", *EVERYTHING, *at(daemon))


def test_json_repeats_the_statistics_of_the_daemon_with_the_keys_that_help_lists(busy: Daemon) -> None:
    """Also where the daemon is named twice."""
    found = document("stats", *at(busy, f"http://{address(busy)}/"))
    described = ok("stats", "--help")
    assert sorted(found) == ["flows", "nodes", "time", "totals"]
    expected = busy.stats()
    [node] = found["nodes"]
    topics = node["topics"]
    for row in (node, found["totals"], topics[0], topics[0]["channels"][0]):
        assert [key for key in row if key not in described] == []
    own = {"address": address(busy), "error": None, "producers": None, "topics": topics}
    assert node == own | {name: expected[name] for name in ("version", "health", "start_time")}
    assert [topic["topic_name"] for topic in topics] == ["orders", "quiet"]
    without: dict[str, object] = {"e2e_processing_latency": {"count": 0, "percentiles": []}}
    for topic, original in zip(topics, expected["topics"], strict=True):
        channels = topic["channels"]
        without["oldest_message_age_seconds"] = topic["oldest_message_age_seconds"]
        assert topic == {name: original[name] for name in topic if name in original} | without | {"channels": channels}
        for channel, counts in zip(channels, original["channels"], strict=True):
            without["oldest_message_age_seconds"] = channel["oldest_message_age_seconds"]
            assert channel == {name: counts.get(name) for name in channel} | without | {"clients": None}


def test_the_age_of_the_oldest_message_is_that_of_gnsqd_and_unknown_for_nsqd(nsqd: Daemon) -> None:
    fill(nsqd, "t", "c", "empty", count=2)
    post(nsqd, "/channel/empty?topic=t&channel=empty")
    is_known = b"oldest_message_age" in nsqd.http("GET", "/stats?format=json&include_ages=true")[2]
    first = [row["oldest_message_age_seconds"] for row in rows("stats", "--by=channel", *at(nsqd))]
    whole = document("topic", "show", "t", *at(nsqd))
    second = [it["oldest_message_age_seconds"] for it in (*whole["channels"], whole)]
    (shown,) = (line for line in words("channel", "show", "t", "c", *at(nsqd)) if line[:1] == ["oldest"])
    if is_known:
        assert 0 < float(first[0]) < second.pop(0)
        assert re.fullmatch(r"oldest message \d+s old", " ".join(shown))
    else:
        assert (first.pop(0), second.pop(0), shown[2:]) == ("", None, ["–"])
    assert (first[-1], second) == ("", [None, None])


def test_topic_and_channel_options_filter(busy: Daemon) -> None:
    create(busy, "other", "archive")

    def names(*options: str) -> list[tuple[str, list[str]]]:
        [node] = document("stats", *options, *at(busy))["nodes"]
        return [(topic["topic_name"], [c["channel_name"] for c in topic["channels"]]) for topic in node["topics"]]

    assert names("--topic=quiet") == [("quiet", [])]
    assert names("--channel=archive") == [("orders", ["archive"]), ("other", ["archive"])]
    assert names("--topic=orders", "--channel=billing") == [("orders", ["billing"])]


def test_several_nodes_are_summed_up_and_shown_one_by_one(nsqd_factory: DaemonFactory) -> None:
    a, b = nsqd_factory(), nsqd_factory()
    assert words("stats", *at(a, b))[-1] == ["No", "topics."]
    for daemon, count in ((a, 30), (b, 12)):
        fill(daemon, "both", "c", count=count)
    create(b, "only_b")
    post(b, "/topic/pause?topic=only_b")
    post(b, "/channel/pause?topic=both&channel=c")
    table = ageless("stats", *EVERYTHING, *at(a, b))
    assert [line[0] for line in table[:2]] == [address(a), address(b)]
    assert table[3][:4] == ["topic", "/", "channel", "node"]
    assert table[5:] == [
        ["both", "2", "nodes", *ZEROS[:3], "42"],
        [address(a), *ZEROS[:3], "30"],
        [address(b), *ZEROS[:3], "12"],
        ["c", "(paused", "1/2)", "2", "nodes", "42", "42", "0", *ZEROS, "42", "0"],
        [address(a), "30", "30", "0", *ZEROS, "30", "0"],
        ["(paused)", address(b), "12", "12", "0", *ZEROS, "12", "0"],
        ["only_b", "(paused)", address(b), *ZEROS],
        table[12],  # the rule
        ["2", "topics,", "1", "channel", "42", "42", "0", *ZEROS, "42", "0"],
    ]
    totals = document("stats", *at(a, b))["totals"]
    topics = totals.pop("topics")
    assert {name: value for name, value in totals.items() if value} == {
        "topic_count": 2,
        "channel_count": 1,
        "depth": 42,
        "message_count": 42,
        "message_bytes": sum(daemon.stats("both")["topics"][0]["message_bytes"] for daemon in (a, b)),
    }
    assert [topic["topic_name"] for topic in topics] == ["both", "only_b"]
    assert (topics[0]["channels"][0]["depth"], topics[0]["channels"][0]["paused"]) == (42, True)


def test_a_node_that_is_down_leaves_the_others_shown(busy: Daemon) -> None:
    code, out, err = gnsqadmin("stats", "--columns=all", *at(DOWN, busy))
    assert (code, err) == (1, f"Error: nsqd at {DOWN}: connection refused\n")
    assert out.splitlines()[0].split() == [DOWN, "failed"]
    assert ["orders", address(busy), "0", "0", "0", "1,234"] in [line.split() for line in out.splitlines()]
    failed, fine = json.loads(gnsqadmin("stats", *at(DOWN, busy), "--json").out)["nodes"]
    nothing = dict.fromkeys(fine) | {"topics": []}
    assert (failed, fine["error"]) == (nothing | {"address": DOWN, "error": "connection refused"}, None)
