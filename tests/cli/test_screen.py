"""What the table looks like: on terminals of several widths, in a pipe, with and without colour."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rich.cells import cell_len

from cli.gnsqadmin import FakeNode, gnsqadmin, http_answer, on_terminal

LONG = "a_topic_name_that_is_as_long_as_nsq_permits_which_is_64_letters_"
ESC = "\x1b"


def counts(**values: int) -> dict[str, Any]:
    names = ("depth", "backend_depth", "in_flight_count", "deferred_count", "message_count", "message_bytes")
    others = ("requeue_count", "timeout_count", "client_count")
    return dict.fromkeys(names + others, 0) | {"paused": False} | values


@pytest.fixture
def nodes() -> Iterator[list[str]]:
    """Addresses of two nodes with a long name and a large number."""
    busy = counts(depth=1_234_567, backend_depth=1_224_567, message_count=9_876_543, timeout_count=3)
    channels = [{"channel_name": "archive", **busy}]
    topics = [{"topic_name": LONG, "channels": [], **counts()}, {"topic_name": "t", "channels": channels, **counts()}]
    document = {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": topics}
    answer = http_answer(json.dumps(document).encode())
    with FakeNode(answer) as a, FakeNode(answer) as b:
        yield [a.address, b.address]


def arguments(addresses: list[str]) -> list[str]:
    return ["stats", "--columns=all", "--nodes", *(f"--nsqd-http-address={address}" for address in addresses)]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("columns", [60, 80, 100, 120, 160, 200])
def test_the_table_fits_the_terminal_and_cuts_nothing(nodes: list[str], columns: int, several: bool) -> None:
    asked = nodes if several else nodes[:1]
    lines = on_terminal(columns, *arguments(asked), NO_COLOR="1").out.splitlines()
    assert max(map(cell_len, lines)) <= columns
    text = "\n".join(lines)
    assert "…" not in text
    assert "archive" in text
    assert all(address in text for address in asked)
    start = next(index for index, line in enumerate(lines) if line.startswith(LONG[:16]))
    width = len(lines[start].split()[0])  # of the name, which carries on below when it is folded
    assert "".join(line[:width].rstrip() for line in lines[start:]).startswith(LONG)


def test_folding_a_name_leaves_paused_whole() -> None:
    topics = [{"topic_name": LONG[:-9], "channels": [], **counts(), "paused": True}]
    document = {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": topics}
    with FakeNode(http_answer(json.dumps(document).encode())) as node:
        out = on_terminal(80, *arguments([node.address]), NO_COLOR="1").out
    assert [line.strip() for line in out.splitlines() if "paused" in line] == ["(paused)"]


def test_a_wide_terminal_has_whole_headings_and_exact_numbers(nodes: list[str]) -> None:
    out = on_terminal(200, *arguments(nodes[:1]), NO_COLOR="1").out
    assert "depth   in memory     on disk   in flight   deferred   requeued   timed out    messages   clients" in out
    assert ["archive", "1,234,567", "10,000", "1,224,567", "0", "0", "0", "3", "9,876,543", "0"] in [
        line.split() for line in out.splitlines()
    ]


def test_a_narrow_terminal_has_short_headings_and_rounded_numbers(nodes: list[str]) -> None:
    table = [line.split() for line in on_terminal(80, *arguments(nodes[:1]), NO_COLOR="1").out.splitlines()]
    assert " ".join(table[2]) == "topic / channel depth mem disk inflt def req t-o msgs clients"
    assert ["archive", "1.23M", "10.0k", "1.22M", "0", "0", "0", "3", "9.87M", "0"] in table


def test_rounded_numbers_promise_no_more_than_there_is() -> None:
    depths = {9_999: "9,999", 10_000: "10.0k", 99_999: "99.9k", 999_999: "999k", 1_000_000: "1.00M", 2**63: "9.22E"}
    channels = [{"channel_name": f"c{depth}", **counts(depth=depth)} for depth in depths]
    document = {"version": "1.3.0", "health": "OK", "start_time": 1}
    topics = [{"topic_name": "t", "channels": channels, **counts()}]
    with FakeNode(http_answer(json.dumps(document | {"topics": topics}).encode())) as node:
        lines = on_terminal(80, *arguments([node.address]), NO_COLOR="1").out.splitlines()
    table = {words[0]: words[1] for words in map(str.split, lines) if len(words) > 1}
    assert {depth: table[f"c{depth}"] for depth in depths} == depths


@pytest.mark.parametrize(
    "age, shown", [(-100, "0s"), (65, "1m "), (3605, "1h 0m"), (93_784, "1d 2h"), (400 * 86_400, "400d 0h")]
)
def test_uptime_is_shown_in_its_two_largest_units(age: int, shown: str) -> None:
    document = {"version": "1.3.0", "health": "OK", "start_time": int(time.time()) - age, "topics": []}
    with FakeNode(http_answer(json.dumps(document).encode())) as node:
        line = gnsqadmin(*arguments([node.address])).out.splitlines()[0]
    assert f" up {shown}" in line


@pytest.mark.parametrize("variables", [{}, {"COLUMNS": "40"}])
def test_a_pipe_gets_every_line_whole_and_plain(nodes: list[str], variables: dict[str, str]) -> None:
    out = gnsqadmin(*arguments(nodes), **variables).out
    assert ESC not in out
    assert LONG in out
    assert "1,234,567" in out
    assert "…" not in out
    assert not out.endswith("\n\n")


def test_colour_is_for_terminals_without_no_color(nodes: list[str]) -> None:
    assert ESC in on_terminal(120, *arguments(nodes)).out
    assert ESC not in on_terminal(120, *arguments(nodes), NO_COLOR="1").out
    assert ESC not in on_terminal(120, *arguments(nodes), TERM="dumb").out


def test_a_channel_with_messages_and_no_clients_stands_out(nodes: list[str]) -> None:
    [line] = [line for line in on_terminal(120, *arguments(nodes[:1])).out.splitlines() if "archive" in line]
    assert f"{ESC}[1;31m" in line


def test_an_encoding_that_lacks_a_character_is_no_failure() -> None:
    topic = {"topic_name": "日本", "channels": [], **counts()}
    document = {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": [topic]}
    with FakeNode(http_answer(json.dumps(document).encode())) as node:
        code, out, err = gnsqadmin("stats", "--nsqd-http-address", node.address, PYTHONIOENCODING="ascii")
    assert (code, err) == (0, "")
    assert r"\u65e5\u672c" in out
