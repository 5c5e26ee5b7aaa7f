"""Metrics of a program's own streaming queries, for Prometheus."""

from contextlib import ExitStack

from pyspark.sql.streaming import listener

from pyspark_nsq.progress import QueryMetrics, read_progress


class NsqMetrics(listener.StreamingQueryListener):
    """Serves the metrics of all queries of a session that read from NSQ; an argument of `spark.streams.addListener`.

    The label `pipeline` is the name of a query, or its id if it has none. A query has series from its first batch until
    it ends. Raises NsqSourceError if the address is taken.
    """

    def __init__(self, host: str, port: int) -> None:
        self._metrics = QueryMetrics()
        self._names: dict[str, str] = {}  # of the running queries, by the id of the run
        self._serving = ExitStack()
        self.port = self._serving.enter_context(self._metrics.serve((host, port), type(self).__name__))

    def onQueryStarted(self, event: listener.QueryStartedEvent) -> None:  # noqa: N802
        """Does nothing yet: the query may have no source of NSQ."""

    def onQueryProgress(self, event: listener.QueryProgressEvent) -> None:  # noqa: N802
        progress = read_progress(event.progress.json)
        if progress.unread is not None:
            name = self._names[str(event.progress.runId)] = event.progress.name or str(event.progress.id)
            self._metrics.add(name, progress)

    def onQueryIdle(self, event: listener.QueryIdleEvent) -> None:  # noqa: N802
        if name := self._names.get(str(event.runId)):
            self._metrics.alive(name, event.timestamp)

    def onQueryTerminated(self, event: listener.QueryTerminatedEvent) -> None:  # noqa: N802
        if name := self._names.pop(str(event.runId), None):
            self._metrics.remove(name)

    def close(self) -> None:
        """Ends serving."""
        self._serving.close()
