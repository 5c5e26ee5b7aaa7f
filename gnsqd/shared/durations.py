"""Spans of time in options of gnsqadmin and of Spark; the daemon reads Go's form (`gotext`), which has no days."""

import re

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+"
_PART = re.compile(rf"({_NUMBER})({'|'.join(_SECONDS)})")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration(text: str) -> float:
    """Returns the seconds of `90`, `0.5`, `250ms`, `1h30m` or `2d`; raises ValueError with what was expected."""
    if re.fullmatch(_NUMBER, text):
        return float(text)
    if not _DURATION.fullmatch(text):
        raise ValueError("expected seconds or a text such as 250ms, 1h30m, 2d")
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
