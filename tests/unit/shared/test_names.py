"""Names of topics and channels (NSQD-COMPAT 2.3)."""

import pytest

from gnsqd.shared.names import is_ephemeral, is_valid_name


@pytest.mark.parametrize(
    "name", ["test", "test-with_period.", "test#ephemeral", ".", "0", "A-z_9", "t" * 64, "t" * 54 + "#ephemeral"]
)
def test_valid_names(name: str) -> None:
    assert is_valid_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "test:ephemeral", "t$", "t t", "t\n", "\nt", "é", "٣", "t" * 65, "t" * 55 + "#ephemeral", "#ephemeral",
     "t#ephemeral#ephemeral", "t#eph", "t#", "t#ephemeral\n", "t#EPHEMERAL"],
)  # fmt: skip
def test_invalid_names(name: str) -> None:
    assert not is_valid_name(name)


def test_suffix_makes_a_name_ephemeral() -> None:
    assert [is_ephemeral(name) for name in ("t#ephemeral", "t", "ephemeral", "t#ephemeralx")] == [True] + [False] * 3
