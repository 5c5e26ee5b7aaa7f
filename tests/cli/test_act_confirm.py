"""Nothing is destroyed that nobody agreed to: a question on a terminal, --yes elsewhere, and a look with --dry-run."""

import json

import pytest

from cli.gnsqadmin import Terminal, gnsqadmin
from cli.nodes import address, at, create, publish, wait_for_depth
from kit.daemons import Daemon

DESTRUCTIVE = ("topic delete t", "topic empty t --with-channels", "channel empty t c", "channel delete t c")


@pytest.fixture
def filled(gnsqd: Daemon) -> Daemon:
    """A node with three messages in the channel c of the topic t."""
    create(gnsqd, "t", "c")
    publish(gnsqd, "t", 3)
    wait_for_depth(gnsqd, "t", "c", 3)
    return gnsqd


def depth(nsqd: Daemon) -> int:
    found: int = nsqd.channel_stats("t", "c")["depth"]
    return found


def test_without_a_terminal_and_yes_nothing_is_lost(filled: Daemon) -> None:
    for words in DESTRUCTIVE:
        code, out, err = gnsqadmin(*words.split(), *at(filled), stdin="y\n")
        assert (code, out) == (5, "")
        assert "on 1 node loses 3 messages. Nothing was done: use --yes to do it, or --dry-run to see more\n" in err
        assert len(err.splitlines()) == 1
    assert depth(filled) == 3


def test_a_dry_run_shows_it_and_does_nothing(filled: Daemon) -> None:
    for words in DESTRUCTIVE:
        code, out, err = gnsqadmin(*words.split(), "--dry-run", *at(filled))
        assert (code, err) == (0, "")
        assert out.endswith("on 1 node loses 3 messages. Nothing was done.\n")
        assert " to be " in out.splitlines()[2]
    found = json.loads(gnsqadmin(*words.split(), "-n", "--yes", "--json", *at(filled)).out)
    assert (found["dry_run"], found["nodes"][0]["result"], found["lost"]["depth"]) == (True, "planned", 3)
    assert depth(filled) == 3


def test_all_but_a_clear_yes_is_no(filled: Daemon) -> None:
    for keys in ("n\r", "\r", "yess\r", "\x04"):
        with Terminal(120, 40, "channel", "empty", "t", "c", *at(filled)) as terminal:
            asked = terminal.wait_for("Empty it? [y/N]")
            assert f"{address(filled)}       3           0          0   to be emptied" in asked
            assert "Emptying the channel c in the topic t on 1 node loses 3 messages." in asked
            terminal.type(keys)
            terminal.wait_for("Error: not confirmed, nothing was done")
            assert terminal.end() == 5
    assert depth(filled) == 3


def test_after_a_yes_it_is_done(filled: Daemon) -> None:
    with Terminal(120, 40, "channel", "empty", "t", "c", *at(filled)) as terminal:
        terminal.wait_for("Empty it? [y/N]")
        terminal.type("y\r")
        terminal.wait_for("3           0          0   emptied")
        assert terminal.end() == 0
    assert depth(filled) == 0


def test_ctrl_c_at_the_question_ends_cleanly(filled: Daemon) -> None:
    with Terminal(120, 40, "topic", "delete", "t", *at(filled)) as terminal:
        terminal.wait_for("Delete it? [y/N]")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert "Traceback" not in terminal.printed
    assert depth(filled) == 3
