"""What the disk queue source raises on purpose, besides OptionError of `pyspark_nsq.errors`; str() is for people.

- DataDirectoryError: a path is not a data directory, or a file cannot be opened
- CorruptionError: messages cannot be read because a file is damaged, ends too early or is missing
"""

from pyspark_nsq.errors import NsqSourceError


class DataDirectoryError(NsqSourceError):
    """What `path` names cannot be read at all."""


class CorruptionError(NsqSourceError):
    """Messages are missing, and the option `corruption` makes this an error."""
