"""The page: a cluster in a browser, and nsqadmin's JSON API, for `gnsqadmin web` and for `gnsqd --admin-http-address`.

It asks nodes as gnsqadmin does, with the same sentences and numbers. Loaded when it is first asked for.
"""
