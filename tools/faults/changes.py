"""Channels that are changed all the time beside faults: what was answered has to hold after each kill."""

import json
import random
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from faults.clients import TOPIC, FaultedChannel, FaultLedger
from faults.ledger import SETTLED
from kit.daemons import Instance
from kit.nsq_client import ReceivedMessage
from kit.traffic import post

FOREVER = 1 << 62  # ns
PAST = f"topic={TOPIC}&channel=past"  # the channel that is created in the past, and that nobody consumes
RULED = f"topic={TOPIC}&channel=two"
NO_RULES = (0, False)  # rate, and whether it is ordered


@dataclass
class Rewind:
    """A rewind to messages published from `since` to `until` (ns)."""

    since: int
    until: int
    asked: float = field(default_factory=time.time)
    ended: float = float("inf")  # by the answer or a kill
    answered: bool = False


class RewoundChannel(FaultedChannel):
    """A channel that is rewound, with an end or without: what was published since then comes again, nothing older.
    Beside it another channel is created at a point in the past. Segments are deleted meanwhile, but none that these
    points need."""

    flags = ("--retention-bytes=16000000",)
    backlog = 1000  # or consumers stay behind, and a rewind to what was published last would bring nothing

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter({"rewinds": 0, "channels created in the past": 0})
        self.rewinds: list[Rewind] = []
        self.published: dict[int, int] = {}  # ns
        self.delivered: dict[int, float] = {}  # the last time
        self.since: int | None = None  # where the other channel begins; None if a kill may empty it
        self.created = False  # it has to be there

    def receive(self, number: int, message: ReceivedMessage) -> bool:
        self.published[number] = message.timestamp
        self.delivered[number] = time.time()
        finished = self.finished_at[number]
        if finished and any(
            each.since <= message.timestamp < each.until and each.ended >= finished for each in reversed(self.rewinds)
        ):
            self.unfinish(number)
            self.unsure.discard(number)
        return super().receive(number, message)

    def change(self, ledger: FaultLedger, daemon: Instance, chance: random.Random) -> None:
        while True:
            time.sleep(chance.uniform(0.01, 0.3))
            if recent := list(ledger.recent):
                # What the time of a request can express.
                since, until = sorted(each // 1000 * 1000 for each in chance.choices(recent, k=2))
                act = chance.choice((self._create, self._rewind, partial(self._rewind, until=until)))
                act(daemon, since)

    def _rewind(self, daemon: Instance, since: int, until: int = FOREVER) -> None:
        rewind = Rewind(since, until)
        self.rewinds.append(rewind)
        end = f"&until={moment(until)}" if until < FOREVER else ""
        try:
            post(daemon, f"/channel/rewind?topic={TOPIC}&channel=one&to={moment(since)}{end}")
            rewind.answered = True
            self.counts["rewinds"] += 1
        finally:
            rewind.ended = time.time()

    def _create(self, daemon: Instance, since: int) -> None:
        if daemon.channel_stats(TOPIC, "past"):
            self.since, self.created = None, False
            post(daemon, f"/channel/delete?{PAST}")
        self.since = since
        post(daemon, f"/channel/create?{PAST}&from={moment(since)}")
        self.created = True
        self.counts["channels created in the past"] += 1

    def check(self, daemon: Instance) -> None:
        """Expects in the other channel all that was published since, so a rewind brings nothing, and nothing older."""
        if self.since is None:
            return
        if not daemon.channel_stats(TOPIC, "past"):
            if self.created:
                self.wrong.append("the channel created in the past is gone")
            return
        if missing := ask(daemon, f"/channel/rewind?{PAST}&to={moment(self.since)}")["messages"]:
            self.wrong.append(f"{missing} messages miss in the channel created in the past")
        peeked = ask(daemon, f"/channel/peek?{PAST}&limit=1000")["messages"]
        if older := sum(message["timestamp"] < self.since for message in peeked):
            self.wrong.append(f"{older} messages are too old for the channel created in the past")
        self._rewind(daemon, self.since)  # now, as nothing else happens, it is known what has to come again

    def lost(self, acknowledged: Iterable[int]) -> set[int]:
        """Returns also what an answered rewind has not brought again."""
        lost = super().lost(acknowledged)
        in_order = sorted(self.published, key=self.published.__getitem__)
        times = [self.published[number] for number in in_order]
        for rewind in self.rewinds:
            end = min(rewind.until, int(rewind.asked * 1e9)) if rewind.answered else 0
            for number in in_order[bisect_left(times, rewind.since) : bisect_left(times, end)]:
                finished = self.finished_at[number] or FOREVER
                if rewind.asked > max(self.delivered[number], finished + SETTLED):
                    lost.add(number)
        return lost


class RuledChannel(FaultedChannel):
    """A channel whose delivery rules change, and whose deferred messages are cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter({"cancelled": 0, "changes of rules": 0})
        self.cancelled: dict[int, bool] = {}  # True if that was answered
        self.rules = [NO_RULES]  # the last answered, and later requests

    def receive(self, number: int, message: ReceivedMessage) -> bool:
        super().receive(number, message)
        if self.cancelled.get(number):
            self.again[number] += 1
            return True  # if it is not in flight any more, the daemon refuses its FIN
        return False

    def change(self, ledger: FaultLedger, daemon: Instance, chance: random.Random) -> None:
        while True:
            time.sleep(chance.uniform(0.0, 0.05))
            if chance.random() < 0.2:
                self._set_rules(daemon, (chance.choice((0, 500, 2000, 100_000)), chance.random() < 0.2))
                self.counts["changes of rules"] += 1
            elif deferred := ask(daemon, f"/channel/deferred?{RULED}&limit=50")["messages"]:
                message = chance.choice(deferred)
                self._cancel(daemon, message["id"], ledger.number(message["body"].encode()))

    def _cancel(self, daemon: Instance, id: str, number: int) -> None:
        if self.cancelled.setdefault(number, False):  # it was, and is listed
            self.again[number] += 1
        status, _, answer = daemon.http("POST", f"/channel/deferred/cancel?{RULED}&id={id}")
        assert status in (200, 404), answer
        if status == 200:
            self.cancelled[number] = True
            self.counts["cancelled"] += 1
        else:  # it is due by now
            del self.cancelled[number]

    def _set_rules(self, daemon: Instance, rules: tuple[int, bool]) -> None:
        self.rules.append(rules)
        post(daemon, f"/channel/rules?{RULED}&rate={rules[0]}&ordered={str(rules[1]).lower()}")
        self.rules = [rules]

    def check(self, daemon: Instance) -> None:
        answer = ask(daemon, f"/channel/rules?{RULED}")
        found = answer["rate"], answer["ordered"]
        if found not in self.rules:
            self.wrong.append(f"rules are {found} instead of {self.rules}")
        self.rules = [found]

    def end(self, daemon: Instance) -> None:
        self._set_rules(daemon, NO_RULES)

    def lost(self, acknowledged: Iterable[int]) -> set[int]:
        return super().lost(acknowledged) - self.cancelled.keys()


def ask(daemon: Instance, target: str) -> dict[str, Any]:
    status, _, answer = daemon.http("GET", target)
    assert status == 200, (target, status, answer)
    found: dict[str, Any] = json.loads(answer)
    return found


def moment(time: int) -> str:
    """Formats a time in whole us, given in ns, for a request."""
    text = datetime.fromtimestamp(time // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{time % 10**9 // 1000:06}Z"
