"""A stream of deliveries: plans batches on the driver; tasks read them, see read_task.

NSQ has no offsets. A batch is planned from /stats (see backlog): for each topic of each nsqd how many
messages wait there, cut to the limit of the trigger and split into tasks. That plan is the offset which Spark stores,
so a replay of the batch has the same tasks, and the spool has what each of them has read. What was planned but not
to be had (another consumer was faster) is planned again while it waits.
"""

import logging
import uuid
from collections.abc import Sequence
from typing import Any

from pyspark_nsq.backlog import Backlog, Drain
from pyspark_nsq.errors import SpoolError
from pyspark_nsq.offsets import Offset, plan_tasks, report, share
from pyspark_nsq.options import Settings
from pyspark_nsq.read_task import ReadPartition, tasks_of
from pyspark_nsq.retention import Retention, others_of
from pyspark_nsq.spool import Spool, check_location

_log = logging.getLogger(__name__)


class DeliveryStream:
    """Plans the batches of one streaming query. A stream that `is_draining` reads what there is at the first look."""

    def __init__(self, settings: Settings, is_draining: bool) -> None:
        self._settings = settings
        self._backlog = Backlog(settings)
        self._drain = Drain(self._backlog, settings.msg_timeout_ms) if is_draining else None
        self._retention: Retention | None = None
        self._latest: dict[str, Any] | None = None
        self._kept: dict[str, int] = {}  # in the spool, at the last commit

    def initial(self) -> dict[str, Any]:
        """Returns the offset of a new stream, which has read nothing yet."""
        return Offset(uuid.uuid4().hex, 0, self._settings.channel).to_json()

    def next(self, start: dict[str, Any], limit: int | None) -> dict[str, Any]:
        """Returns the plan of the next batch, of `limit` messages at most; `start` itself if nothing waits."""
        before = Offset.from_json(start)
        if before.batch == 0 and self._latest is None and self._settings.spool_location is not None:
            check_location(self._settings.spool_location)
        if self._drain is None:
            waiting = self._backlog.look(before)
        else:
            waiting = self._drain.look(before, self._spool(before.stream) if self._settings.spool else None)
        counts = share(waiting, limit)
        if not any(counts.values()):
            self._latest = report(before, self._backlog.depths, counts)
            if self._drain is not None:
                # Spark has noted the batch before as committed when it asks for another one, but does not report it
                # before the next run. (That is otherwise with asynchronous progress tracking, which has no drain.)
                self.commit(start)
            return start
        if self._drain is not None:
            self._drain.plan(before.batch + 1, counts)
        if before.batch == 0 and self._settings.spool:
            self._warn_of_other_streams(before.stream)
            Spool.create(self._settings, before.stream, "readStream")
        chains = plan_tasks(counts, self._settings.max_in_flight, self._settings.min_partitions)
        end = Offset(before.stream, before.batch + 1, self._settings.channel, chains, self._backlog.nodes.known)
        self._latest = report(end, self._backlog.depths, counts)
        return end.to_json()

    @property
    def report(self) -> dict[str, Any] | None:
        """The messages unread and in flight besides the batch planned last, and the figures of the spool."""
        return self._latest and self._latest | self._kept

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[ReadPartition]:
        """Returns the tasks of the batch that `end` plans. In a replay of a first batch, `start` is the initial offset
        of this reader and not of the one that planned it: the stream is that of `end`."""
        before, after = Offset.from_json(start), Offset.from_json(end)
        if after.batch == 0 or (before.stream, before.batch) == (after.stream, after.batch):
            return []
        if self._settings.spool:
            self._check_spool(after)
            if before.stream == after.stream:
                self._end_chains(before)
        return tasks_of(after, self._settings)

    def commit(self, end: dict[str, Any]) -> None:
        """Notes that the sink has everything up to `end`, and deletes what the spool need not keep."""
        offset = Offset.from_json(end)
        if not self._settings.spool or offset.batch == 0:
            return
        if self._retention is None:
            self._retention = Retention(self._spool(offset.stream), self._settings)
        try:
            self._end_chains(offset)
            self._kept = self._retention.commit(offset.batch)
        except (OSError, SpoolError) as error:
            _log.warning("the spool is not tidied up: %s", error)  # next time

    def _spool(self, stream: str) -> Spool:
        return Spool.of(self._settings, stream)

    def _warn_of_other_streams(self, stream: str) -> None:
        """A new stream does not read what another one, whose checkpoint may be deleted, has left in the spool."""
        location = self._settings.spool_location
        for other in others_of(self._settings, "readStream"):
            if other.takes_from(self._settings) and other.uncommitted_messages and other.stream != stream:
                _log.warning(
                    f"the spool at {location} has {other.uncommitted_messages} messages of stream {other.stream} that "
                    "are not committed. This query is a new stream and does not read them: if the checkpoint of that "
                    f"stream is gone, `gnsq-pipeline spool replay {location} {other.stream}` publishes them again"
                )

    def _check_spool(self, offset: Offset) -> None:
        """SpoolError if the stream's directory is gone, and with it perhaps messages that NSQ no longer has."""
        spool = self._spool(offset.stream)
        if spool.exists():
            return
        what = (
            f"{spool.directory} is gone: messages that were read and not committed yet are lost, "
            "and ids that were remembered"
        )
        if self._settings.fail_on_data_loss:
            raise SpoolError(f"{what} ('failOnDataLoss' = 'false' goes on without them)")
        _log.warning("%s", what)
        Spool.create(self._settings, offset.stream, "readStream")

    def _end_chains(self, offset: Offset) -> None:
        """See to it that nothing is put any more into the batch before, which is over: the tasks of the next one
        compare with what is in it. Spark may have left a task behind that still runs, or never ran one."""
        spool = self._spool(offset.stream)
        if offset.batch <= spool.committed():
            return
        for number, (nsqd, tasks) in enumerate(offset.chains):
            chain = spool.chain(offset.batch, number, nsqd)
            chain.open()
            for part in range(len(tasks)):
                chain.end(part)
