"""The part of gnsqd that gnsqadmin and the executors of Spark import: the standard library is all that it needs.

`client` speaks protocol V2 to an nsqd, `directory` and `journal` read a data directory.
"""
