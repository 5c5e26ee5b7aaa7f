"""The site that `make docs` builds; where Sphinx is not installed (the extra `docs`) these tests are skipped."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import missing
from documentation.markdown import DOCS, PAGES, ROOT
from documentation.writers import load_writer


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds a site, without a warning such as of a dead link, and gives its directory."""
    if any(importlib.util.find_spec(name) is None for name in ("sphinx", "furo", "myst_parser")):
        missing("needs Sphinx (pip install gnsqd[docs], or make docs)")
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", str(DOCS)]
    command += ["-d", str(directory / "doctrees"), str(ROOT), str(directory / "site")]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return directory / "site"


def html_of(site: Path, page: Path) -> str:
    return (site / page.relative_to(ROOT).with_suffix(".html")).read_text("utf-8")


def test_every_page_is_in_the_site_and_its_menu(site: Path) -> None:
    assert 'url=contrib/docs/index.html"' in (site / "index.html").read_text("utf-8")
    menu = re.findall(r'class="reference internal" href="([^"#]+)"', html_of(site, DOCS / "index.md"))
    for page in PAGES:
        assert html_of(site, page)
        path = page.relative_to(ROOT).with_suffix(".html")
        assert page == DOCS / "index.md" or {path.name, f"../../{path}"} & set(menu), page


def test_the_page_of_gnsqadmin_has_all_commands(site: Path) -> None:
    text = html_of(site, DOCS / "gnsqadmin.md")
    for words, command in load_writer("write_gnsqadmin").all_commands().items():
        section = text.partition(f'<section id="gnsqadmin-{words.replace(" ", "-")}">')[2].partition("</section>")[0]
        for option in command.params:
            assert getattr(option, "section", "") != "Options" or option.opts[0] in section, (words, option.opts)


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in [*site.rglob("*.html"), *site.rglob("*.css")]:
        text = page.read_text("utf-8")
        loaded = re.findall(r'<(?:script|img|iframe|source)\b[^>]*\bsrc="([^"]+)"', text)
        loaded += re.findall(r'<link\b[^>]*\brel="(?:stylesheet|icon|preload|preconnect)"[^>]*\bhref="([^"]+)"', text)
        loaded += re.findall(r"url\(['\"]?([^)'\"]+)", text) + re.findall(r"@import ['\"]([^'\"]+)", text)
        assert [address for address in loaded if re.match(r"(https?:)?//", address)] == [], page
