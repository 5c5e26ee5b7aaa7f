"""`gnsqadmin stats` against running daemons: what it shows is what they report in /stats, on terminals of several
widths, in a pipe, with and without colour."""

import json
import re
from collections.abc import Iterator

import pytest
from rich.cells import cell_len

from cli.fake_nsqd import StatsNsqd, channel, node, topic
from cli.gnsqadmin import ageless, document, gnsqadmin, ok, on_terminal, rows, words
from cli.nodes import DOWN, address, at, fill
from kit.daemons import Instance
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create, post, wait_for

EVERYTHING = ("--columns=all", "--nodes")
ZEROS = ["0"] * 4


@pytest.fixture
def busy(nsqd_factory: DaemonFactory) -> Instance:
    """Starts a daemon with every count of a channel at a number of its own."""
    nsqd = nsqd_factory("--mem-queue-size=10")
    create(nsqd, "quiet")
    fill(nsqd, "orders", "archive", "billing", count=1234)
    post(nsqd, "/channel/pause?topic=orders&channel=billing")
    return nsqd


def test_table_shows_the_counts_of_the_daemon(busy: Instance) -> None:
    with NSQClient(busy.tcp_address) as consumer:
        consumer.subscribe("orders", "archive", rdy=7)
        messages = [consumer.message() for _ in range(7)]
        consumer.command(b"RDY 0")
        for message in messages[:2]:
            consumer.command(b"REQ %s 60000" % message.id)
        consumer.command(b"FIN %s" % messages[2].id)
        wait_for(busy, "orders", "archive", deferred_count=2, in_flight_count=4, requeue_count=2)
        table = ageless("stats", *EVERYTHING, *at(busy))
        disk, more = (busy.channel_stats("orders", name)["backend_depth"] for name in ("archive", "billing"))
    assert 0 < disk < 1227
    assert [*table[0][:4], table[0][-1]] == [address(busy), "nsqd", "1.3.0", "up", "healthy"]
    assert ["archive", "1,227", f"{1227 - disk:,}", f"{disk:,}", "4", "2", "2", "0", "1,234", "1"] in table
    assert ["orders", *ZEROS[:3], "1,234"] in table
    assert ["quiet", *ZEROS] in table
    depths = ["2,461", f"{2461 - disk - more:,}", f"{disk + more:,}"]
    assert ["2", "topics,", "2", "channels", *depths, "4", "2", "2", "0", "1,234", "1"] in table
    assert [line[0] for line in table if "(paused)" in line] == ["billing"]


def test_json_repeats_the_statistics_of_the_daemon_with_the_keys_that_help_lists(busy: Instance) -> None:
    """Shows a daemon that is named twice once."""
    answer = document("stats", *at(busy, f"http://{address(busy)}/"))
    described = ok("stats", "--help")
    assert sorted(answer) == ["flows", "nodes", "time", "totals"]
    expected = busy.stats()
    [node] = answer["nodes"]
    topics = node["topics"]
    for row in (node, answer["totals"], topics[0], topics[0]["channels"][0]):
        assert [key for key in row if key not in described] == []
    own = {"address": address(busy), "error": None, "producers": None, "topics": topics}
    assert node == own | {name: expected[name] for name in ("version", "health", "start_time")}
    without: dict[str, object] = {"e2e_processing_latency": {"count": 0, "percentiles": []}}
    for shown, original in zip(topics, expected["topics"], strict=True):
        channels = shown["channels"]
        without["oldest_message_age_seconds"] = shown["oldest_message_age_seconds"]
        assert shown == {name: original[name] for name in shown if name in original} | without | {"channels": channels}
        for one, counts in zip(channels, original["channels"], strict=True):
            without["oldest_message_age_seconds"] = one["oldest_message_age_seconds"]
            assert one == {name: counts.get(name) for name in one} | without | {"clients": None}


def test_the_age_of_the_oldest_message_is_that_of_gnsqd_and_unknown_for_nsqd(nsqd: Instance) -> None:
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


def test_topic_and_channel_options_filter(busy: Instance) -> None:
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
    size = sum(daemon.stats("both")["topics"][0]["message_bytes"] for daemon in (a, b))
    counts = {"topic_count": 2, "channel_count": 1, "depth": 42, "message_count": 42, "message_bytes": size}
    assert {name: value for name, value in totals.items() if value} == counts
    assert [topic["topic_name"] for topic in topics] == ["both", "only_b"]
    assert (topics[0]["channels"][0]["depth"], topics[0]["channels"][0]["paused"]) == (42, True)
    code, out, err = gnsqadmin("stats", *at(DOWN, b))
    assert (code, err) == (1, f"Error: nsqd at {DOWN}: connection refused\n")
    assert out.splitlines()[0].split() == [DOWN, "failed"]
    failed, fine = json.loads(gnsqadmin("stats", *at(DOWN, b), "--json").out)["nodes"]
    nothing = dict.fromkeys(fine) | {"topics": []}
    assert (failed, fine["error"]) == (nothing | {"address": DOWN, "error": "connection refused"}, None)


LONG = "a_topic_name_that_is_as_long_as_nsq_permits_which_is_64_letters_"
ESC = "\x1b"
BUSY = channel("archive", depth=1_234_567, backend_depth=1_224_567, message_count=9_876_543, timeout_count=3)
PAUSED = f"z{LONG[:-10]}"
ROUNDED = {9_999: "9,999", 10_000: "10.0k", 99_999: "99.9k", 999_999: "999k", 1_000_000: "1.00M", 2**63 - 1: "9.22E"}
STATS = ["stats", "--columns=all", "--nodes"]


@pytest.fixture
def two() -> Iterator[list[str]]:
    """Yields the options that name two nodes with long names and large numbers."""
    channels = [BUSY, *(channel(f"c{depth}", depth=depth) for depth in ROUNDED)]
    topics = topic(LONG), topic(PAUSED, paused=True), topic("t", *channels)
    with StatsNsqd(node(*topics)) as one, StatsNsqd(node(*topics)) as other:
        yield at(one, other)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("columns", [60, 80, 100, 120, 160, 200])
def test_the_table_fits_the_terminal_and_cuts_nothing(two: list[str], columns: int, count: int) -> None:
    text = on_terminal(columns, *STATS, *two[:count], NO_COLOR="1").out
    lines = text.splitlines()
    assert max(map(cell_len, lines)) <= columns
    assert "…" not in text
    assert "archive" in text
    assert "(paused)" in text
    assert all(option.partition("=")[2] in text for option in two[:count])
    start = next(index for index, line in enumerate(lines) if line.startswith(LONG[:16]))
    width = len(lines[start].split()[0])  # of the name, which carries on below when it is folded
    assert "".join(line[:width].rstrip() for line in lines[start:]).startswith(LONG)


def test_headings_and_numbers_are_short_on_a_narrow_terminal(two: list[str]) -> None:
    """Rounds numbers down: they promise no more than there is."""
    wide, narrow = (
        [line.split() for line in on_terminal(columns, *STATS, two[0], NO_COLOR="1").out.splitlines()]
        for columns in (200, 80)
    )
    headings = "topic / channel depth in memory on disk oldest in flight deferred requeued timed out messages clients"
    assert " ".join(wide[2]) == headings
    assert ["archive", "1,234,567", "10,000", "1,224,567", "0", "0", "0", "3", "9,876,543", "0"] in wide
    assert " ".join(narrow[2]) == "topic / channel depth mem disk old inflt def req t-o msgs clients"
    assert ["archive", "1.23M", "10.0k", "1.22M", "0", "0", "0", "3", "9.87M", "0"] in narrow
    table = {line[0]: line[1] for line in narrow if len(line) > 1}
    assert {depth: table[f"c{depth}"] for depth in ROUNDED} == ROUNDED


@pytest.mark.parametrize("variables", [{}, {"COLUMNS": "40"}])
def test_a_pipe_gets_every_line_whole_and_plain(two: list[str], variables: dict[str, str]) -> None:
    out = ok(*STATS, *two, **variables)
    assert [text in out for text in (LONG, "1,234,567", ESC, "…")] == [True, True, False, False]
    assert not out.endswith("\n\n")


def test_colour_is_for_terminals_without_no_color(two: list[str]) -> None:
    [line] = [line for line in on_terminal(120, *STATS, two[0]).out.splitlines() if "archive" in line]
    assert f"{ESC}[1;31m" in line  # messages and no clients
    assert f"{ESC}[32mOK{ESC}[0m" in on_terminal(80, "check", two[0]).out
    for command in (STATS, ["check"]):
        for variables in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            assert ESC not in on_terminal(120, *command, two[0], **variables).out
