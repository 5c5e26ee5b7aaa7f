"""What the table looks like: on terminals of several widths, in a pipe, with and without colour."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from rich.cells import cell_len

from cli.fake_nsqd import channel, node, topic
from cli.gnsqadmin import FakeNode, http_answer, ok, on_terminal
from cli.nodes import at

LONG = "a_topic_name_that_is_as_long_as_nsq_permits_which_is_64_letters_"
ESC = "\x1b"
BUSY = channel("archive", depth=1_234_567, backend_depth=1_224_567, message_count=9_876_543, timeout_count=3)
PAUSED = f"z{LONG[:-10]}"
ROUNDED = {9_999: "9,999", 10_000: "10.0k", 99_999: "99.9k", 999_999: "999k", 1_000_000: "1.00M", 2**63: "9.22E"}
STATS = ["stats", "--columns=all", "--nodes"]


@pytest.fixture
def two() -> Iterator[list[str]]:
    """The options that name two nodes with long names and large numbers."""
    channels = [BUSY, *(channel(f"c{depth}", depth=depth) for depth in ROUNDED)]
    answer = http_answer(json.dumps(node(topic(LONG), topic(PAUSED, paused=True), topic("t", *channels))).encode())
    with ExitStack() as stack:
        yield at(*(stack.enter_context(FakeNode(answer)) for _ in range(2)))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("columns", [60, 80, 100, 120, 160, 200])
def test_the_table_fits_the_terminal_and_cuts_nothing(two: list[str], columns: int, count: int) -> None:
    lines = on_terminal(columns, *STATS, *two[:count], NO_COLOR="1").out.splitlines()
    assert max(map(cell_len, lines)) <= columns
    text = "\n".join(lines)
    assert "…" not in text
    assert "archive" in text
    assert "(paused)" in text  # whole, where its name is folded
    assert all(option.partition("=")[2] in text for option in two[:count])
    start = next(index for index, line in enumerate(lines) if line.startswith(LONG[:16]))
    width = len(lines[start].split()[0])  # of the name, which carries on below when it is folded
    assert "".join(line[:width].rstrip() for line in lines[start:]).startswith(LONG)


def test_headings_and_numbers_are_short_on_a_narrow_terminal(two: list[str]) -> None:
    """Rounded numbers promise no more than there is."""
    wide, narrow = (
        [line.split() for line in on_terminal(columns, *STATS, two[0], NO_COLOR="1").out.splitlines()]
        for columns in (200, 80)
    )
    headings = "topic / channel depth in memory on disk in flight deferred requeued timed out messages clients"
    assert " ".join(wide[2]) == headings
    assert ["archive", "1,234,567", "10,000", "1,224,567", "0", "0", "0", "3", "9,876,543", "0"] in wide
    assert " ".join(narrow[2]) == "topic / channel depth mem disk inflt def req t-o msgs clients"
    assert ["archive", "1.23M", "10.0k", "1.22M", "0", "0", "0", "3", "9.87M", "0"] in narrow
    table = {line[0]: line[1] for line in narrow if len(line) > 1}
    assert {depth: table[f"c{depth}"] for depth in ROUNDED} == ROUNDED


@pytest.mark.parametrize(
    "age, shown", [(-100, "0s"), (65, "1m "), (3605, "1h 0m"), (93_784, "1d 2h"), (400 * 86_400, "400d 0h")]
)
def test_uptime_is_shown_in_its_two_largest_units(age: int, shown: str) -> None:
    with FakeNode(http_answer(json.dumps(node(start_time=int(time.time()) - age)).encode())) as old:
        assert f" up {shown}" in ok("stats", *at(old)).splitlines()[0]


@pytest.mark.parametrize("variables", [{}, {"COLUMNS": "40"}])
def test_a_pipe_gets_every_line_whole_and_plain(two: list[str], variables: dict[str, str]) -> None:
    out = ok(*STATS, *two, **variables)
    assert ESC not in out
    assert LONG in out
    assert "1,234,567" in out
    assert "…" not in out
    assert not out.endswith("\n\n")


def test_colour_is_for_terminals_without_no_color(two: list[str]) -> None:
    [line] = [line for line in on_terminal(120, *STATS, two[0]).out.splitlines() if "archive" in line]
    assert f"{ESC}[1;31m" in line  # messages and no clients
    assert ESC not in on_terminal(120, *STATS, two[0], NO_COLOR="1").out
    assert ESC not in on_terminal(120, *STATS, two[0], TERM="dumb").out


def test_an_encoding_that_lacks_a_character_does_not_fail() -> None:
    with FakeNode(http_answer(json.dumps(node(topic("日本"))).encode())) as foreign:
        assert r"\u65e5\u672c" in ok("stats", *at(foreign), PYTHONIOENCODING="ascii")
