"""Finds the logs of the topics, where a query begins in each, and the tasks of a batch.

A node that does not answer keeps its position: its log goes on when it is back, under whatever address, and until then
as far as its store has it. A log that is new since the last look, as of a node that was added, is read from its first
message.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gnsqd.shared.stored_topic import StoredRange, log_begin
from pyspark_nsq.client import name_of
from pyspark_nsq.discovery import KnownNsqd, depths, find_nsqds
from pyspark_nsq.errors import DiscoveryError, NsqSourceError, OptionError
from pyspark_nsq.nodes import Nodes, share
from pyspark_nsq.options import EARLIEST, LATEST, Moments, Offsets, Settings
from pyspark_nsq.ranges.node import Extent, LogNode, NoRanges
from pyspark_nsq.ranges.positions import Log, Position, Positions, begin_of, is_ours, pieces, positions_of
from pyspark_nsq.ranges.reading import RangePartition
from pyspark_nsq.ranges.stored import StoredNode

_SPECIAL = {-2: EARLIEST, -1: LATEST}  # numbers that Kafka's source has for these

_PAUSE = 0.5  # seconds between looks for a log
_FIND_INTERVAL = 5.0  # seconds between two questions where the nsqds are that had a log

_log = logging.getLogger(__name__)


class Place(NamedTuple):
    """A log where it was found: at an nsqd or, as that does not answer, in its store."""

    topic: str
    nsqd: KnownNsqd
    extent: Extent
    is_stored: bool = False

    @property
    def log(self) -> Log:
        return self.topic, self.extent.epoch

    def __str__(self) -> str:
        return f"topic {self.topic!r} at nsqd {self.nsqd.name}"

    def position(self, number: int, begin: int | None = None) -> Position:
        published = self.extent.last_published or 0 if number == self.extent.next else 0
        begin = number if begin is None else begin
        return Position(self.topic, self.nsqd.name, self.extent.epoch, number, begin, published)


class Planner:
    """Looks at the logs of all topics, again and again."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.places: dict[Log, Place] = {}  # as they were found last
        self._nodes = Nodes(settings)
        self._stores = {address: StoredNode(url) for address, url in settings.log_stores}
        self.answered: set[str] = set()  # names of the nsqds that answered the last look
        self._find_at = float("-inf")  # when to ask again where the nsqds are that had a log (monotonic)
        self._floors: dict[Log, int] = {}  # where the channel was when its stream first saw the logs
        self._advanced: dict[Log, int] = {}  # to which numbers the channel was

    def look(self, known: Iterable[KnownNsqd] = (), at: Moments = None, channel: str = "") -> list[Place]:
        """Returns the logs that can be read now, with their numbers `at` a time, or which have the channel, with its
        position; `known` is for `Nodes.ask`. Raises DiscoveryError, NoRanges, or NsqSourceError for copies of a log."""
        answers = self._nodes.ask(lambda nsqd: self._places_at(nsqd, at, channel), known)
        found = [place for places in answers.values() for place in places]
        _check_copies(found)
        self.answered = {nsqd.name for nsqd in answers}
        logs = {place.log for place in found}
        found += [place for place in self._places_in_stores(at, channel) if place.log not in logs]
        if not channel:  # else an answer without a log may lack only the channel
            self.places = {log: at for log, at in self.places.items() if at.nsqd.name not in self.answered}
        self.places |= {place.log: place for place in found}
        return found

    def _look_for(self, positions: Iterable[Position]) -> list[Place]:
        """Returns the logs as `look`. Also asks nsqds that had a log and are no longer listed for its topic, which may
        have been deleted."""
        places = self.look()
        names = {position.node for position in self._nowhere(positions)} - self._nodes.known.keys()
        if not names or time.monotonic() < self._find_at:
            return places
        self._find_at = time.monotonic() + _FIND_INTERVAL
        try:
            listed = find_nsqds(replace(self._settings, topic_pattern=""))
        except DiscoveryError:
            return places  # `look` has warned
        found = [nsqd for nsqd in listed if nsqd.name in names]
        return self.look(found) if found else places

    def _nowhere(self, positions: Iterable[Position]) -> list[Position]:
        """Returns the positions in logs that no nsqd has, of topics that the options name."""
        return [each for each in positions if each.log not in self.places and self._settings.matches(each.topic)]

    def _places_at(self, nsqd: KnownNsqd, at: Moments, channel: str) -> list[Place]:
        groups: dict[str, list[str]] = {}
        for topic in self._settings.topics or depths(self._settings, nsqd):
            groups.setdefault(_moment(at, topic), []).append(topic)
        node, places = LogNode(nsqd, self._settings), []
        for moment, topics in (groups or {"": []}).items():  # without topics it is known whether there can be logs
            query = {name: value for name, value in (("channel", channel), ("at", moment)) if value}
            extents = node.extents(topics, **query)
            places += [Place(topic, nsqd, extent) for topic, extent in extents.items()]
        return places

    def _places_in_stores(self, at: Moments, channel: str) -> Iterator[Place]:
        """Yields the logs of nsqds that do not answer, as their stores have them."""
        self._nodes.stored = set()
        for address, node in self._stores.items():
            if (name := name_of(address)) in self.answered:
                continue
            http = address[0], address[1] + 1 + self._settings.nsqd_http_tls
            nsqd = self._nodes.known.get(name, KnownNsqd(name, address, http))
            try:
                for topic in filter(self._settings.matches, node.topics()):
                    if extent := node.extent(topic, channel, _moment(at, topic)):
                        yield Place(topic, nsqd, extent, is_stored=True)
                self._nodes.stored.add(name)
            except DiscoveryError as error:
                _log.warning("%s", error)

    def look_at_all(self, at: Moments = None, channel: str = "") -> list[Place]:
        """Returns the logs of all nsqds as `look`. Raises DiscoveryError also if one does not answer."""
        found = self.look(at=at, channel=channel)
        self._nodes.check_silent(is_required=True)
        return found

    def _look_back(self, offsets: Offsets, at: Moments, channel: str = "") -> Iterator[Place]:
        """Yields the logs as `look_at_all`, from where their stores begin if the options may mean that."""
        for place in self.look_at_all(at, channel):
            node, extent = self._stores.get(place.nsqd.tcp), place.extent
            if node is not None and extent.at <= extent.first and (at or offsets not in ("", LATEST)):
                stored = node.extent(place.topic, at=_moment(at, place.topic))
                if stored is not None and stored.epoch == extent.epoch and stored.next >= extent.first:
                    extent = extent._replace(first=min(stored.first, extent.first), at=min(stored.at, extent.at))
            yield place._replace(extent=extent)

    def begin(self, default: str = "") -> dict[Log, Position]:
        """Returns where a query without a checkpoint begins: at the position in the options, else at `default`, else
        where the channel is. A missing channel is created: from then on nothing is deleted before it is read.
        """
        settings, channel = self._settings, "" if default else self._settings.channel
        if channel:
            for place in self.look_at_all():
                self._floor(place)
        offsets = settings.starting_offsets or default
        places = [*self._look_back(offsets, settings.starting_timestamp, channel)]
        if not places and not default:
            _log.warning("no nsqd has %s yet: the stream waits", _subscribed(settings))
        _check_names(offsets, places, "startingOffsets")
        late = [each for each in places if each.extent.at == each.extent.next]  # the time is after the last message
        if settings.timestamp_strategy == "error" and late:
            raise OptionError(f"option 'startingTimestamp': {late[0]} has no message that was published then or later")
        return positions_of(
            place.position(place.extent.at or _number(offsets, place, place.extent.position)) for place in places
        )

    def end(self) -> dict[Log, Position]:
        """Returns where a batch ends: at the position in the options, else behind the last message."""
        at, offsets = self._settings.ending_timestamp, self._settings.ending_offsets or LATEST
        places = [*self._look_back(offsets, at)]
        _check_names(offsets, places, "endingOffsets")
        return positions_of(
            place.position(place.extent.at or _number(offsets, place, place.extent.next)) for place in places
        )

    def latest(self) -> dict[Log, Position]:
        """Returns the positions behind the last messages of the logs. Raises DiscoveryError as `Nodes.check_silent`."""
        places = self.look()
        self._nodes.check_silent()
        return positions_of(place.position(place.extent.next) for place in places)

    def check_drained(self, positions: Positions, target: Positions) -> None:
        """Raises DiscoveryError as `Nodes.check_silent`, or if a position is before its target; warns of positions in
        logs that are nowhere."""
        left = [end for log, end in target.items() if log not in positions or positions[log].number < end.number]
        gone = "topic {!r} is not read up to message {}, as nsqd {} is gone"
        self._nodes.check_silent(missed=[gone.format(end.topic, end.number, end.node) for end in left])
        for topic, epoch in positions.keys() - self.places.keys():
            node = positions[topic, epoch].node
            _log.warning("no nsqd has the log %s of topic %r, which nsqd %s had: it is not read", epoch, topic, node)

    def _floor(self, place: Place, deadline: float = 0.0) -> int:
        """Returns where the channel was when its stream first saw a log; creates a missing one. What is gone from there
        on, others have finished: only before it, the stream itself may have, if its checkpoint is an older copy. Raises
        DiscoveryError if the nsqd does not answer, and the deadline (monotonic) is over."""
        node, channel = LogNode(place.nsqd, self._settings), self._settings.channel
        if place.is_stored and place.log not in self._floors:
            extent = self._stores[place.nsqd.tcp].extent(place.topic, channel)
            return extent.position if extent else place.extent.next  # the channel is created when the nsqd is back
        while place.log not in self._floors:
            try:
                if (extent := node.extent(place.topic, channel=channel)) is None:
                    node.create_channel(place.topic, channel)
                    extent = node.extent(place.topic, channel=channel)
                self._floors[place.log] = extent.position if extent else place.extent.next
            except DiscoveryError as error:
                if time.monotonic() >= deadline:
                    raise
                _log.warning("%s; it is asked again", error)
                time.sleep(_PAUSE)
        return self._floors[place.log]

    def next(self, start: Positions, most: Positions | None = None) -> dict[Log, Position]:
        """Returns the end of the batch that begins at `start`: what there is now, or up to `most`, within the limits of
        a trigger. Logs that were deleted have no position any more. Raises NsqSourceError if messages are lost."""
        places = {place.log: place for place in self._look_for(start.values())}
        begins = {**start}
        for log, position in start.items():
            if self._is_deleted(position):
                self._lose(self._deleted(position, position.number))
                del begins[log]
        for log, place in places.items():
            if log in begins:
                continue
            try:
                begins[log] = place.position(min(place.extent.first, self._floor(place)))
            except DiscoveryError as error:
                _log.warning("%s; %s is read when it answers", error, place)
        ends = {}
        for log, position in begins.items():
            if log not in places:
                continue
            place, number = places[log], position.number
            if place.extent.next < number and place.is_stored:
                continue  # the nsqd had more than its store has yet
            if place.extent.next < number:
                text = f"it ends at message {place.extent.next}, but {number} was reached: an older copy was restored"
                self._lose(f"{place}: {text}")
                begins[log] = place.position(place.extent.next)
                continue
            published = position.published and self._published(place, number)
            if position.published != published != 0:
                text = f"message {number - 1} is not the one that was read: an older copy was restored"
                self._lose(f"{place}: {text}")
                begins[log] = position._replace(published=published)
            last = place.extent.next
            if most is not None:
                last = min(last, most[log].number if log in most else number)
            ends[log] = max(last, number)
        return self._limited(begins, ends, places)

    def _published(self, place: Place, number: int) -> int:
        """Returns when the message before `number` was published (ns); 0 if it is not there any more, or nobody
        answers."""
        if number == place.extent.next:
            return place.extent.last_published or 0
        try:
            node = self._stores[place.nsqd.tcp] if place.is_stored else LogNode(place.nsqd, self._settings)
            return node.published(*place.log, number - 1)
        except DiscoveryError as error:
            _log.warning("%s", error)
            return 0

    def _is_deleted(self, position: Position) -> bool:
        """Returns True if the nsqd that had the log answered without it, and no other one has it."""
        return position.node in self.answered and bool(self._nowhere([position]))

    def _deleted(self, position: Position, number: int) -> str:
        at = position.topic, position.node
        is_there = any((place.topic, place.nsqd.name) == at for place in self.places.values())
        what = "another log of" if is_there else "no"
        return f"nsqd {position.node} has {what} topic {position.topic!r}: messages from number {number} on may be lost"

    def _lose(self, text: str) -> None:
        if self._settings.fail_on_data_loss:
            raise NsqSourceError(f"{text} ('failOnDataLoss' = 'false' goes on with what is there)")
        _log.warning("%s; what is there is read", text)

    def _limited(self, begins: Positions, ends: Mapping[Log, int], places: Mapping[Log, Place]) -> dict[Log, Position]:
        sizes = {log: end - begins[log].number for log, end in ends.items()}
        taken = share(sizes, self._settings.max_messages_per_trigger)
        if self._settings.max_bytes_per_trigger is not None:
            extents = {log: places[log].extent for log in taken}
            means = {log: max(at.bytes // max(at.next - at.first, 1), 1) for log, at in extents.items()}
            volumes = {log: count * means[log] for log, count in taken.items()}
            allowed = share(volumes, self._settings.max_bytes_per_trigger)
            taken = {log: min(count, -(-allowed[log] // means[log])) for log, count in taken.items()}
        result = {**begins}
        for log, count in taken.items():
            if count or places[log].nsqd.name != begins[log].node:
                number = begins[log].number + count
                end = places[log].position(number, begins[log].begin)
                result[log] = end._replace(published=self._published(places[log], number))
        return result

    def unread(self, positions: Positions) -> dict[str, dict[str, int]]:
        """Returns, by topic and nsqd, how many messages are behind these positions, of nsqds that answer."""
        counts: dict[str, dict[str, int]] = {}
        silent = self._nodes.silent.keys() - self._nodes.stored
        for log, position in positions.items():
            if (place := self.places.get(log)) is not None and place.nsqd.name not in silent:
                nodes = counts.setdefault(place.topic, {})
                nodes[place.nsqd.name] = nodes.get(place.nsqd.name, 0) + max(place.extent.next - position.number, 0)
        return counts

    def tasks(self, start: Positions, end: Positions, of_stream: bool = False) -> list[RangePartition]:
        """Returns the tasks for the messages from `start` to `end`. Raises NsqSourceError if a log is nowhere."""
        sizes = {log: size for log, last in end.items() if (size := last.number - begin_of(start, last)) > 0}
        deadline = time.monotonic() + self._settings.retry_timeout
        ends = [end[log] for log in sizes]
        while self._nowhere(ends):
            self._look_for(ends)
            if all(map(self._is_deleted, self._nowhere(ends))) or time.monotonic() >= deadline:
                break
            time.sleep(_PAUSE)
        tasks = []
        least = max(self._settings.min_partitions or 0, len(sizes))
        total = sum(sizes.values())
        for log, size in sizes.items():
            position, last = end[log], end[log].number
            if log not in self.places:
                what = f"messages {last - size} to {last - 1} of topic {position.topic!r}"
                if self._is_deleted(position):
                    self._lose(self._deleted(position, last - size))
                elif not self._settings.matches(position.topic):
                    self._lose(f"the batch that was planned last has {what}, which the options do not name any more")
                else:
                    self._lose(f"no nsqd answers that has the log {log[1]}, with {what}; nsqd {position.node} had it")
                continue
            place = self.places[log]
            floor = self._floor(place, deadline) if of_stream else last
            is_away, node = place.is_stored and last <= place.extent.next, self._stores.get(place.nsqd.tcp)
            for begin, behind, stored in self._parts(place, last - size, last):
                size = behind - begin
                after = log_begin(node.log) if node else 0
                count = max(-(-size * least // total), -(-size // (self._settings.max_records_per_partition or size)))
                for piece in pieces(begin, behind, count):
                    given = self._settings, place.nsqd, *log, *piece, piece[0] >= floor, stored, after, is_away
                    tasks.append(RangePartition(*given))
        return tasks

    def _parts(self, place: Place, start: int, end: int) -> list[tuple[int, int, tuple[StoredRange, ...]]]:
        """Returns the range, cut where a task that reads it from a store fetches another file."""
        node = self._stores.get(place.nsqd.tcp)
        first = end if place.is_stored else min(max(place.extent.first, start), end)  # that the nsqd has
        if node is None or first == start:
            return [(start, end, ())]
        stored = [(part.start, part.end, (part,)) for part in node.cut(place.topic, start, first)]
        return [*stored, (first, end, ())] if first < end else [*stored]

    def commit(self, positions: Positions) -> None:
        """Advances the channel to these positions; what fails is done by a later commit."""
        if not positions.keys() <= self.places.keys():
            self.look()
        for log, position in positions.items():
            is_done, place = self._advanced.get(log, 0) >= position.number, self.places.get(log)
            if is_done or place is None or place.is_stored or place.nsqd.name in self._nodes.silent:
                continue
            try:
                node = LogNode(place.nsqd, self._settings)
                self._advanced[log] = node.advance(*log, self._settings.channel, position.number)
            except DiscoveryError as error:
                _log.warning("the channel is not advanced: %s", error)


def _moment(at: Moments, topic: str) -> str:
    return (at.get(topic) if isinstance(at, Mapping) else at) or ""


def _check_copies(places: Iterable[Place]) -> None:
    known: dict[Log, Place] = {}
    for place in places:
        other = known.setdefault(place.log, place)
        if other.extent.process != place.extent.process:
            raise NsqSourceError(
                f"nsqd {other.nsqd.name} and nsqd {place.nsqd.name} both have the log {place.extent.epoch} of topic "
                f"{place.topic!r}: one has a copy of the other's data directory, and only one of them can be read"
            )


def plan_batch(settings: Settings) -> list[RangePartition]:
    """Returns the tasks of a batch, between the positions that the options name. Raises DiscoveryError,
    OptionError, NoRanges if they cannot be found."""
    planner = Planner(settings)
    try:
        begins, ends = planner.begin(EARLIEST), planner.end()
    except NoRanges as error:
        other = "'peek' = 'true' looks at queued messages, and format('nsq_diskqueue') reads data directories"
        raise NoRanges(f"{error}; {other}") from None
    if not begins:
        raise DiscoveryError(f"no nsqd has {_subscribed(settings)}")
    names_begin = isinstance(settings.starting_offsets, Mapping) or settings.starting_timestamp
    names_end = isinstance(settings.ending_offsets, Mapping) or settings.ending_timestamp
    for log, end in ends.items():
        begin = begins.get(log, end)
        if end.number < begin.number and names_begin and names_end:  # else one of them follows what there is
            raise OptionError(
                f"the options end topic {end.topic!r} at nsqd {end.node} before message {end.number}, and begin there "
                f"with message {begin.number}: expected an end that is not before the beginning"
            )
    return planner.tasks(begins, ends)


def _subscribed(settings: Settings) -> str:
    pattern = settings.topic_pattern
    return f"a topic that matches {pattern!r}" if pattern else f"one of the topics {', '.join(settings.topics)}"


def why_deliveries(settings: Settings, offset: Mapping[str, Any] | None) -> str:
    """Returns why a stream that continues after `offset`, or a new one, reads deliveries; empty if it reads ranges.

    DiscoveryError if a new stream has to know what the nsqds offer, and one does not answer, or there is none yet.
    """
    if settings.mode != "auto":
        return "" if settings.mode == "ranges" else "mode=deliveries"
    if offset is not None:
        return "" if is_ours(offset) else "the checkpoint is one of deliveries"
    planner = Planner(settings)
    try:
        planner.look_at_all()
        if not planner.answered:
            raise DiscoveryError(
                f"no nsqd has {_subscribed(settings)} yet, and without one 'mode' cannot be auto: with 'mode' = "
                "'ranges' or 'deliveries', the stream waits"
            )
    except NoRanges as error:
        _log.info("%s", error)
        return f"nsqd {error.nsqd} has no log"
    return ""


def _number(offsets: Offsets, place: Place, otherwise: int) -> int:
    """Returns the number that an option means in a log; `otherwise`, or the first, if the option does not name it."""
    if isinstance(offsets, Mapping):
        given = offsets.get(place.topic, {}).get(place.nsqd.name)
        if given is not None and given >= 0:
            if given > place.extent.next:
                raise OptionError(
                    f"topic {place.topic!r} at nsqd {place.nsqd.name} ends at message {place.extent.next}, "
                    f"but the options name message {given}"
                )
            return max(given, 1)
        offsets = "" if given is None else _SPECIAL[given]
    if offsets == LATEST:
        return place.extent.next
    first = min(place.extent.first, otherwise or place.extent.first)  # what a channel has not finished may be older
    return first if offsets == EARLIEST else otherwise or first


def _check_names(offsets: Offsets, places: Iterable[Place], option: str) -> None:
    """Raises OptionError if the option names what is not there."""
    if isinstance(offsets, Mapping):
        known = {(place.topic, place.nsqd.name) for place in places}
        for topic, nodes in offsets.items():
            for node in nodes:
                if (topic, node) not in known:
                    there = ", ".join(sorted(f"{topic} at {name}" for topic, name in known))
                    raise OptionError(f"option {option!r} names topic {topic!r} at nsqd {node}: there is {there}")
