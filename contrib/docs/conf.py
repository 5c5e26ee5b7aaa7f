"""The pages as a site: `make docs` writes it to build/docs, by Sphinx.

The pages are Markdown and link to each other as files, so that they can be read where they lie. README, CHANGELOG and
CONTRIBUTING are pages too, which is why Sphinx's source directory is the root of the repository. The menu is what
index.md lists. Nothing is loaded from elsewhere when the site is looked at.
"""

import re
import sys
from pathlib import Path
from typing import Any

from gnsqd.shared.version import VERSION

project = "gnsqd"
release = VERSION
project_copyright = ""
extensions = ["myst_parser"]
root_doc = "contrib/docs/index"
include_patterns = ["*.md", "contrib/docs/*.md"]
# Not to be searched.
exclude_patterns = [".*", "build", "data", "dist", "gnsqd", "nsqadmin_cli", "tests", "tools"]

myst_heading_anchors = 4
highlight_language = "none"  # indented blocks are of all kinds

html_theme = "furo"
html_title = "gnsqd"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

_START = """\
<!DOCTYPE html>
<title>gnsqd</title>
<meta http-equiv="refresh" content="0; url=contrib/docs/index.html">
<a href="contrib/docs/index.html">gnsqd</a>
"""


def _add_menu(app: Any, docname: str, source: list[str]) -> None:
    """Makes each chapter of the index a caption of the menu, and each page that it lists an entry."""
    if docname == root_doc:
        for chapter in source[0].split("\n## ")[1:]:
            caption, _, text = chapter.partition("\n")
            pages = "\n".join(re.findall(r"^- \[.*?\]\(([^)#]+)\.md\)", text, re.MULTILINE))
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"


def _add_reference(app: Any, docname: str, source: list[str]) -> None:
    """Adds all commands of gnsqadmin with their options, which stand on the site alone."""
    if docname == "contrib/docs/gnsqadmin":
        sys.path.append(str(Path(app.srcdir) / "tools"))
        from documents.write_gnsqadmin import reference

        source[0] += f"\n{reference()}"


def _write_start(app: Any, exception: Exception | None) -> None:
    (Path(app.outdir) / "index.html").write_text(_START, "utf-8")


def setup(app: Any) -> None:
    app.connect("source-read", _add_menu)
    app.connect("source-read", _add_reference)
    app.connect("build-finished", _write_start)
