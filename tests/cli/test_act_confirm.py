"""The question on a terminal, without whose answer nothing is destroyed. For pipes: test_every_command."""

import pytest

from cli.gnsqadmin import Terminal
from cli.nodes import address, at, fill
from kit.daemons import Daemon


@pytest.mark.parametrize(
    "keys, last, code, left",
    [
        ("n\r", "Error: not confirmed, nothing was done", 5, 3),
        ("\r", "Error: not confirmed, nothing was done", 5, 3),
        ("yess\r", "Error: not confirmed, nothing was done", 5, 3),
        ("\x04", "Error: not confirmed, nothing was done", 5, 3),
        ("\x03", "", 130, 3),
        ("y\r", "3           0          0   emptied", 0, 0),
    ],
)
def test_all_but_a_clear_yes_is_no(gnsqd: Daemon, keys: str, last: str, code: int, left: int) -> None:
    fill(gnsqd, "t", "c", count=3)
    with Terminal(120, 40, "channel", "empty", "t", "c", *at(gnsqd)) as terminal:
        question = terminal.wait_for("Empty it? [y/N]")
        assert f"{address(gnsqd)}       3           0          0   to be emptied" in question
        assert "Emptying the channel c in the topic t on 1 node loses 3 messages." in question
        terminal.type(keys)
        terminal.wait_for(last)
        assert terminal.end() == code
        assert "Traceback" not in terminal.printed
    assert gnsqd.channel_stats("t", "c")["depth"] == left
