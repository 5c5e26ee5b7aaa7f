"""The parts of a page that are written by a program, each between the comments `<!-- NAME -->` and `<!-- end of NAME
-->`, and the Markdown of tables."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "contrib" / "docs"


def part(text: str, name: str) -> str:
    """Returns the text between the marks; raises ValueError if they are missing."""
    _, _, rest = text.partition(f"<!-- {name} -->\n")
    found, end, _ = rest.partition(f"<!-- end of {name} -->\n")
    if not end:
        raise ValueError(f"no marks for {name}")
    return found


def replaced(text: str, name: str, new: str) -> str:
    """Returns the page with this between the marks; the text around them is kept."""
    old = f"<!-- {name} -->\n{part(text, name)}<!-- end of {name} -->\n"
    return text.replace(old, f"<!-- {name} -->\n{new}<!-- end of {name} -->\n")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], rule: str = "") -> str:
    """Returns a table; `rule` is the line below the headings, if columns are not aligned to the left."""
    heading = f"| {' | '.join(headings)} |".replace("|  |", "| |")
    lines = [heading, rule or "|---" * len(headings) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "".join(f"{line}\n" for line in lines)


def cells(markdown: str) -> list[list[str]]:
    """Returns the rows of the tables in it, without headings."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    rules = [number for number, line in enumerate(lines) if set(line) <= set("|-: ")]
    rows = [line for number, line in enumerate(lines) if not {number, number + 1} & set(rules)]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def escaped(text: str) -> str:
    """Escapes markup in a text; code in it stays as it is."""
    parts = text.split("`")  # every second one is code
    parts[::2] = [re.sub(r"([<>|*])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)
