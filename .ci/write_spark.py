"""Writes the tables of options in `contrib/docs/spark.md` from those in `pyspark_nsq.options` and
`pyspark_nsq_diskqueue.options`. `make options` runs it; a test compares."""

import re
from collections.abc import Iterable
from pathlib import Path

from pyspark_nsq.option_table import SourceOption
from pyspark_nsq.options import OPTIONS
from pyspark_nsq_diskqueue.options import OPTIONS as DISKQUEUE_OPTIONS

PAGE = Path(__file__).parents[1] / "contrib" / "docs" / "spark.md"

USES = ("read", "readStream", "write", "writeStream")


def page(text: str) -> str:
    """The page with updated tables; the text around them is kept."""
    for name, table in (("nsq", nsq_table()), ("nsq_diskqueue", diskqueue_table())):
        before, begin, rest = text.partition(f"<!-- options of {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->\n")
        if not end:
            raise ValueError(f"{PAGE} has no marks for the options of {name}")
        text = before + begin + table + end + after
    return text


def nsq_table() -> str:
    head = [f"| Option | Value | Default | {' | '.join(USES)} | |", "|---|---|---|" + ":-:|" * len(USES) + "---|"]
    return "\n".join([*head, *(_row(option, USES) for option in OPTIONS)]) + "\n"


def diskqueue_table() -> str:
    head = ["| Option | Value | Default | |", "|---|---|---|---|"]
    return "\n".join([*head, *(_row(option, ()) for option in DISKQUEUE_OPTIONS)]) + "\n"


def _row(option: SourceOption, uses: Iterable[str]) -> str:
    default = f"`{option.default}`" if option.default else ""
    marks = ["x" if use in option.used_by else "" for use in uses]
    return "| " + " | ".join([f"`{option.name}`", option.kind.name, default, *marks, _escaped(option.help)]) + " |"


def _escaped(text: str) -> str:
    parts = text.split("`")  # every second one is code
    parts[::2] = [re.sub(r"([<>|*])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
