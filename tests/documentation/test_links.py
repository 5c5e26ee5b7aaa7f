"""No link of the documents is dead: files, anchors and pictures are there, and every page is in the index."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from documentation.markdown import DOCS, PAGES, ROOT, anchors, links

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))


@each_page
def test_links_of_the_page_lead_somewhere(page: Path) -> None:
    dead = []
    for line, target in links(page):
        parts = urlsplit(target)
        if parts.scheme:
            assert parts.scheme in ("http", "https"), f"{page.name}:{line}: {target}"
            continue
        there = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        if not there.is_file() or not there.is_relative_to(ROOT):
            dead.append(f"{line}: no file {target}")
        elif parts.fragment and parts.fragment not in anchors(there):
            dead.append(f"{line}: no anchor {target}; {there.name} has {sorted(anchors(there))}")
    assert dead == []


@each_page
def test_documents_that_the_page_names_are_there(page: Path) -> None:
    # Not all are links: `contrib/docs/metrics.md`.
    named = set(re.findall(r"\bcontrib/[\w./-]*\w\.\w+", page.read_text("utf-8")))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_index_lists_every_page() -> None:
    listed = {(DOCS / target.partition("#")[0]).resolve() for _, target in links(DOCS / "index.md")}
    assert set(PAGES) - listed == {DOCS / "index.md"}
