"""The attacks of `make attacks`, so small that they prove nothing but that they run, and that limits are judged."""

import pytest

from faults.attacks.__main__ import ATTACKS
from faults.attacks.figures import Attack, Figure, Setting
from kit.daemons import own_command

TINY = Setting(scale=0.001, beside=100, attempts=1)
pytestmark = pytest.mark.one_lane

OTHER_SIZES = ("30 hostile", "time-outs in 100 ", "time-outs in 1,000 ")


@pytest.mark.parametrize(
    "attack", [each for each in ATTACKS if not each.name.startswith(OTHER_SIZES)], ids=lambda attack: attack.name
)
def test_attack_gives_its_figures(attack: Attack) -> None:
    assert attack.run(own_command(), TINY)


def test_limits_are_inclusive() -> None:
    figures = [Figure("x", value, "ms", at_most=50) for value in (49, 50, 51)]
    assert [figure.holds for figure in figures] == [True, True, False]
    assert not Figure("x", 89, "%", at_least=90).holds
    assert Figure("x", 1e9, "").holds
