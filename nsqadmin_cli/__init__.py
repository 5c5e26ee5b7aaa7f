"""The `gnsqadmin` command: looks at the nsqds of a cluster, ours and the real ones alike, over their HTTP API.

It runs without gevent: of gnsqd it imports `wire.codec`, `storage.record` and `version` alone.
"""
