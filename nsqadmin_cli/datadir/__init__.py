"""Reads and repairs data directories of a stopped nsqd: `gnsqadmin data`.

`directory` lists a directory, `records` reads one file and continues behind damage, `queue` combines the files of a
queue, `checking` finds damage, `repairing` and `recovering` correct it. contrib/docs/data-directory.md has the formats.
"""
