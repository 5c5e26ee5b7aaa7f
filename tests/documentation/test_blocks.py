"""The blocks of the documents that are marked as runnable do what the documents say (see documentation.markdown)."""

import re
import shutil
from pathlib import Path

import pytest

from documentation.markdown import DOCS, PAGES, steps, tokens
from documentation.session import ReaderSession, matches

RUNNABLE = [page for page in PAGES if re.search("<!-- run", page.read_text("utf-8"))]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl, as who reads them does")
@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: str(page.stem))
def test_blocks_of_the_page_run(page: Path, tmp_path: Path) -> None:
    with ReaderSession(tmp_path, page.name) as session:
        session.run(list(steps(page)))


def test_all_of_the_tutorial_runs() -> None:
    marked = {step.text for step in steps(DOCS / "tutorial.md")}
    blocks = [token.content for token in tokens(DOCS / "tutorial.md") if token.type == "fence"]
    assert [block for block in blocks if block not in marked] == []


@pytest.mark.parametrize(
    "expected, printed, same",
    [
        ("a\nb\n", "a\nb", True),
        ("a\n", "a\nb\n", False),
        ("a...d\n", "a b c d\n", True),
        ("a...d\n", "a\nd\n", False),
        ("...\nb\n", "x\ny\nb\n", True),
        ("...\nb\n", "b\n", True),
        ("a(b)\n", "a(b)\n", True),
    ],
)
def test_what_was_printed_is_compared_line_by_line(expected: str, printed: str, same: bool) -> None:
    assert matches(expected, printed) == same
