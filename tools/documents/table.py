"""Every part of a document that a program writes: the document, the mark of the part, or "" for a whole file, and the
function that returns the new text of the part for the present one."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from documents.marks import DOCS, ROOT, part, replaced
from documents.write_gnsqadmin import command_list
from documents.write_options import config_example, option_rows
from documents.write_performance import speed
from documents.write_reference import TABLES
from documents.write_spark import source_options

CONTRIB = ROOT / "contrib"

Part = tuple[Path, str, Callable[[str], str]]

PARTS: tuple[Part, ...] = (
    (CONTRIB / "nsqd.cfg.example", "", partial(config_example, "nsqd")),
    (CONTRIB / "nsqlookupd.cfg.example", "", partial(config_example, "nsqlookupd")),
    (DOCS / "options.md", "nsqd", partial(option_rows, "nsqd", ours=False)),
    (DOCS / "options.md", "gnsqd", partial(option_rows, "nsqd", ours=True)),
    (DOCS / "lookupd.md", "nsqlookupd", partial(option_rows, "nsqlookupd", ours=False)),
    (DOCS / "lookupd.md", "gnsqlookupd", partial(option_rows, "nsqlookupd", ours=True)),
    (DOCS / "gnsqadmin.md", "commands", command_list),
    (DOCS / "spark.md", "nsq", partial(source_options, "nsq")),
    (DOCS / "spark.md", "nsq_diskqueue", partial(source_options, "nsq_diskqueue")),
    *((DOCS / name, mark, write) for (name, mark), write in TABLES.items()),
    (DOCS / "speed.svg", "", speed),
)
DOCUMENTS = tuple(dict.fromkeys(document for document, _, _ in PARTS))


def written(document: Path) -> str:
    """Returns the document with all its parts written; the text around them is kept."""
    text = document.read_text("utf-8")
    for path, mark, write in PARTS:
        if path == document:
            text = replaced(text, mark, write(part(text, mark))) if mark else write(text)
    return text
