"""`spark.read.format("nsq")`: the messages queued now, once.

Messages are gone from the channel when they have been read, since a batch has no commit. With a spool a read is a
snapshot with a name: the first scan that is planned settles in the spool how many messages each task takes, and every
scan under this name (of the same or another action, of a task that is run again) yields the same rows. The name is the
option `readId`, which also a job has that is started again. Without it `load()` makes a name; with Spark Connect, where
each action analyses its frame again, the name follows from the session and the options.
Without a spool every scan takes as many other messages, and a task that dies takes the messages with it that it had
finished, which fails the job rather than leave rows out. With `peek` messages are requeued when a task has seen them.
"""

import logging
import os
import uuid
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark import SparkFiles, TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_nsq.client import Client
from pyspark_nsq.discovery import depths
from pyspark_nsq.errors import DiscoveryError, NsqSourceError, OptionError, plain_errors
from pyspark_nsq.nodes import Nodes
from pyspark_nsq.offsets import Offset, plan_tasks
from pyspark_nsq.options import Settings
from pyspark_nsq.partitions import read_rows
from pyspark_nsq.read_task import ReadPartition, tasks_of
from pyspark_nsq.retention import check_other_reads
from pyspark_nsq.spool import Spool, chain_name

_log = logging.getLogger(__name__)


class NsqReader(DataSourceReader):
    """The reader of one scan, by deliveries or by ranges, whose tasks `plan` returns; it is pickled to them."""

    def __init__(self, settings: Settings, plan: Callable[[], Sequence[object]]) -> None:
        self._settings = settings
        self._plan = plan

    @plain_errors()
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in self._plan()]

    @plain_errors()
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0 and partition is not None:
            check_retry(self._settings, partition.value)
        return read_rows(partition)


def stream_of(settings: Settings, load_id: str) -> str:
    """Returns the directory in the spool that all scans of a read share."""
    name = settings.read_id
    if name is None and _is_connect():
        name = uuid.uuid5(uuid.NAMESPACE_OID, f"{_session()} {settings}").hex
    return chain_name(name or load_id, settings.channel)


def _is_connect() -> bool:
    """Returns True in a session of Spark Connect, which has artifacts of its own."""
    return os.environ.get("SPARK_JOB_ARTIFACT_UUID", "default") != "default"


def _session() -> str:
    """Returns the directory that Spark made for the files of this application, or of this session of Spark Connect."""
    return SparkFiles._root_directory or ""


def plan(settings: Settings, stream: str) -> list[ReadPartition]:
    """Returns the tasks of a scan of the read `stream`: with a spool, those of its first scan; else tasks for what is
    queued now. DiscoveryError, also if no nsqd has one of the topics; OptionError; SpoolError."""
    if not settings.spool:
        if not settings.peek and settings.fail_on_data_loss:
            _log.warning(
                "'spool' is off: messages are finished as they are read. Messages that Spark does not use (show, "
                "limit) are lost, and every scan (sort, join, union, a second action) reads other messages"
            )
        return tasks_of(_look(settings, stream), settings)
    spool = Spool.of(settings, stream)
    settled = spool.plan()
    if settled is None:
        check_other_reads(settings, _session())
        looked = _look(settings, stream)
        if not looked.chains and settings.read_id is None and _is_connect():
            return []  # or all reads of the session with these options would stay empty
        session = _session() if settings.read_id is None else ""
        Spool.create(settings, stream, "read", session)
        settled = spool.settle_plan(looked.to_json())
    elif settings.read_id is not None:
        about = spool.about()
        topics = about.get("topics", settings.subscription)
        if set(topics) != set(settings.subscription):
            raise OptionError(
                f"option 'readId' has the value {settings.read_id!r}, which is the name of a read of other topics: "
                f"expected 'subscribe' = {','.join(topics)!r}, or another name"
            )
        if about.get("session"):
            spool.mark_named()
    return tasks_of(Offset.from_json(settled), settings)


def _look(settings: Settings, stream: str) -> Offset:
    """What is queued now, as the only batch of `stream`. Creates the channel if it is missing, so that nsqds keep for
    the next read what comes from now on."""
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
        with Client.connect(nsqd.tcp, settings) as client:  # or tasks would find the wrong address
            if not at.channel_exists:
                client.subscribe(topic, settings.channel)
    # The topic's queued messages move over into the channel.
    waiting = {(topic, nsqd.name): at.channel + at.topic for (topic, nsqd), at in there.items()}
    min_partitions = settings.min_partitions
    if settings.peek:  # by one task each, since a second one would see what the first one has requeued
        seen = {key: min(count, settings.max_in_flight) for key, count in waiting.items()}
        if seen != waiting:
            _log.warning("'peek' shows %d of %d messages: see 'maxInFlight'", sum(seen.values()), sum(waiting.values()))
        waiting, min_partitions = seen, None
    chains = plan_tasks(waiting, settings.max_in_flight, min_partitions)
    return Offset(stream, 1, settings.channel, chains, nodes.known)


def check_retry(settings: Settings, task: ReadPartition | None) -> None:
    """NsqSourceError for a second run of a task if the first one may have taken messages with it."""
    if task is not None and not settings.spool and not settings.peek and settings.fail_on_data_loss:
        raise NsqSourceError(
            f"a task that read topic {', '.join(task.quotas)} from nsqd {task.nsqd.name} died, and rows may be lost "
            "with it: with option 'spoolLocation' the next run would have yielded them; "
            "'failOnDataLoss' = 'false' goes on without them"
        )
