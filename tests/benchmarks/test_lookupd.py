"""What many nsqds cost nsqlookupd is measured on both; figures are not tested."""

from pathlib import Path

import pytest

from benchmarks.lookupd import QUERIES, measure
from kit.lookupds import REAL_COMMAND, Lookupd, own_lookupd_command


@pytest.mark.parametrize("name", ["gnsqlookupd", pytest.param("nsqlookupd", marks=pytest.mark.peer)])
def test_all_queries_are_answered_beside_pings(name: str, tmp_path: Path) -> None:
    if name == "nsqlookupd" and not Path(REAL_COMMAND[0]).exists():
        pytest.skip("nsqlookupd is not built (make peers)")
    command = own_lookupd_command() if name == "gnsqlookupd" else REAL_COMMAND
    with Lookupd(command, tmp_path) as lookupd:
        result = measure(lookupd, 20)
        assert lookupd.ask("/topics")["topics"].count("group-1") == 1
    assert {path: len(seconds) for path, seconds in result.seconds.items()} == QUERIES
    assert min(result.empty, result.registered, result.queried) > 1 << 20
