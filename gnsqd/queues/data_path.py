"""The data path: opens the store of each topic, on what daemons before this one left there."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from gnsqd.log import Logger
from gnsqd.options import Options
from gnsqd.queues.journal.journals import Journals, find_journals
from gnsqd.queues.store import Context, Store
from gnsqd.shared.errors import StartError, StorageError
from gnsqd.shared.names import is_valid_name
from gnsqd.storage.directory import clean_up
from gnsqd.storage.disk.opening import DataFiles
from gnsqd.storage.files import list_names
from gnsqd.storage.metadata import FILE_NAME, ChannelMetadata, TopicMetadata, load, save
from gnsqd.storage.syncer import Syncer

if TYPE_CHECKING:
    from gnsqd.queues.journal.journal import Journal
    from gnsqd.queues.journal.shipping import Shipper
    from gnsqd.queues.journal.store import JournalStore

CONVERTED_AT_ONCE = 8  # journals; most of it is waiting for fsync
MAX_DELAY = 1 << 62  # ns


class DataPath:
    """Reads the data path, once, as thousands of queues take long, and cleans up there; raises StorageError."""

    def __init__(
        self,
        options: Options,
        log: Logger,
        syncer: Syncer,
        set_health: Callable[[Exception | None], None],
        check_exit: Callable[[], None] = lambda: None,
        shipper: "Shipper | None" = None,
    ) -> None:
        names = list_names(options.data_path)
        data_files = DataFiles(options.data_path, names)
        clean_up(data_files, names, log)
        self.context = Context(options, log, data_files, syncer, set_health, check_exit)
        self.journals = Journals(options, names, log, syncer, set_health, shipper)

    def open_store(self, topic: str) -> Store:
        """Opens the store of a topic; raises StorageError."""
        if self.context.options.has_journal(topic):
            return self._journal_store(topic, self.journals.open(topic))
        return Store(topic, self.context)

    def _journal_store(self, topic: str, journal: "Journal") -> "JournalStore":
        from gnsqd.queues.journal.store import JournalStore  # here, as daemons without --durability do not need it

        return JournalStore(topic, self.context, journal)

    def end_journals(self, topics: list[TopicMetadata]) -> list[TopicMetadata]:
        """Converts all journals to disk queues if there is no durability; returns `topics`, and topics of journals.
        Raises StartError if one could not be converted, and StorageError. May yield."""
        if self.context.options.durability != "none" or not self.journals.topics:
            return topics
        from gevent.pool import Pool  # few have journals to convert

        known = {topic.name: topic for topic in topics}
        names = filter(is_valid_name, self.journals.topics)
        Pool(CONVERTED_AT_ONCE).map(lambda name: self._end_journal(name, known), names)
        data_path = self.context.options.data_path
        if find_journals(data_path, list_names(data_path)):
            # Disk queues that are incomplete now would be taken for copies by the next gnsqd that has a journal.
            raise StartError(
                "a journal could not be turned into disk queues, which --durability=process or disk does not need"
            )
        return list(known.values())

    def _end_journal(self, name: str, known: dict[str, TopicMetadata]) -> None:
        """Converts one. nsqd.dat and `known` list its topic and channels before the journal goes."""
        journal = self.journals.open(name)
        store = self._journal_store(name, journal)
        topic = known.get(name, TopicMetadata(name))
        channels = [channel for channel in topic.channels if is_valid_name(channel.name)]
        names = {channel.name for channel in channels}
        channels += [ChannelMetadata(name, False) for name in store.restored_channels if name not in names]
        queues = [store.channel_queue(channel.name) for channel in channels]
        if journal.is_needed or journal.replay.converting:
            for queue in queues:
                store.adopt(queue)
            store.start()  # else the disk queues are complete, and a kill came before the journal was gone
        if name not in known or channels != topic.channels:
            known[name] = TopicMetadata(name, topic.paused, channels)
            listed = [topic for topic in known.values() if is_valid_name(topic.name)]
            try:
                save(os.path.join(self.context.options.data_path, FILE_NAME), listed)
            except StorageError as error:
                self.context.log.error("failed to persist metadata - %s", error)
                journal.close()
                return
        store.close()


def convert(data_path: str, log: Logger) -> None:
    """Converts all journals of a locked data path; raises StorageError or StartError: then these still have all
    messages."""
    syncer = Syncer()
    try:
        options = Options(data_path=data_path, max_req_timeout=MAX_DELAY)
        topics = load(os.path.join(data_path, FILE_NAME))
        DataPath(options, log, syncer, lambda error: None).end_journals(topics)
    finally:
        syncer.stop()
