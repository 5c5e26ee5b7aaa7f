"""Writes the tables of options in `contrib/docs/spark.md` from those in `pyspark_nsq.options` and
`pyspark_nsq_diskqueue.options`."""

from documents.marks import escaped, table
from pyspark_nsq.options import OPTIONS
from pyspark_nsq_diskqueue.options import OPTIONS as DISKQUEUE_OPTIONS

# The options of each format, and the calls that take them, where they differ.
FORMATS = {"nsq": (OPTIONS, ("read", "readStream", "write", "writeStream")), "nsq_diskqueue": (DISKQUEUE_OPTIONS, ())}


def source_options(format: str, _: str) -> str:
    options, uses = FORMATS[format]
    rows = []
    for option in options:
        default = f"`{option.default}`" if option.default else ""
        marks = ["x" if use in option.used_by else "" for use in uses]
        rows.append([f"`{option.name}`", option.kind.name, default, *marks, escaped(option.help)])
    return table(["Option", "Value", "Default", *uses, ""], rows, "|---|---|---|" + ":-:|" * len(uses) + "---|")
