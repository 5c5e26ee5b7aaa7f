"""Log lines in the shape of Go's log package: `{prefix}YYYY/MM/DD HH:MM:SS.ffffff LEVEL: text`, local time, on stderr.

Each line is one write to the file descriptor, so lines of different greenlets never interleave, and a stderr that
is closed or full drops the line instead of stopping the daemon. Control characters are escaped as in Go's strings
(`\\n`, `\\x1b`), so that nothing a client sends can pass for another line or control a terminal. Only the stack of a
defect has lines of its own.
"""

import contextlib
import enum
import os
import re
import sys
import time
from collections.abc import Callable
from typing import Self, TextIO

# Those of ASCII and of Latin-1, and Unicode's two separators of lines.
_CONTROL_CHARACTER = "[\x00-\x1f\x7f-\x9f\u2028\u2029]"


class Level(enum.IntEnum):
    """Severities, with nsqd's numbers (`/config/log_level` shows them)."""

    DEBUG = 1
    INFO = 2
    WARN = 3
    ERROR = 4
    FATAL = 5

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses a name of `--log-level`, in any case; raises ValueError with nsqd's text."""
        for level in cls:
            if level.name.lower() == text.lower():
                return level
        raise ValueError(f"invalid log level '{text}' (debug, info, warn, error, fatal)")

    @property
    def word(self) -> str:
        """The word in a log line; `warn` in the flag is `WARNING` in the line."""
        return "WARNING" if self is Level.WARN else self.name


class Logger:
    """Writes lines of at least `level` to one stream; `set_level` changes it at any time."""

    def __init__(self, prefix: str, level: Level, stream: TextIO | None = None) -> None:
        self.prefix = prefix
        self.level = level
        self._stream = sys.stderr if stream is None else stream
        self._second = -1
        self._date = ""
        self._followers: list[Callable[[Level], object]] = []

    def derive(self, prefix: str) -> "Logger":
        """Returns another logger for the same stream, whose level follows this one's."""
        derived = Logger(prefix, self.level, self._stream)
        self.follow(derived.set_level)
        return derived

    def follow(self, changed: Callable[[Level], object]) -> None:
        """Calls `changed` with each new level."""
        self._followers.append(changed)

    def set_level(self, level: Level) -> None:
        self.level = level
        for changed in self._followers:
            changed(level)

    def debug(self, format: str, *args: object) -> None:
        if self.level <= Level.DEBUG:
            self._output(Level.DEBUG, format, args)

    def info(self, format: str, *args: object) -> None:
        if self.level <= Level.INFO:
            self._output(Level.INFO, format, args)

    def warn(self, format: str, *args: object) -> None:
        if self.level <= Level.WARN:
            self._output(Level.WARN, format, args)

    def error(self, format: str, *args: object, stack: str = "") -> None:
        """Logs an error; `stack` is a formatted exception, for the lines after this one."""
        if self.level <= Level.ERROR:
            self._output(Level.ERROR, format, args, stack)

    def fatal(self, format: str, *args: object, stack: str = "") -> None:
        """Logs as `error` does; does not exit."""
        self._output(Level.FATAL, format, args, stack)

    def _output(self, level: Level, format: str, args: tuple[object, ...], stack: str = "") -> None:
        second, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
        if second != self._second:
            self._second = second
            self._date = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(second))
        text = format % args if args else format
        if not text.isprintable():
            text = re.sub(_CONTROL_CHARACTER, lambda match: match[0].encode("unicode_escape").decode(), text)
        if stack:
            text = f"{text}\n{stack}"
        line = f"{self.prefix}{self._date}.{nanoseconds // 1000:06d} {level.word}: {text}\n"
        if self._stream is None:  # stderr was closed before Python started
            return
        # OSError: closed, full or broken; ValueError: the stream object was closed
        with contextlib.suppress(OSError, ValueError):
            try:
                descriptor = self._stream.fileno()
            except OSError:  # a stream in memory
                self._stream.write(line)
            else:
                os.write(descriptor, line.encode("utf-8", "backslashreplace"))
