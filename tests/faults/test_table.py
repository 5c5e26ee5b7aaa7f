"""`make faults`, with few faults of each kind, and the table of it in the documentation."""

import re
from pathlib import Path

import pytest

from kit.daemons import run_tool

ROOT = Path(__file__).parents[2]
ROW = re.compile(
    r"\| (?P<fault>[^|]+) \| (?P<daemon>\w+) \| (?P<options>[^|]+) \| (?P<times>\d+) \| \d+ "
    r"\| (?P<lost>\d+) \| (?P<rest>.*)"
)
DURABLE = ("`--durability=process`", "`--durability=disk`")


def faults(*flags: str) -> tuple[int, list[dict[str, str]]]:
    """Returns exit code and rows."""
    run = run_tool("faults", *flags)
    assert not run.stderr or run.returncode == 1, run.stderr
    return run.returncode, rows(run.stdout.splitlines())


def rows(lines: list[str]) -> list[dict[str, str]]:
    return [row.groupdict() for line in lines if (row := ROW.fullmatch(line))]


def table(document: str) -> list[str]:
    _, _, rest = (ROOT / document).read_text().partition("<!-- faults -->\n")
    return rest.partition("<!-- end of faults -->\n")[0].splitlines()


@pytest.mark.parametrize(
    "count, pattern, flags",
    [
        (2, "^. SIGKILL . gnsqd .*durability", ["--", "--mem-queue-size=10", "--max-bytes-per-file=20000"]),
        (1, "^. power lost.*durability=disk", []),
        (3, "^. (disk full|SIGSTOP|clock).* gnsqd .*durability=process", []),
    ],
    ids=["kills", "power", "others"],
)
def test_nothing_is_lost_although_it_is_promised(count: int, pattern: str, flags: list[str]) -> None:
    code, table = faults(f"--rows={pattern}", "--times=2", *flags)
    assert [row["lost"] for row in table] == ["0"] * count
    assert code == 0


@pytest.mark.peer
@pytest.mark.usefixtures("object_store")  # skips it where there is no server
def test_nothing_is_lost_with_the_machine_but_what_the_log_store_did_not_have_yet() -> None:
    code, (disk, store) = faults("--rows=^. machine lost.*durability=(disk|store)", "--times=2")
    assert disk["lost"] == store["lost"] == "0"
    assert code == 0


def test_nothing_is_lost_by_kills_while_channels_are_rewound_and_changed() -> None:
    code, (row,) = faults("--rows=durability=process", "--times=2", "--seed=330", "--rewinds", "--changes")
    assert code == 0  # all was as answered
    counts = {what: int(count) for count, what in re.findall(r"(\d+) ([a-z ]+[a-z])[, ]", row["rest"])}
    assert list(counts) == ["rewinds", "channels created in the past", "cancelled", "changes of rules"]
    assert counts["rewinds"] + counts["channels created in the past"] > 0
    assert counts["cancelled"] + counts["changes of rules"] > 0


def test_what_was_not_synced_is_lost_with_the_power() -> None:
    # So another test could fail; and it is not promised.
    code, (row,) = faults("--rows=^. power lost.*durability=process", "--times=1")
    assert row["lost"] != "0"
    assert code == 0


def test_table_in_the_documentation_has_every_fault_daemon_and_option() -> None:
    listed = rows(table("contrib/docs/reliability.md"))
    assert len(listed) == len(table("contrib/docs/reliability.md")) - 2 == 29
    assert len({(row["fault"], row["daemon"], row["options"]) for row in listed}) == 29
    assert [row["lost"] for row in listed if row["fault"] == "SIGKILL" and row["options"] in DURABLE] == ["0", "0"]


def test_readme_has_an_excerpt_of_it() -> None:
    lost = [row.split(" | ")[1] for row in table("README.md")[2:]]
    assert lost == ["88%", "34%", "88%", "7%", "none in 500 kills", "none in 500 kills", "not measured"]
    assert table("README.md")[-1].endswith("| none in 200 machines |")
