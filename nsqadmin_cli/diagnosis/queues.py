"""The rules about topics and channels: depth, consumers, requeues and timeouts.

Each problem is reported once, as its cause: a channel that is paused, or whose messages are requeued, is not also
reported as slow. A node that consumers cannot find is not also reported as one without consumers. Rates come from two
snapshots, and the texts mention that.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from gnsqd.broker.dead_letter_format import is_dead_letter_topic
from gnsqd.shared import statistics as advice
from gnsqd.shared.names import EPHEMERAL_SUFFIX, is_ephemeral
from nsqadmin_cli import units
from nsqadmin_cli.api import ChannelStats, ClientCounts, Connection, TopicStats
from nsqadmin_cli.cluster import values_of
from nsqadmin_cli.diagnosis.examination import Examination, Finding, Remedy, Severity, some_of
from nsqadmin_cli.diagnosis.nodes import tombstones, unregistered
from nsqadmin_cli.http_client import Address
from nsqadmin_cli.snapshot import Flow, backlog
from nsqadmin_cli.units import one_or_number, plural

CRITICAL, WARNING, NOTE = Severity
_SETTLED = 60.0  # seconds that a consumer is connected until it should have finished something
_SLOW = 3600.0  # seconds to empty a deep queue that are too many
_OLD = 900.0  # seconds that a message is queued that are too many, as in the alert rules
_BURST = 10.0  # seconds of what arrives that consumers may be behind by
_STORM = 1.0  # requeues or time-outs a second that are worth a word
_MANY = 100  # of them since the start
_START = Remedy(advice.START_CONSUMERS)

Connections = Mapping[Connection, ClientCounts]  # of a node


def examine_queues(examination: Examination) -> Iterator[Finding]:
    before = {address: node.connections() for address, node in examination.before.nodes.items()}
    unserved: dict[Address, list[ChannelCheck]] = {}  # nodes with messages of channels whose consumers are elsewhere
    lookupds = len(values_of(examination.listed))
    # Nodes, and topics of nodes, that no nsqlookupd gives to consumers: there are findings about these.
    lost: set[object] = {address for address, missing in unregistered(examination).items() if len(missing) == lookupds}
    lost.update(key for key, hiding in tombstones(examination).items() if len(hiding) == lookupds)
    for topic in examination.after.totals.topics:
        name = topic.topic_name
        if is_dead_letter_topic(name) and not any(channel.client_count for channel in topic.channels):
            yield from _dead_letters(examination, topic)
            continue
        yield from _topic(examination, topic)
        yield from _dropped(examination, name)
        for channel in topic.channels:
            check = ChannelCheck(examination, topic, channel, before)
            yield from check.findings()
            yield from _dropped(examination, *check.key)
            for address in check.unserved():
                if address not in lost and (name, address) not in lost:
                    unserved.setdefault(address, []).append(check)
    for address, checks in unserved.items():
        depth = sum(check.shares[address].depth for check in checks)
        names = some_of(["/".join(check.key) for check in checks])
        only = checks[0].key if len(checks) == 1 else ("", "")
        text = f"{plural(depth, 'message')} of {names} at {address}, without a consumer there"
        registered = "Check that this node is registered there and not tombstoned:"
        find = Remedy(f"Consumers find nodes through nsqlookupd. {registered}", examination.commands.on_all("nodes"))
        connect = Remedy("Check that consumers can connect to its broadcast-address.")
        evidence, severity = ("the consumers are at other nodes",), _by_depth(examination, depth)
        keys = tuple(check.key for check in checks)
        yield Finding(severity, "unserved-node", text, evidence, (find, connect), *only, str(address), keys)


def _topic(examination: Examination, topic: TopicStats) -> Iterator[Finding]:
    name, commands = topic.topic_name, examination.commands
    shares = examination.after.topic_shares[name]
    flow = (examination.after.flows or {}).get((name, ""), Flow())
    paused = [address for address, share in shares.items() if share.paused]
    # What passes messages on: the shares that have a channel, on nodes whose disks are in order.
    passing = [
        share for address, share in shares.items() if share.channels and examination.after.nodes[address].health == "OK"
    ]
    depth = f"{plural(topic.depth, 'message')} in the topic on {one_or_number(shares)}"
    rates = f"{units.rate(flow.ingress)}/s published"
    if paused:
        text = f"topic {name} is paused{_some(paused, shares)}: its channels get no messages"
        unpause = Remedy("To unpause it:", commands.on_all("topic unpause", name))
        yield Finding(WARNING if topic.depth else NOTE, "paused-topic", text, (depth, rates), (unpause,), name)
    elif topic.depth and not topic.channels and examination.whole:
        text = f"topic {name} has no channel: published messages stay in it"
        creating = commands.on_all("channel create", name, "CHANNEL")
        create = Remedy(f"{advice.NO_CHANNEL}:", creating)
        empty = Remedy("If the messages are not needed:", commands.on_all("topic empty", name))
        yield Finding(_by_depth(examination, topic.depth), "no-channel", text, (depth, rates), (create, empty), name)
    elif not flow.egress and sum(share.depth for share in passing) >= examination.deep:
        text = f"topic {name} does not pass messages to its channels"
        evidence = depth, f"{rates}, none passed to channels in {examination.seconds:.1f} s"
        remedy = Remedy("The node's log has the reason; often it cannot write a channel's overflow to disk.")
        yield Finding(CRITICAL, "stuck-topic", text, evidence, (remedy,), name)
    if examination.whole:
        yield from _missing_channels(examination, topic)


def _missing_channels(examination: Examination, topic: TopicStats) -> Iterator[Finding]:
    """Yields nodes with messages of a topic that lack channels of it; ephemeral ones come with their consumers."""
    name = topic.topic_name
    names = [channel.channel_name for channel in topic.channels if not is_ephemeral(channel.channel_name)]
    for address, share in examination.after.topic_shares[name].items():
        missing = sorted(set(names) - {channel.channel_name for channel in share.channels})
        if not missing or not (share.depth or share.message_count):
            continue
        which = f"{plural(len(missing), 'channel')} that other nodes have: {some_of(missing)}"
        there = f"{plural(share.depth, 'message')} in the topic" if share.depth else "they get no messages from"
        evidence = f"{share.message_count:,} messages published there", f"{there} there"
        only_channel = missing[0] if len(missing) == 1 else ""
        create = partial(examination.commands.on, address, "channel create", name)
        remedies = tuple(Remedy(f"To create {'it' if only_channel else each} there:", create(each)) for each in missing)
        text, severity = f"topic {name} at {address} lacks {which}", _by_depth(examination, share.depth)
        yield Finding(severity, "missing-channel", text, evidence, remedies, name, only_channel, str(address))


def _dropped(examination: Examination, topic: str, channel: str = "") -> Iterator[Finding]:
    """Yields messages that an ephemeral topic or channel lacked room for."""
    total = examination.dropped[topic, channel]
    if not total or not is_ephemeral(channel or topic):
        return
    lately = max(total - examination.dropped_before[topic, channel], 0)
    what = f"channel {topic}/{channel}" if channel else f"topic {topic}"
    severity, text = (WARNING, "its memory is full: it drops") if lately else (NOTE, "its memory was full: it dropped")
    evidence = f"{total:,} since the start, {lately:,} of them in the last {examination.seconds:.1f} s"
    more = Remedy("It keeps at most mem-queue-size messages, an option of the node. Add consumers, or increase it.")
    keep = Remedy(f"If no message may be lost, use a name that does not end with {EPHEMERAL_SUFFIX}.")
    yield Finding(severity, "dropped", f"{what}: {text} messages", (evidence,), (more, keep), topic, channel)


def _dead_letters(examination: Examination, topic: TopicStats) -> Iterator[Finding]:
    """Yields a topic of dead letters without consumers, as one finding with its channels."""
    name, commands = topic.topic_name, examination.commands
    if held := max([topic.depth, *map(backlog, topic.channels)]):
        text = f"topic {name} has {plural(held, 'dead letter')}: messages that reached max-attempts"
        where = f"on {one_or_number(examination.after.topic_shares[name])}"
        remedies = (
            Remedy("To list them, with the reasons:", commands.on_all("replay-dead --dry-run", name)),
            Remedy("To publish them again, after the cause is fixed:", commands.on_all("replay-dead", name)),
            Remedy("If they are not needed:", commands.on_all("topic empty", name)),
        )
        yield Finding(WARNING, "dead-letters", text, (where,), remedies, name)


@dataclass(frozen=True, slots=True)
class ConsumerPair:
    """One connection in the second snapshot, for `connected` seconds, and in the first if it existed."""

    node: Address
    now: ClientCounts
    then: ClientCounts | None
    connected: float

    @property
    def moved(self) -> bool:
        """Returns True if it finished or requeued a message between the snapshots; a new one may have."""
        then, now = self.then, self.now
        if then is None:
            return True
        return (then.finish_count, then.requeue_count) != (now.finish_count, now.requeue_count)


class ChannelCheck:
    """One channel, summed over nodes, with its share on each of them, and its consumers in both snapshots."""

    def __init__(
        self, examination: Examination, topic: TopicStats, channel: ChannelStats, before: Mapping[Address, Connections]
    ) -> None:
        self.examination = examination
        self.channel = channel
        self.key = key = topic.topic_name, channel.channel_name
        self.shares = examination.after.channel_shares[key]
        self.flow = (examination.after.flows or {}).get(key, Flow())
        self.consumers: list[ConsumerPair] = []
        for address, share in self.shares.items():
            for client in share.clients or ():
                then = before[address].get((*key, client.remote_address, client.connect_ts))
                connected = max(0.0, examination.after.clock - client.connect_ts)
                self.consumers.append(ConsumerPair(address, client, then, connected))
        # Nodes with a consumer that had RDY above 0 in one of the snapshots.
        self.wanting = {
            consumer.node
            for consumer in self.consumers
            if consumer.now.ready_count or consumer.then is None or consumer.then.ready_count
        }

    def findings(self) -> Iterator[Finding]:
        cause = self._paused() or self._no_consumers() or self._not_ready() or self._stuck()
        idle_channel = self._idle_channel()
        if idle_channel is not None:
            yield idle_channel
        if cause is not None and not (idle_channel and cause.code == "orphan-channel"):
            yield cause
        if cause is None or cause.code == "stuck":
            idle = list(self._idle_consumers()) if cause is None else []
            requeued, late = self._comes_back("requeue-storm"), None if idle else self._comes_back("timeouts")
            returned = [finding for finding in (requeued, late) if finding is not None]
            yield from [*returned, *idle]
            if cause is None and all(finding.severity is NOTE for finding in returned) and (slow := self._slow()):
                yield slow
        if self.channel.client_count and (cause is None or cause.code not in ("paused-channel", "rdy-zero")):
            yield from self._not_ready_at_nodes()

    def _finding(
        self, severity: Severity, code: str, summary: str, evidence: list[str], *remedies: Remedy, node: str = ""
    ) -> Finding:
        text = f"channel {'/'.join(self.key)}: {summary}"
        return Finding(severity, code, text, tuple(evidence), remedies, *self.key, node)

    def _on_all(self, words: str) -> str:
        return self.examination.commands.on_all(words, *self.key)

    def _show(self, text: str) -> Remedy:
        return Remedy(text, self._on_all("channel show"))

    def _depth(self) -> str:
        channel, text = self.channel, f"{plural(self.channel.depth, 'message')} queued on {one_or_number(self.shares)}"
        counts = {"of them on disk": channel.backend_depth, "in flight": channel.in_flight_count}
        counts["deferred"] = channel.deferred_count
        return ", ".join([text, *(f"{count:,} {what}" for what, count in counts.items() if count)])

    def _rates(self) -> str:
        return f"{units.rate(self.flow.ingress)}/s published, {units.rate(self.flow.egress)}/s finished"

    def _paused(self) -> Finding | None:
        paused = [address for address, share in self.shares.items() if share.paused]
        if not paused:
            return None
        summary = f"paused{_some(paused, self.shares)}: {advice.PAUSED}"
        remedy = Remedy("To unpause it:", self._on_all("channel unpause"))
        severity = WARNING if self.channel.depth else NOTE
        return self._finding(severity, "paused-channel", summary, [self._depth(), self._rates()], remedy)

    def _no_consumers(self) -> Finding | None:
        channel = self.channel
        if channel.client_count:
            return None
        if owed := backlog(channel):
            delete = Remedy("If the channel is no longer needed:", self._on_all("channel delete"))
            discard = Remedy("If only these messages are not needed:", self._on_all("channel empty"))
            severity, summary = _by_depth(self.examination, owed), f"{plural(owed, 'message')} and no consumer"
            evidence = [self._depth(), self._rates()]
            return self._finding(severity, "no-consumers", summary, evidence, _START, delete, discard)
        if is_ephemeral(channel.channel_name):
            return None
        summary = "no consumer; published messages will accumulate"
        empty = f"empty now, {plural(channel.message_count, 'message')} received so far, {self._rates()}"
        remedy = Remedy("If nobody needs it any more:", self._on_all("channel delete"))
        return self._finding(NOTE, "orphan-channel", summary, [empty], remedy)

    def _idle_channel(self) -> Finding | None:
        """Finds nodes that will do something to the channel, as it has no consumer there."""
        actions = {address: share.idle for address, share in self.shares.items() if share.idle is not None}
        if not actions:
            return None
        first = min(actions.values(), key=lambda action: (action.policy == "pause", action.left))  # or losses, if any
        nodes = [address for address, action in actions.items() if action.policy == first.policy]
        done = {"pause": "paused", "empty": "emptied", "delete": "deleted"}.get(first.policy, first.policy)
        summary = f"it will be {done} in {units.duration(first.left / 1e9)}{_some(nodes, self.shares)}"
        evidence = f"no consumer for {units.duration(first.time / 1e9)}"
        keep = Remedy("To keep it as it is:", self._on_all("channel rules --idle-timeout 0"))
        severity = NOTE if first.policy == "pause" else WARNING
        return self._finding(severity, "idle-channel", summary, [evidence, self._depth()], _START, keep)

    def _not_ready(self) -> Finding | None:
        """Finds queued messages while all consumers on all nodes have RDY 0."""
        consumers = self.consumers
        if not consumers or self.wanting or not any(self.shares[consumer.node].depth for consumer in consumers):
            return None
        summary = f"messages are queued, but {_all(len(consumers))} RDY 0"
        evidence = [self._depth(), f"consumers: {some_of([consumer.now.full_name for consumer in consumers])}"]
        remedies = Remedy(advice.RDY_ZERO), self._show("See them:")
        return self._finding(CRITICAL, "rdy-zero", summary, evidence, *remedies)

    def _stuck(self) -> Finding | None:
        """Finds consumers with messages in flight that finish none, while others are queued; may be slow processing."""
        channel = self.channel
        if not self.consumers or any(consumer.moved for consumer in self.consumers):
            return None
        if self.flow.egress or self.flow.timeouts:
            return None
        before = self.examination.before.channel_shares.get(self.key, {})
        if not channel.in_flight_count or not any(share.in_flight_count for share in before.values()):
            return None
        longest = max(consumer.connected for consumer in self.consumers)
        idle = not any(consumer.now.finish_count for consumer in self.consumers)
        never = idle and longest >= _SETTLED and channel.timeout_count > 0  # else it may be their first message
        if not never and not any(self.shares[consumer.node].depth for consumer in self.consumers):
            return None  # no messages are queued behind them
        held = max(self.consumers, key=lambda consumer: consumer.now.in_flight_count)
        most = held.now
        since = f"nothing since the first connected {units.duration(longest)} ago" if never else "nothing meanwhile"
        severity = CRITICAL if never else WARNING if channel.depth >= self.examination.deep else NOTE
        in_flight = f"{plural(channel.in_flight_count, 'message')} in flight"
        evidence = [
            self._depth(),
            f"{plural(len(self.consumers), 'consumer')} finished {since}",
            f"{most.full_name} at {held.node} has {most.in_flight_count:,} in flight, RDY {most.ready_count:,}",
        ]
        slow = Remedy(
            "If processing a message takes longer than that, use a longer --interval. Otherwise the consumers hang; "
            "messages are delivered again after the node's msg-timeout, or at once if a consumer is restarted."
        )
        summary = f"{in_flight} and none finished in {self.examination.seconds:.1f} s"
        return self._finding(severity, "stuck", summary, evidence, slow, self._show("See them:"))

    def _slow(self) -> Finding | None:
        channel, flow, age = self.channel, self.flow, self.channel.oldest_message_age_seconds or 0.0
        is_deep, seconds = channel.depth >= self.examination.deep, flow.drain_seconds(channel.depth)
        if flow.is_growing and (is_deep or self._is_more_than_a_burst()):
            code, how = "growing", "more messages arrive than are finished"
        elif is_deep and seconds is None:
            code, how = "slow", "the depth does not decrease"
        elif is_deep and seconds is not None and seconds > _SLOW:
            code, how = "slow", f"it needs {units.duration(seconds)} to become empty"
        elif age > _OLD:
            code, how = "slow", f"the oldest of them is {units.duration(age)} old"
        else:
            return None
        ready = sum(consumer.now.ready_count for consumer in self.consumers)
        consumers = f"{plural(channel.client_count, 'consumer')} with RDY {ready:,} together"
        add = "Add consumers, or increase max_in_flight if they are not busy. To watch it:"
        remedy = Remedy(add, self.examination.commands.on_all("top --sort drain"))
        summary = f"{plural(channel.depth, 'message')} queued, and {how}"
        return self._finding(WARNING, code, summary, [self._depth(), self._rates(), consumers], remedy)

    def _is_more_than_a_burst(self) -> bool:
        """True if more is queued than arrives in ten seconds, and it grew by more than chance explains: the depth of a
        queue that does not grow varies by the square root of the messages that came and went."""
        arrived, left = (rate * self.examination.seconds for rate in self.flow[:2])
        return self.channel.depth > _BURST * self.flow.ingress and arrived - left > 3 * math.sqrt(arrived + left)

    def _comes_back(self, code: str) -> Finding | None:
        """Finds messages that are delivered repeatedly: now, or a large part of all so far."""
        word, meaning = "requeued", "requeued by consumers"
        rate, count = self.flow.requeues, self.channel.requeue_count
        if code == "timeouts":
            word, meaning = "timed out", "not finished within msg-timeout"
            rate, count = self.flow.timeouts, self.channel.timeout_count
        taken, finished = self.channel.message_count, self.flow.egress
        summary = f"{units.rate(rate)} messages per second {word}, {units.rate(finished)} finished"
        if rate >= _STORM and rate > finished and code == "requeue-storm":
            severity = CRITICAL
        elif rate >= _STORM and rate > 0.1 * finished:
            severity = WARNING
        elif count >= _MANY and count > 0.5 * taken:
            severity = NOTE
            summary = f"{count:,} times a message was {word}, of {taken:,} received"
        else:
            return None
        evidence = [f"{count:,} since the start, {meaning}", self._depth()]
        text = f"{advice.REQUEUED} Limit the number of attempts. To list the consumers:"
        if code == "timeouts":
            text = f"{advice.TIMED_OUT} To list the consumers:"
        elif self.consumers:
            worst = max(self.consumers, key=lambda consumer: consumer.now.requeue_count)
            evidence.append(f"most by {worst.now.full_name} at {worst.node}: {worst.now.requeue_count:,}")
        return self._finding(severity, code, summary, evidence, self._show(text))

    def _idle_consumers(self) -> Iterator[Finding]:
        """Yields consumers with messages in flight that never finished one, while others do."""
        remedy = Remedy(f"{advice.HANGS}, then restart it.")
        for consumer in self.consumers:
            now = consumer.now
            before = now.message_count - now.in_flight_count  # messages that it had, and that went back
            if consumer.moved or now.finish_count or not now.in_flight_count or before <= 0:
                continue
            if consumer.connected < _SETTLED:
                continue
            in_flight = f"{plural(now.in_flight_count, 'message')} in flight"
            place = f"at {consumer.node}, connected {units.duration(consumer.connected)}, RDY {now.ready_count:,}"
            evidence = f"{place}, {plural(now.message_count, 'message')} sent to it, {now.requeue_count:,} requeued"
            summary = f"consumer {consumer.now.full_name} has {in_flight} and never finished one"
            yield self._finding(WARNING, "stuck-consumer", summary, [evidence], remedy, node=str(consumer.node))

    def _not_ready_at_nodes(self) -> Iterator[Finding]:
        """Yields nodes with messages of the channel, whose consumers all have RDY 0."""
        remedy = Remedy("Their max_in_flight must be at least the number of nodes, or they skip some.")
        for address, share in self._idle_shares():
            if share.client_count:
                summary = f"{plural(share.depth, 'message')} at {address}, and {_all(share.client_count)} RDY 0 there"
                evidence = f"{plural(self.channel.client_count, 'consumer')} on {one_or_number(self.shares)}"
                yield self._finding(WARNING, "rdy-zero", summary, [evidence], remedy, node=str(address))

    def unserved(self) -> Iterator[Address]:
        """Yields nodes with messages of the channel, but without a consumer, while others have one."""
        if self.channel.client_count and not self.channel.paused and self._not_ready() is None:
            yield from (address for address, share in self._idle_shares() if not share.client_count)

    def _idle_shares(self) -> Iterator[tuple[Address, ChannelStats]]:
        return (item for item in self.shares.items() if item[1].depth and item[0] not in self.wanting)


def _by_depth(examination: Examination, depth: int) -> Severity:
    return CRITICAL if depth >= examination.deep else WARNING


def _some(which: list[Address], shares: Mapping[Address, object]) -> str:
    """Returns the nodes, unless it is all."""
    return "" if len(which) == len(shares) else f" on {some_of(which)}"


def _all(count: int) -> str:
    return "its consumer has" if count == 1 else f"all {count:,} consumers have"
