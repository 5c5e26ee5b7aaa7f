"""The table of faults in the documentation."""

from pathlib import Path

from faults.__main__ import BEGIN, DOCUMENT, END, HEAD, README, ROWS, cases, excerpt


def table(document: Path) -> list[str]:
    return document.read_text().partition(BEGIN)[2].partition(END)[0].strip().split("\n")


def test_table_in_the_documentation_has_every_fault_daemon_and_option() -> None:
    lines = table(DOCUMENT)
    assert lines[:2] == HEAD
    listed = [[cell.strip() for cell in line.split("|")[1:4]] for line in lines[2:]]
    assert listed == [[row.fault, name, f"`{' '.join(flags)}`" if flags else "default"] for row, name, flags in cases()]
    assert {cells[0] for cells in listed} == {row.fault for row in ROWS}


def test_readme_has_an_excerpt_of_it() -> None:
    assert table(README) == excerpt(table(DOCUMENT))
    assert [row.split(" | ")[1] for row in table(README)[2:]] == ["88% lost", *["nothing lost, 500 times"] * 2]
