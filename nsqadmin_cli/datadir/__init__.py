"""Data directories of an nsqd, read and mended while it does not run: `gnsqadmin data`.

`directory` lists what is there, `records` reads one file and finds its way past damage, `queue` puts a queue together,
`checking` says what is wrong, `repairing` and `recovering` mend it. contrib/docs/data-directory.md has the formats.
"""
