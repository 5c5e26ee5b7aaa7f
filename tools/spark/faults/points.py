"""Where faults are injected into a stream: functions of the data source that the way of a message leads through."""

from typing import NamedTuple


class Point(NamedTuple):
    """A function, and the moment of the fault: see inject/sitecustomize.py."""

    module: str
    name: str
    moment: str
    within: str = ""


_TASK, _SPOOL, _READER = "pyspark_nsq.read_task", "pyspark_nsq.spool", "pyspark_nsq.stream_reader"
_SUBSCRIPTION = "pyspark_nsq.subscription"
_SEAL = f"{_TASK}:_Task.seal"

# In the order of a message's way.
POINTS = {
    "messages in hand": Point(_TASK, "_Task.seal", "before"),
    "segment written, not in the chain": Point("pyspark_nsq.files", "link", "before", _SEAL),
    "segment linked, its name not synced": Point("pyspark_nsq.files", "link", "after", _SEAL),
    "sealed, before FIN": Point(_SUBSCRIPTION, "Subscription.finish", "before"),
    "half of the FINs sent": Point("pyspark_nsq.client", "Client.finish_joined", "halfway"),
    "FINs sent": Point(_SUBSCRIPTION, "Subscription.finish", "after"),
    "before their confirmation": Point(_TASK, "_Task.confirm", "before"),
    "confirmed, before the marker": Point(_SPOOL, "Chain.confirm", "before"),
    "marked, before the end": Point(_SPOOL, "Chain.end", "before"),
    "ended, before rows": Point(_SPOOL, "Chain.end", "after"),
    "handing out rows": Point("pyspark_nsq.columns", "rows_of", "after"),
    "planned": Point(_READER, "NsqStreamReader.partitions", "after"),
    "before commit": Point(_READER, "NsqStreamReader.commit", "before"),
    "after commit": Point(_READER, "NsqStreamReader.commit", "after"),
}

IN_TASK = tuple(name for name, point in POINTS.items() if point.module != _READER)
SEAL_TO_FIN = IN_TASK[1:8]
