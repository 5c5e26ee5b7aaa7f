"""Reads and repairs data directories of a stopped nsqd: `gnsqadmin data`.

`gnsqd.shared.directory` lists a directory, `records` reads the files of a queue and continues behind damage,
`checking` finds damage, `repairing` corrects it. contrib/docs/structures.md has the formats.
"""
