"""The documents as Markdown: their links, anchors and blocks.

A comment before a block of code says what the tests do with it; no reader sees it:

    <!-- run -->                  shell: typed into the page's terminal; Python: run as a program
    <!-- run: exit 1 -->          shell: ends with that exit code
    <!-- run: first terminal -->  shell: a daemon that goes on while the page does
    <!-- run: until Ctrl-C -->    shell: interrupted when it has printed what the next block says
    <!-- run: pytest -->          Python: a file of tests
    <!-- file: NAME -->           is written to that file
    <!-- prints -->               what the run before has printed; `...` stands for anything in a line, or for any lines
    <!-- Ctrl-C: first terminal -->  no block follows
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "contrib" / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])

_PARSER = MarkdownIt("commonmark").enable("table")
_MARK = re.compile(r"<!-- ((?:run|file|prints|Ctrl-C)\b.*?) -->\s*")


class Step(NamedTuple):
    """A block with a mark, by the line where it begins; or a mark alone."""

    line: int
    mark: str
    language: str = ""
    text: str = ""


def parse(text: str) -> list[Token]:
    return _PARSER.parse(text)


@cache
def tokens(page: Path) -> list[Token]:
    return parse(page.read_text("utf-8"))


def steps(page: Path) -> Iterator[Step]:
    """Yields what is to be done with the page, in order; raises AssertionError for a mark that does nothing."""
    mark = ""
    for token in tokens(page):
        line = token.map[0] + 1 if token.map else 0
        comment = _MARK.fullmatch(token.content) if token.type == "html_block" else None
        assert not (mark and token.type != "fence"), f"{page.name}:{line}: no block follows <!-- {mark} -->"
        if token.type == "fence" and mark:
            yield Step(line, mark, token.info.strip(), token.content)
            mark = ""
        elif comment and comment[1].startswith("Ctrl-C"):
            yield Step(line, comment[1])
        elif comment:
            mark = comment[1]
    assert not mark, f"{page.name}: no block follows <!-- {mark} -->"


def code(page: Path) -> Iterator[tuple[int, str]]:
    """Yields each line of each block of code by its number; lines that end in a backslash are joined."""
    for token in tokens(page):
        if token.type in ("fence", "code_block"):
            first = (token.map or [0])[0] + 1 + (token.type == "fence")
            text = token.content.replace("\\\n", "\0")
            for line in text.splitlines():
                yield first, re.sub(r"\0\s*", "", line)
                first += 1 + line.count("\0")


def links(page: Path) -> Iterator[tuple[int, str]]:
    """Yields every link and picture, by the line of its paragraph."""
    for token in tokens(page):
        for child in token.children or ():
            target = child.attrGet("href") if child.type == "link_open" else child.attrGet("src")
            if target is not None:
                yield token.map[0] + 1 if token.map else 0, str(target)


@cache
def anchors(page: Path) -> set[str]:
    """Returns the anchors of the headings, as repository pages make them."""
    names: set[str] = set()
    following = False
    for token in tokens(page):
        if following:
            text = "".join(child.content for child in token.children or () if child.type in ("text", "code_inline"))
            slug = name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            number = 0
            while name in names:
                number += 1
                name = f"{slug}-{number}"
            names.add(name)
        following = token.type == "heading_open"
    return names
