"""Formats counts, rates, bytes and durations, exactly or in few characters; parses durations; escapes text; groups."""

import time
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from gnsqd.log import escape
from gnsqd.shared import durations

K = TypeVar("K")
V = TypeVar("V")

_BARS = "▁▂▃▄▅▆▇█"


def compact(value: int) -> str:
    """Returns a number in at most five characters, rounded down: 9,999 stays, then 10.0k, 999k, 1.00M."""
    if abs(value) < 10_000:
        return f"{value:,}"
    text = str(abs(value))
    sign = "-" if value < 0 else ""
    power, places = divmod(len(text) - 1, 3)
    digits = text[: places + 1] + ("." + text[places + 1 : 3] if places < 2 else "")
    return f"{sign}{digits}{' kMGTPEZ'[power]}"


def rate(per_second: float) -> str:
    """Returns a rate per second: with one decimal below 10, whole above."""
    if abs(per_second) < 0.05:
        return "0"
    return f"{per_second:.1f}" if abs(per_second) < 9.95 else f"{round(per_second):,}"


def compact_rate(per_second: float) -> str:
    """Returns the same in at most five characters."""
    return rate(per_second) if abs(per_second) < 9_999 else compact(round(per_second))


def size(value: int) -> str:
    """Returns bytes in powers of 1000: 999 B, 1.2 kB, 34 MB."""
    if abs(value) < 1000:
        return f"{value} B"
    number, power = float(value), 0
    while abs(number) >= 999.5 and power < 6:
        number /= 1000
        power += 1
    return f"{number:.1f} {' kMGTPE'[power]}B" if abs(number) < 9.95 else f"{number:.0f} {' kMGTPE'[power]}B"


def duration(seconds: float) -> str:
    """Returns a span of time in its two largest units: 1d 2h, 1m 5s, 7s."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [f"{value}{unit}" for value, unit in ((days, "d"), (hours, "h"), (minutes, "m"), (rest, "s"))]
    first = next((index for index, part in enumerate(parts) if not part.startswith("0")), len(parts) - 1)
    return " ".join(parts[first : first + 2])


def latency(seconds: float) -> str:
    """Returns a short span of time with three digits: 850ns, 12.3ms, 4.56s; from a minute on as `duration`."""
    if seconds >= 60:
        return duration(seconds)
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= factor * 0.9995:
            return f"{seconds / factor:.3g}{unit}"
    return f"{round(max(0.0, seconds) * 1e9)}ns"


def sparkline(values: Sequence[float], least: float) -> str:
    """Returns a bar for each value, at full height for the largest, which is at least `least`."""
    highest = max([least, *values])
    return "".join(_BARS[min(7, int(max(0.0, value) * 8 / highest))] for value in values)


def exact(value: float) -> str:
    """Returns a number for programs, in full and without an exponent: 1795360000.25."""
    return str(value) if isinstance(value, int) else f"{value + 0.0:.9f}".rstrip("0").rstrip(".")


def clock(seconds: float) -> str:
    """Returns a local time: 13:45:07, with the day unless that is today; the number itself if no calendar has it."""
    try:
        moment = time.localtime(seconds)
        is_today = moment[:3] == time.localtime()[:3]
        return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S", moment)
    except (OverflowError, ValueError, OSError):
        return exact(seconds)


def iso_time(nanoseconds: int) -> str:
    """Returns a time in ns since 1970 in ISO 8601: 2026-11-23T04:06:41.125Z; the number itself beyond the year 9999."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    try:
        day = datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix("+00:00")
    except (OverflowError, ValueError, OSError):
        return str(nanoseconds)
    return f"{day}.{rest:09}Z" if rest % 1_000_000 else f"{day}.{rest // 1_000_000:03}Z"


def seconds_of(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9


def parse_duration(text: str) -> float:
    """Returns the seconds of a text (`durations.parse_duration`); raises ValueError with a readable text that quotes
    it."""
    try:
        return durations.parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a duration, {error}") from None


LONGEST = 300  # characters of one cell; names of NSQ have at most 64


def printable(text: str, longest: int = LONGEST) -> str:
    """Returns `text` on one line, escaped as in logs, and with an ellipsis behind the first `longest` characters."""
    return escape(f"{text[: longest - 1]}…" if len(text) > longest else text)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean orders?` with the name of `known` that is most similar to `name`, if any."""
    import difflib  # rarely needed

    near = difflib.get_close_matches(name, [other for other in known if other != name], n=1)
    return f"; did you mean {near[0]}?" if near else ""


def shortened(names: Sequence[str], most: int) -> str:
    """Returns the first `most` of these, and how many more there are."""
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join([*names[:most], *more])


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Returns the second parts of the pairs by their first."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def one_or_number(nodes: Collection[object]) -> str:
    """Returns the only one of these nodes, else their number."""
    return str(next(iter(nodes))) if len(nodes) == 1 else plural(len(nodes), "node")


def plural(count: int, noun: str) -> str:
    """Returns `1 topic`, `2,000 topics`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
