"""A machine loses its power: what was acknowledged with `--durability=disk` was synced."""

from faults import injection
from kit.daemons import own_command


def test_nothing_acknowledged_is_lost_with_the_power() -> None:
    outcome = injection.lose_power(own_command(), 3, "--durability=disk")
    assert outcome.acknowledged
    assert outcome.lost == 0


def test_what_was_not_synced_is_lost_with_the_power() -> None:
    """So the other test could fail."""
    assert injection.lose_power(own_command(), 1, "--durability=process").lost
