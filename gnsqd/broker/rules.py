"""The rules of channels, and those of delivery applied: a rate limit, and order. (`idle` applies the others.)

The rate limit is a token bucket: `burst` tokens at most, `rate` more a second, and each delivery takes one. If a
message only waits for a token, a timer wakes one consumer when there is one, and this consumer wakes the next if there
are more messages. So nobody polls, and consumers receive similar shares.

An ordered channel has one message in flight, and the next is the oldest (`queues.ordering`): one that is requeued or
times out comes again before all others. If it is requeued with a delay, they wait.
"""

from collections.abc import Callable, Iterable, Mapping
from math import ceil
from time import monotonic_ns
from typing import Any, NamedTuple

from gevent import get_hub

from gnsqd.gotext import dumps, parse_bool, parse_duration, parse_float, parse_int, quote
from gnsqd.options import IDLE_POLICIES, SECOND
from gnsqd.queues.ordering import set_ordered
from gnsqd.queues.queue import Queue
from gnsqd.shared.errors import StartError, StorageError
from gnsqd.shared.names import is_valid_name
from gnsqd.storage.metadata import RULES_NAME, RuleKey, RuleSettings

MAX_DUE = 1024  # messages that one step moves
TICK = 0.005  # seconds: at high rates, the timer waits for as many tokens as this brings
MIN_RATE = 0.001
MAX_RATE = 1_000_000
MAX_BURST = 1_000_000
ALL_OTHERS = "*"  # in place of a channel
_EXPECTED = {
    "idle_timeout": " (expected: a duration such as 72h)",
    "idle_policy": f" (expected: {', '.join(IDLE_POLICIES)})",
}


class InvalidRule(ValueError):
    """The value of the parameter `name`, in lower case, is not valid."""

    def __init__(self, name: str) -> None:
        super().__init__(f"invalid {name}{_EXPECTED.get(name, '')}")
        self.name = name


class Rules(NamedTuple):
    """The rules of a channel: `rate` messages a second (0: no limit), `burst` of them at once; `ordered`: in turn;
    `idle_timeout` in ns (0: never idle). If a rule about idleness is None, the option counts."""

    rate: float = 0
    burst: int = 0
    ordered: bool = False
    idle_timeout: int | None = None
    idle_policy: str | None = None

    @property
    def limits_delivery(self) -> bool:
        """True if the channel needs a Limiter."""
        return self.rate > 0 or self.ordered

    def settings(self) -> dict[str, object]:
        """Returns the rules that are not None, as in JSON."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def changed(self, parameters: Mapping[str, str]) -> "Rules":
        """Returns these rules with changes, written as over HTTP; raises InvalidRule. A new rate without a burst gets a
        hundredth of it, at least 1, so that consumers are woken at most a hundred times a second. An empty text removes
        a rule about idleness."""
        rate, burst, ordered, idle_timeout, idle_policy = self
        try:
            if (name := "rate") in parameters:
                rate = parse_float(parameters[name])
                if rate and not MIN_RATE <= rate <= MAX_RATE:
                    raise ValueError
                rate = int(rate) if rate.is_integer() else rate
                burst = ceil(rate / 100)
            if (name := "burst") in parameters:
                burst = parse_int(parameters[name])
                if not (rate and 1 <= burst <= MAX_BURST):
                    raise ValueError
            if (name := "ordered") in parameters:
                ordered = parse_bool(parameters[name])
            if (name := "idle_timeout") in parameters:
                idle_timeout = parse_duration(parameters[name]) if parameters[name] else None
                if idle_timeout is not None and idle_timeout < 0:
                    raise ValueError
            if (name := "idle_policy") in parameters:
                idle_policy = parameters[name] or None
                if idle_policy not in (None, *IDLE_POLICIES):
                    raise ValueError
        except ValueError:
            raise InvalidRule(name) from None
        return Rules(rate, burst, ordered, idle_timeout, idle_policy)


def parse_option(texts: Iterable[str]) -> dict[RuleKey, Rules]:
    """Parses `--channel-rules`, each as `topic:channel:rate=10:ordered=true`; raises StartError."""
    rules: dict[RuleKey, Rules] = {}
    for text in texts:
        topic, channel, *settings = [*text.split(":"), ""][: max(text.count(":") + 1, 2)]
        changes = dict(setting.partition("=")[::2] for setting in settings)
        are_names = is_valid_name(topic) and (channel == ALL_OTHERS or is_valid_name(channel))
        if not (are_names and changes and set(changes) <= set(Rules._fields)):
            form = "<topic>:<channel>:rate=<n>:burst=<n>:ordered=true:idle_timeout=<duration>:idle_policy="
            form += "|".join(IDLE_POLICIES)
            raise StartError(f"--channel-rules must be {form}, not {quote(text)}")
        try:
            rules[topic, channel] = Rules().changed(changes)
        except InvalidRule as error:
            raise StartError(f"--channel-rules: {error} in {quote(text)}") from error
    return rules


def decode(settings_by_channel: Mapping[RuleKey, RuleSettings]) -> dict[RuleKey, Rules]:
    """Converts the content of the file of rules. Raises StorageError for a rule that is unknown or invalid: without it,
    a channel would deliver messages that it must not."""
    rules: dict[RuleKey, Rules] = {}
    for key, settings in settings_by_channel.items():
        try:
            if not set(settings) <= set(Rules._fields):
                raise ValueError("unknown rule")
            changes = {name: value if isinstance(value, str) else dumps(value) for name, value in settings.items()}
            if "idle_timeout" in changes:
                changes["idle_timeout"] += "ns"
            if changes.get("burst") == "0" and changes.get("rate") == "0":
                del changes["burst"]  # that of no limit, which nobody can set
            rules[key] = Rules().changed(changes)
        except ValueError as error:
            raise StorageError(f"{RULES_NAME}: {error} in {settings} of the channel {key}") from error
    return rules


class RuleBook:
    """The rules of new channels: `kept`, from the file of rules, while the daemon loads; else `configured`, also with
    `*` in place of a channel."""

    def __init__(self) -> None:
        self.configured: dict[RuleKey, Rules] = {}
        self.kept: dict[RuleKey, Rules] = {}

    def configured_for(self, topic: str, channel: str) -> Rules:
        """Returns the rules that the option has for a channel."""
        others = self.configured.get((topic, ALL_OTHERS), Rules())
        return self.configured.get((topic, channel), others)


class Limiter:
    """Applies the rules of one channel. The hub, no greenlet, calls `on_time()` when time allows more deliveries."""

    def __init__(self, queue: Queue, on_time: Callable[[], None]) -> None:
        self.rules = Rules()
        self._queue = queue
        self._on_time = on_time
        self._tokens = 0.0
        self._filled = 0  # monotonic ns
        self._timer: Any = None

    def set(self, rules: Rules) -> None:
        """Changes the rules. If there was a rate limit before, its used tokens stay used. May yield."""
        now = monotonic_ns()
        if self.rules.rate:
            self._fill(now)
        else:
            self._tokens, self._filled = rules.burst, now
        self._tokens = min(self._tokens, rules.burst)
        self.rules = rules
        set_ordered(self._queue, rules.ordered)
        self.stop()

    def allowed(self, in_flight: int) -> int:
        """Returns how many messages may be delivered now, with `in_flight` of them in flight."""
        rules, queue = self.rules, self._queue
        now = monotonic_ns()
        if rules.ordered and (in_flight or not self._is_released(now)):
            return 0
        count = queue.count()
        if rules.ordered:
            count = min(count, 1)
        if rules.rate and count:
            self._fill(now)
            count = min(count, int(self._tokens))
            if not count:
                tokens = max(1.0, min(rules.burst, rules.rate * TICK))
                self._wake_in((tokens - self._tokens) / rules.rate)
        return count

    def _is_released(self, now: int) -> bool:
        """True if no message that was requeued with a delay is held back any longer."""
        deferred = self._queue.deferred
        if deferred is not None and deferred.resume_at:
            if now < deferred.resume_at:
                self._wake_in((deferred.resume_at - now) / SECOND)
                return False
            if self._queue.release(now, MAX_DUE, 0) >= MAX_DUE:
                self._wake_in(0)
                return False
            deferred.resume_at = 0
        return True

    def delivered(self, count: int) -> None:
        if self.rules.rate:
            self._tokens -= count

    def _fill(self, now: int) -> None:
        self._tokens = min(self._tokens + (now - self._filled) * self.rules.rate / SECOND, self.rules.burst)
        self._filled = now

    def _wake_in(self, seconds: float) -> None:
        self.stop()
        self._timer = get_hub().loop.timer(seconds)
        self._timer.start(self._fire, update=True)  # not before its time

    def _fire(self) -> None:
        self.stop()
        self._on_time()

    def stop(self) -> None:
        """Removes the timer, until `allowed` sets one."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None
