"""`spark.readStream.format("nsq")` by deliveries, and `spark.read` with 'peek'.

A batch is planned from /stats (see backlog): for each topic of each nsqd how many messages wait there, cut to the limit
of the trigger. The driver receives them, and holds them until Spark has committed the batch. The offset is the number
of the batch. What a driver that died had in hand is delivered again by nsqd, in a later batch: when Spark runs again
the batch that was planned last, it has no rows.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark_nsq.client import SourceClient
from pyspark_nsq.deliveries.backlog import Backlog, BacklogDrain
from pyspark_nsq.deliveries.batch import DeliveryBatch, DeliveryPartition
from pyspark_nsq.discovery import depths
from pyspark_nsq.errors import DiscoveryError, NsqSourceError
from pyspark_nsq.nodes import Nodes, share
from pyspark_nsq.options import Settings

VERSION = 3

_log = logging.getLogger(__name__)


class DeliveryStream:
    """Plans the batches of one streaming query, and holds the one planned last. A stream that `is_draining` reads what
    there is at the first look."""

    def __init__(self, settings: Settings, is_draining: bool) -> None:
        self._settings = settings
        self._backlog = Backlog(settings)
        self._drain = BacklogDrain(self._backlog, settings.msg_timeout_ms) if is_draining else None
        self._held: tuple[int, DeliveryBatch] | None = None  # and its number
        self.report: dict[str, Any] | None = None  # the messages unread and in flight besides that batch

    def initial(self) -> dict[str, Any]:
        """Returns the offset of a new stream, which has read nothing yet."""
        return self._offset(0)

    def _offset(self, batch: int) -> dict[str, Any]:
        return {"version": VERSION, "channel": self._settings.channel, "batch": batch}

    def next(self, start: dict[str, Any], limit: int | None) -> dict[str, Any]:
        """Returns the offset of the next batch, of `limit` messages at most; `start` itself if nothing comes."""
        number = _batch(start)
        self.commit(start)  # Spark asks for another batch when it has committed the one before
        while self._held is None:
            waiting = (self._drain or self._backlog).look(is_new=number == 0)
            most = self._settings.max_in_flight
            quotas = share(waiting, most if limit is None else min(limit, most))
            if not any(quotas.values()) or not (self._drain or self._backlog.pace.is_enough(sum(waiting.values()))):
                self.report = self._backlog.report({})
                return start
            batch = DeliveryBatch(self._settings, quotas, self._backlog.nodes.known)
            self.report = self._backlog.report(batch.counts)
            if self._drain:
                self._drain.took(quotas, batch.counts, batch.missed)
            if batch.tasks:
                self._held = number + 1, batch
                self._backlog.pace.looked(is_new=True)
            else:
                batch.release()
                if not self._drain:
                    return start
        return self._offset(self._held[0])

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[DeliveryPartition]:
        """Returns the tasks of the batch `end`; none if another process planned it, or if it is over."""
        if _batch(start) < _batch(end) and self._held and self._held[0] == _batch(end):
            return self._held[1].tasks
        return []

    def commit(self, end: dict[str, Any]) -> None:
        """Finishes the messages: the sink has everything up to `end`."""
        if self._held and self._held[0] <= _batch(end):
            self._held[1].finish()
            self._held = None


def _batch(offset: Mapping[str, Any]) -> int:
    """Returns the number of the last batch before an offset. Raises NsqSourceError if it is not of such a stream."""
    version, batch = offset.get("version"), offset.get("batch")
    if "stream" in offset:
        raise NsqSourceError(
            "the checkpoint was written by a release with a spool, which may have messages that no nsqd has any more: "
            "let that release finish its batch, then use another checkpointLocation"
        )
    if version != VERSION or type(batch) is not int:
        raise NsqSourceError(
            f"the checkpoint has no number of a batch of deliveries, but {dict(offset)}: it was written by a query "
            "that reads ranges, by another version of pyspark_nsq, or by another source"
        )
    return batch


def peek(settings: Settings) -> Sequence[DeliveryPartition]:
    """Returns tasks with the messages that are queued now, which are given back. A missing channel is created, so that
    nsqds keep what comes from now on. Raises DiscoveryError if an nsqd does not answer, or none has a topic,
    ConnectionLost and Refused if messages cannot be had."""
    nodes = Nodes(settings)
    answers = nodes.ask(lambda nsqd: depths(settings, nsqd))
    nodes.check_silent(is_required=True)
    there = {(topic, nsqd): at for nsqd, found in answers.items() for topic, at in found.items() if at.topic_exists}
    for name in settings.topics or ("",):
        if not any(name in ("", topic) for topic, _ in there):
            what = f"the topic {name!r}" if name else f"a topic that matches {settings.topic_pattern!r}"
            asked = ", ".join(nsqd.name for nsqd in nodes.listed[name])
            raise DiscoveryError(f"no nsqd has {what}{asked and ': asked '}{asked}")
    for (topic, nsqd), at in there.items():
        with SourceClient.connect(nsqd.tcp, settings) as client:  # an address that is wrong is an error
            if not at.channel_exists:
                client.subscribe(topic, settings.channel)
    # The topic's queued messages move over into the channel.
    waiting = {(topic, nsqd.name): at.channel + at.topic for (topic, nsqd), at in there.items()}
    batch = DeliveryBatch(settings, share(waiting, settings.max_in_flight), nodes.known)
    batch.release()
    if (count := sum(batch.counts.values())) < sum(waiting.values()):
        text = "'peek' shows %d of %d messages: it has at most 'maxInFlight', and about 64 MiB"
        _log.warning(text, count, sum(waiting.values()))
    return batch.tasks
