"""The `gnsqadmin` command: looks after the nsqds of a cluster, ours and the real ones alike, and their directories.

It runs without gevent: of gnsqd it imports `wire.codec`, `storage.record`, what reads journals, `log`, `errors` and
`version` alone.
"""
