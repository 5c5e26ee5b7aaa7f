"""`spark.read.format("nsq")`: what waits now, once.

How many messages each task may take is settled when the first action on a DataFrame is planned; other actions on it
use the same plan, `load()` makes a new one. Messages are gone from the channel when they have been read, since a batch
has no commit. With a spool the DataFrame is a snapshot: other actions, and tasks that are run again, yield the same
rows. Without one every action takes as many messages anew, and a task that dies takes the messages with it that it had
finished, which fails the job rather than leave rows out.
"""

import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_nsq.client import Client
from pyspark_nsq.discovery import Nsqd, depth, find_nsqds
from pyspark_nsq.errors import DiscoveryError, NsqSourceError
from pyspark_nsq.offsets import split
from pyspark_nsq.read_task import ReadPartition, read_partition
from pyspark_nsq.retention import remove_old_reads
from pyspark_nsq.settings import Settings
from pyspark_nsq.spool import Spool

_RETENTION = 86400.0  # seconds that segments of a read are kept at least, since nobody tells when it is over


class NsqReader(DataSourceReader):
    """One query's reader; it is pickled to the tasks."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in plan(self.settings)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # what Spark makes of no partitions
            return iter(())
        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            check_retry(self.settings, partition.value)
        return read_partition(partition.value)


def plan(settings: Settings) -> list[ReadPartition]:
    """The tasks that read what waits now. The channel is made where it is missing, so that nsqds keep for the next read
    what comes from now on. DiscoveryError, also if no nsqd has one of the topics."""
    waiting: dict[tuple[str, Nsqd], int] = {}
    for topic in settings.topics:
        nsqds = find_nsqds(settings, topic)
        found = {nsqd: depth(settings, nsqd, topic, settings.channel) for nsqd in nsqds}
        if not any(there.topic_exists for there in found.values()):
            asked = f": asked {', '.join(nsqd.name for nsqd in nsqds)}" if nsqds else ""
            raise DiscoveryError(f"no nsqd has the topic {topic!r}{asked}")
        for nsqd, there in found.items():
            if there.topic_exists and not there.channel_exists:
                with Client.connect(nsqd.tcp, settings.connection) as client:
                    client.subscribe(topic, settings.channel)
            # What waits in the topic moves over into the channel.
            waiting[topic, nsqd] = there.channel + there.topic
    quotas = split(waiting, settings.min_partitions)
    stream = uuid.uuid4().hex
    if settings.spool and quotas:
        assert settings.spool_location is not None
        Spool.create(settings.spool_location, stream, kind="read", topics=settings.topics, channel=settings.channel)
        remove_old_reads(settings.spool_location, max(_RETENTION, settings.spool_retention))
    return [
        ReadPartition(settings, stream, 1, nsqd, topic, part, quota)
        for (topic, nsqd), parts in quotas.items()
        for part, quota in enumerate(parts)
    ]


def check_retry(settings: Settings, task: ReadPartition) -> None:
    """NsqSourceError for a second run of a task if the first one may have taken messages with it."""
    if not settings.spool and settings.fail_on_data_loss:
        raise NsqSourceError(
            f"a task that read topic {task.topic!r} from nsqd {task.nsqd.name} died, and rows may be lost with it: "
            "with option 'spoolLocation' the next run would have yielded them; "
            "'failOnDataLoss' = 'false' goes on without them"
        )
