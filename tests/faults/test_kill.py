"""What a SIGKILL costs, ours and the real one: state by state, message by message."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.kill_states import FILES_OF_100, NOTHING, ON_DISK, STATES, Fate, Outcome, State, heading, row, run
from faults.victim import channel, publish, publish_until_killed
from kit.daemons import own_command

DOCUMENT = Path(__file__).parents[2] / "contrib" / "docs" / "reliability.md"


def check(outcome: Outcome, fate: Fate) -> None:
    """Exactly the messages of these groups."""

    def bodies(groups: str) -> set[bytes]:
        return {body for body in outcome.acknowledged if body.split()[0].decode() in groups.split()}

    assert outcome.lost == bodies(fate.lost)
    assert outcome.duplicated == bodies(fate.duplicated)


@pytest.mark.peer
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_kill_costs_no_more_than_with_the_real_nsqd(
    state: State, peer_binary: Callable[[str], Path], tmp_path: Path
) -> None:
    nsqd = run(state, [os.fspath(peer_binary("nsqd"))], tmp_path / "nsqd")
    check(nsqd, state.nsqd)
    gnsqd = run(state, own_command(), tmp_path / "gnsqd")
    check(gnsqd, state.gnsqd)
    assert gnsqd.lost <= nsqd.lost
    # Where the real one loses messages that ours keeps, some may come twice.
    assert gnsqd.duplicated <= nsqd.duplicated or gnsqd.lost < nsqd.lost
    assert row(state, nsqd, gnsqd) in DOCUMENT.read_text().splitlines()


def test_table_in_the_documentation_has_all_states_in_order_and_no_other() -> None:
    _, begin, rest = DOCUMENT.read_text().partition(f"{heading()}\n")
    assert begin
    lines = rest[: rest.index("\n\n")].splitlines()
    assert [line.split("|")[1].strip() for line in lines] == [state.title for state in STATES]


def test_nothing_acknowledged_is_lost_on_its_way_from_topic_to_channel(tmp_path: Path) -> None:
    """For ours only: the real daemon's topic forgets a message before its channel has it."""
    state = State(
        "moving",
        "",
        (ON_DISK, "--sync-every=50", "--sync-timeout=1h", FILES_OF_100),
        (channel(), publish("before", 120), publish_until_killed("load")),
        nsqd=NOTHING,
        gnsqd=NOTHING,
    )
    assert not run(state, own_command(), tmp_path / "gnsqd").lost
