"""Writes the tables of options in `contrib/docs/spark.md` from those in `pyspark_nsq.options` and
`pyspark_nsq_diskqueue.options`. `make options` runs it; a test compares."""

from collections.abc import Sequence
from pathlib import Path

from documents.marks import DOCS, escaped, replaced, table
from pyspark_nsq.option_table import SourceOption
from pyspark_nsq.options import OPTIONS
from pyspark_nsq_diskqueue.options import OPTIONS as DISKQUEUE_OPTIONS

PAGE = DOCS / "spark.md"

USES = ("read", "readStream", "write", "writeStream")


def page(text: str) -> str:
    """The page with updated tables; the text around them is kept."""
    text = replaced(text, "nsq", _table(OPTIONS, USES))
    return replaced(text, "nsq_diskqueue", _table(DISKQUEUE_OPTIONS, ()))


def pages() -> dict[Path, str]:
    """Every file that is written, with its text."""
    return {PAGE: page(PAGE.read_text("utf-8"))}


def _table(options: Sequence[SourceOption], uses: Sequence[str]) -> str:
    rows = []
    for option in options:
        default = f"`{option.default}`" if option.default else ""
        marks = ["x" if use in option.used_by else "" for use in uses]
        rows.append([f"`{option.name}`", option.kind.name, default, *marks, escaped(option.help)])
    return table(["Option", "Value", "Default", *uses, ""], rows, "|---|---|---|" + ":-:|" * len(uses) + "---|")
