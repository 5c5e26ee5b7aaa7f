"""The ids of messages that were read before, to drop messages that NSQ delivers again.

A message comes again when its FIN was lost: its task died, its connection broke, or its time ran out before the FIN.
Then nsqd counts another attempt, so as long as an nsqd has not been restarted, a first attempt needs no look. One that
was killed may have forgotten attempts and FINs alike: what was sealed before its restart is compared in any case. A
rewind also repeats messages as first attempts: with `deliverRewound`, these are new in any case.

The segments of uncommitted batches are looked at themselves. When a batch is committed, `archive` puts its ids into
files that are sorted and named after what a reader must know to pass them by:

    {batch}-{number}-{messages}-{start time of the nsqd}-{confirmed|suspect}-{lowest id}-{highest id}.ids

with the ids in hexadecimal; each is a segment without messages. Suspects are ids whose FIN nobody has confirmed. nsqd's
ids begin with the time, so ranges rarely overlap, and hardly a file is ever opened.
"""

import os
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from pyspark_nsq.columns import Messages
from pyspark_nsq.files import names_in, place
from pyspark_nsq.segment import ID_LENGTH, Entry, EntryKind, fixed_size_ids, pack_entry, read_entry, read_ids, split_ids
from pyspark_nsq.spool import Chain, Spool

_IDS_OF_A_FILE = 500_000
_NAME = re.compile(r"(\d+)-\d+-(\d+)-(\d+)-(confirmed|suspect)-([0-9a-f]+)-([0-9a-f]+)\.ids")


class IdsFile(NamedTuple):
    """What the name of an ids file contains."""

    path: str
    batch: int
    messages: int
    started: int
    confirmed: bool
    low: bytes
    high: bytes


def ids_files(spool: Spool, nsqd: str | None = None) -> list[IdsFile]:
    """Returns the ids files of a stream, or those of one nsqd."""
    nsqds = map(unquote, names_in(os.path.join(spool.directory, "ids"))) if nsqd is None else [nsqd]
    files = []
    for directory in map(spool.ids_directory, nsqds):
        for match in filter(None, map(_NAME.fullmatch, sorted(names_in(directory)))):
            batch, messages, started = map(int, match.group(1, 2, 3))
            low, high = map(bytes.fromhex, match.group(5, 6))
            path = os.path.join(directory, match[0])
            files.append(IdsFile(path, batch, messages, started, match[4] == "confirmed", low, high))
    return files


def archive(spool: Spool, batch: int) -> int:
    """Writes the ids files of a batch; doing it again replaces them. Returns how many messages its tasks dropped."""
    dropped = 0
    groups: dict[tuple[str, int, bool], list[Entry]] = {}
    for nsqd, chain in spool.chains(batch):
        dropped += sum(entry.started for entry in chain.entries if entry.kind is EntryKind.END)
        confirmed = chain.confirmed()
        for entry in chain.segments():
            groups.setdefault((nsqd, entry.started, entry.slot in confirmed), []).append(entry)
    for (nsqd, started, sure), entries in groups.items():
        directory = spool.ids_directory(nsqd)
        place(directory).make_directory(directory)
        for number, ids in enumerate(_sorted_ids(entries)):
            low, high = min(one[:ID_LENGTH] for one in ids.values()), max(one[-ID_LENGTH:] for one in ids.values())
            doubt = "confirmed" if sure else "suspect"
            messages = sum(map(len, ids.values())) // ID_LENGTH
            name = f"{batch:010d}-{number:04d}-{messages}-{started}-{doubt}-{low.hex()}-{high.hex()}.ids"
            path = os.path.join(directory, name)
            place(path).replace(path, pack_entry(EntryKind.SEGMENT, 0, started, ids))
    return dropped


def _sorted_ids(entries: Sequence[Entry]) -> Iterator[dict[str, bytes]]:
    """Yields the ids of the segments by topic, joined and sorted, in pieces of bounded length."""
    found: dict[str, bytearray] = {}
    for entry in entries:
        for topic, ids in read_ids(entry).items():
            found.setdefault(topic, bytearray()).extend(ids)
        if sum(map(len, found.values())) >= ID_LENGTH * _IDS_OF_A_FILE or entry is entries[-1]:
            columns = {topic: fixed_size_ids(bytes(ids)).sort() for topic, ids in found.items()}
            yield {topic: column.buffers()[1].to_pybytes()[: len(found[topic])] for topic, column in columns.items()}
            found.clear()


@lru_cache(maxsize=8)
def _ids_of_file(path: str) -> dict[str, bytes]:
    """Returns joined and sorted ids by topic: they are too many to have them as objects."""
    return read_ids(read_entry(path, 0))


def _is_among(ids: bytes, id: bytes) -> bool:
    at = bisect_left(range(0, len(ids), ID_LENGTH), id, key=lambda begin: ids[begin : begin + ID_LENGTH])
    return ids[ID_LENGTH * at : ID_LENGTH * (at + 1)] == id


@lru_cache(maxsize=256)
def _ids_of_segment(entry: Entry) -> dict[str, frozenset[bytes]]:
    return {topic: frozenset(split_ids(ids)) for topic, ids in read_ids(entry).items()}


class KnownIds:
    """What was read before from an nsqd, for a task of `batch`; `chain` is the one it appends to.

    `started` is when the nsqd was started that now sends; 0 if that is not known.
    """

    def __init__(self, spool: Spool, batch: int, nsqd: str, started: int, chain: Chain, rewound: bool) -> None:
        self._started = started
        self._rewound = rewound
        self._chain = chain
        self._earlier: list[IdsFile | Entry] = []
        # In this order a batch that is committed meanwhile is seen one way or the other.
        committed = spool.committed()
        for earlier in spool.batches():
            if committed < earlier < batch:
                self._earlier += [entry for _, one in spool.chains(earlier, nsqd) for entry in one.segments()]
        committed = spool.committed()
        files = [file for file in ids_files(spool, nsqd) if file.batch <= committed]
        self._earlier += [file for file in files if not (file.confirmed and self._is_same_run(file))]

    def _is_same_run(self, ids: IdsFile | Entry) -> bool:
        """True if a message that is sealed there and comes again is another attempt."""
        return self._rewound or ids.started == self._started != 0

    def among(self, topic: str, messages: Messages) -> set[bytes]:
        """Returns the ids of the messages of a topic that were read before."""
        sealed = [*self._earlier, *self._chain.segments()]
        again = every = messages.again()
        if not all(map(self._is_same_run, sealed)):
            every = set(split_ids(messages.ids))
        return {id for ids in sealed for id in _common(topic, again if self._is_same_run(ids) else every, ids)}


def _common(topic: str, candidates: set[bytes], ids: IdsFile | Entry) -> set[bytes]:
    near = {id for id in candidates if ids.low <= id <= ids.high}
    if not near:
        return near
    if isinstance(ids, Entry):
        return near & _ids_of_segment(ids).get(topic, frozenset())
    stored = _ids_of_file(ids.path).get(topic, b"")
    return {id for id in near if _is_among(stored, id)}
