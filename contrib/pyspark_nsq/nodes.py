"""The nsqds that have the topics to read, asked again and again, all at once.

Discovery lists them. One that is no longer listed is still asked while it answers, since messages may wait there; and
if no nsqlookupd answers, those known are enough. One that does not answer is asked again after pauses that grow, while
the others are read.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from pyspark_nsq.discovery import KnownNsqd, find_nsqds
from pyspark_nsq.errors import DiscoveryError
from pyspark_nsq.options import Settings

_LIST_INTERVAL = 5.0  # seconds between two questions which nsqds there are
_NEW_TOPIC_INTERVAL = 1.0  # seconds, while no nsqd has the topic
_PAUSES = 1.0, 60.0  # seconds until an nsqd that did not answer is asked again: after the first time, and at most
_LOOK_PAUSES = 0.25, 1.0  # seconds before a stream looks for new messages again: after the first time, and at most
_PATIENCE = 0.2  # seconds to wait for its answer then
_REMEMBER = 600.0  # seconds for which an nsqd is known that neither answers nor is listed

Answer = TypeVar("Answer")
Key = tuple[str, str]  # topic, name of the nsqd
Place = TypeVar("Place")

_log = logging.getLogger(__name__)


class Silence(NamedTuple):
    """The error of an nsqd that did not answer, and the `pause` (seconds) that ends at `until` (monotonic)."""

    error: str
    pause: float
    until: float


class Nodes:
    """Owns what is known of the nsqds: those `listed` by topic (with a pattern, under ""), and the `silent` by name."""

    def __init__(self, settings: Settings) -> None:
        self.listed: dict[str, list[KnownNsqd]] = {}
        self.silent: dict[str, Silence] = {}
        self.stored: set[str] = set()  # names of those whose logs a store has, which may be silent
        self._settings = settings
        self._known: dict[str, tuple[KnownNsqd, float]] = {}  # and when it was last listed, or answered
        self._list_at = float("-inf")
        self._pool: ThreadPoolExecutor | None = None
        self._asked: dict[str, Future[Any]] = {}  # without an answer, by name

    @property
    def known(self) -> dict[str, KnownNsqd]:
        """Those known, by name."""
        return {name: nsqd for name, (nsqd, _) in self._known.items()}

    def ask(self, question: Callable[[KnownNsqd], Answer], known: Iterable[KnownNsqd] = ()) -> dict[KnownNsqd, Answer]:
        """Returns the answers of those listed or `known` that answer. Raises DiscoveryError if no nsqlookupd answers
        and nobody is known, and other errors of the question as they are.

        One that did not answer before is hardly waited for: its answer to this question may come at a later one.
        """
        self._find(known)
        self._pool = self._pool or ThreadPoolExecutor(16)
        for name, nsqd in self.known.items():
            if name not in self._asked and (name not in self.silent or time.monotonic() >= self.silent[name].until):
                self._asked[name] = self._pool.submit(question, nsqd)
        answers = {}
        for name in list(self._asked):
            asked, silence = self._asked.pop(name), self.silent.get(name)
            try:
                answer = asked.result(_PATIENCE if silence else None)
            except DiscoveryError as error:
                if not silence:
                    _log.warning("%s; what it has is read when it is back", error)
                pause = min(2 * silence.pause, _PAUSES[1]) if silence else _PAUSES[0]
                self.silent[name] = Silence(str(error), pause, time.monotonic() + pause)
            except TimeoutError:
                self._asked[name] = asked
            else:
                if self.silent.pop(name, None):
                    _log.warning("nsqd %s answers again", name)
                if name in self._known:
                    nsqd = self._known[name][0]
                    self._known[name] = nsqd, time.monotonic()
                    answers[nsqd] = answer
        return answers

    def _find(self, known: Iterable[KnownNsqd]) -> None:
        now = time.monotonic()
        for nsqd in known:
            self._known.setdefault(nsqd.name, (nsqd, now))
        if now >= self._list_at:
            interval = _LIST_INTERVAL
            for topic in self._settings.topics or ("",):
                try:
                    self.listed[topic] = find_nsqds(self._settings, topic)
                    if not self.listed[topic]:
                        interval = _NEW_TOPIC_INTERVAL
                except DiscoveryError as error:
                    if not self._known:
                        raise
                    _log.warning("%s; going on with the nsqds known so far", error)
            self._list_at = time.monotonic() + interval
        for listed in self.listed.values():
            self._known.update((nsqd.name, (nsqd, now)) for nsqd in listed)
        for name in [name for name, (_, heard) in self._known.items() if heard < now - _REMEMBER]:
            del self._known[name]
            self.silent.pop(name, None)

    def check_silent(self, is_required: bool = False, missed: Iterable[str] = ()) -> None:
        """Raises DiscoveryError if an nsqd that is listed does not answer, or with what is `missed`, unless
        'failOnDataLoss' is false and it is not required."""
        listed = {nsqd.name for nsqds in self.listed.values() for nsqd in nsqds}
        silent = [silence.error for name, silence in self.silent.items() if name in listed - self.stored]
        errors = "; ".join(silent or missed)
        if errors and is_required:
            raise DiscoveryError(errors)
        if errors and self._settings.fail_on_data_loss:
            raise DiscoveryError(f"{errors} ('failOnDataLoss' = 'false' reads only the nsqds that answer)")


class Pace:
    """Decides when a stream looks for messages, after pauses that grow while nothing is new, and makes a batch."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._batch_at = float("-inf")  # when there was one (monotonic)
        self._pause = 0.0
        self._until = 0.0

    def wait(self) -> None:
        """Waits until it is time for a look."""
        time.sleep(max(0.0, self._until - time.monotonic()))

    def is_enough(self, count: int) -> bool:
        """Returns True if that many messages make a batch now."""
        least, delay = self._settings.min_messages_per_trigger, self._settings.max_trigger_delay
        return least is None or count >= least or time.monotonic() >= self._batch_at + delay

    def looked(self, is_new: bool) -> None:
        """Begins a pause, a longer one than the last, unless the look has made a batch."""
        if is_new:
            self._batch_at = time.monotonic()
        self._pause = 0.0 if is_new else min(max(2 * self._pause, _LOOK_PAUSES[0]), _LOOK_PAUSES[1])
        self._until = time.monotonic() + self._pause


def share(waiting: Mapping[Place, int], limit: int | None) -> dict[Place, int]:
    """Returns how many are taken of each: `limit` in all, and none more than another one of which more are there."""
    if limit is None or sum(waiting.values()) <= limit:
        return dict(waiting)
    taken: dict[Place, int] = {}
    left = limit
    for number, (place, count) in enumerate(sorted(waiting.items(), key=lambda item: item[1])):
        taken[place] = min(count, left // (len(waiting) - number))
        left -= taken[place]
    return taken
