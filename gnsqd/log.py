"""Log lines in the shape of Go's log package: `{prefix}YYYY/MM/DD HH:MM:SS.ffffff LEVEL: text`, local time, on stderr.

Each line is one write to the file descriptor, so lines of different greenlets never interleave. A stderr that is
closed, full or not read loses lines instead of stopping the daemon; when it takes lines again, the first is a warning
with their number. Characters that do not print are escaped (`\\n`, `\\x1b`, `\\u202e`), so that nothing a client sends
can pass for another line, control a terminal or be hidden. Only the stack of a defect has lines of its own.

With `--log-format=json`, each line is a JSON object.
"""

import enum
import fcntl
import functools
import os
import re  # whose functions compile a pattern when it is first used
import select
import socket
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self, TextIO

_PIPE_SIZE = 1 << 20  # holds some 10,000 lines, for a reader that is late
_TERMINAL_PIECE = 128  # bytes; Linux reports room for 256, and adds a carriage return to each line feed

_CONVERSION = r"%[-+ #0]*\d*(?:\.\d+)?[a-zA-Z]"
# The end of a format before a name or an address; a queue's name is `topic` or `topic:channel`, and a channel's also
# `channel` alone.
_LABEL = (
    r"(?i)(?:(?P<queue>(?:topic|journal|diskqueue|deadletter)[( ]|\bkey:)|(?P<channel>channel[( ]|\bsubkey:)|"
    r"(?P<client>client\(|^\[|\): \[|%[ds] %s \(|error from ))$"
)


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

    @functools.cached_property  # the name of an enum's member takes longer than the rest of a line
    def word(self) -> str:
        """The word in a log line; `warn` in the flag is `WARNING` in the line."""
        return "WARNING" if self is Level.WARN else self.name


class _Sink:
    """Writes lines to a stream, and never waits for whoever reads it."""

    def __init__(self, stream: TextIO | None) -> None:
        self.dropped = 0
        self.reported = 0  # of these, in lines of the log
        self._stream = stream  # None: stderr was closed before Python started
        self._rest = b""  # of a line whose beginning is written
        self._write: Callable[[bytes], int] = self._open_and_write

    def put(self, line: str) -> bool:
        """Writes a line; False if the stream takes nothing of it."""
        begin = len(self._rest)
        data = self._rest + line.encode("utf-8", "backslashreplace")
        try:
            count = self._write(data)
        except (OSError, ValueError):  # closed, full or broken; the stream object was closed
            return False
        is_begun = count > begin
        self._rest = data[count:] if is_begun else data[count:begin]
        return is_begun

    def _open_and_write(self, data: bytes) -> int:
        self._write = len if self._stream is None else _writer(self._stream)
        return self._write(data)


def _writer(stream: TextIO) -> Callable[[bytes], int]:
    """Returns a function like os.write for `stream`, which raises BlockingIOError instead of waiting, except for a
    disk. It leaves the descriptor itself as it is, because other processes share it."""
    try:
        descriptor = stream.fileno()
    except OSError:  # a stream in memory
        return lambda data: stream.write(data.decode()) and len(data)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(mode):
        sock = socket.socket(fileno=os.dup(descriptor))
        return lambda data: sock.send(data, socket.MSG_DONTWAIT)
    if not (stat.S_ISFIFO(mode) or os.isatty(descriptor)):
        return functools.partial(os.write, descriptor)
    try:
        # Unlike a duplicate, this has flags of its own; only Linux opens a pipe once more.
        own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        piece = select.PIPE_BUF if stat.S_ISFIFO(mode) else _TERMINAL_PIECE  # for which there is room if there is any
        return lambda data: _write_while_ready(poll, descriptor, data, piece)
    with suppress(OSError):  # a terminal, or this user's pipes are many
        fcntl.fcntl(own, fcntl.F_SETPIPE_SZ, max(_PIPE_SIZE, fcntl.fcntl(own, fcntl.F_GETPIPE_SZ)))
    return functools.partial(os.write, own)


def _write_while_ready(poll: select.poll, descriptor: int, data: bytes, piece: int) -> int:
    count = 0
    while count < len(data) and poll.poll(0):
        count += os.write(descriptor, data[count : count + piece])
    return count


class Logger:
    """Writes lines of at least `level` to one stream; `set_level` changes it at any time."""

    format = "text"
    _date_format = "%Y/%m/%d %H:%M:%S"

    def __init__(self, prefix: str, level: Level, stream: TextIO | None = None) -> None:
        self.prefix = prefix
        self.level = level
        self.damages = 0  # damaged places in files of messages that were logged
        self._sink = _Sink(sys.stderr if stream is None else stream)
        self._second = -1
        self._date = ""
        self._followers: list[Callable[[Level], object]] = []

    @property
    def dropped(self) -> int:
        """The number of lines that the stream did not take."""
        return self._sink.dropped

    def derive(self, prefix: str) -> "Logger":
        """Returns another logger for the same stream, whose level follows this one's."""
        derived = type(self)(prefix, self.level)
        derived._sink = self._sink
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
        now = time.time_ns()
        second, microseconds = now // 1_000_000_000, now % 1_000_000_000 // 1000
        if second != self._second:
            self._second = second
            self._date = time.strftime(self._date_format, time.localtime(second))
        sink = self._sink
        if count := sink.dropped - sink.reported:
            warning = "LOG: %d lines were dropped, as stderr did not take them"
            if sink.put(self._line(microseconds, Level.WARN, warning, (count,), "")):
                sink.reported += count
        if not sink.put(self._line(microseconds, level, format, args, stack)):
            sink.dropped += 1

    def _line(self, microseconds: int, level: Level, format: str, args: tuple[object, ...], stack: str) -> str:
        text = escape(format % args if args else format)
        if stack:
            text = f"{text}\n{_escape_lines(stack)}"
        return f"{self.prefix}{self._date}.{microseconds:06d} {level.word}: {text}\n"


class JSONLogger(Logger):
    """Writes each line as a JSON object: `time` (RFC 3339), `level`, `daemon`, `text`; `stack` for a defect; `topic`,
    `channel` and `client` if the text has them."""

    format = "json"
    _date_format = "%Y-%m-%dT%H:%M:%S%z"

    def _line(self, microseconds: int, level: Level, format: str, args: tuple[object, ...], stack: str) -> str:
        from json import dumps  # few need it

        names = {"topic": "", "channel": "", "client": ""}
        for index, kind in _named_arguments(format) if args else ():
            value = str(args[index])
            topic, _, channel = value.partition(":") if kind == "queue" else value.rpartition(":")
            named = {kind: value} if kind == "client" else {"topic": topic, "channel": channel}
            names |= {name: value for name, value in named.items() if not names[name]}
        date, zone = self._date[:19], self._date[19:]
        fields = {
            "time": f"{date}.{microseconds:06d}{zone[:3]}:{zone[3:]}",
            "level": level.word,
            "daemon": self.prefix.strip("[] "),
            **names,
            "text": escape(format % args if args else format),
            "stack": _escape_lines(stack),
        }
        shown = {name: value.encode("utf-8", "backslashreplace").decode() for name, value in fields.items() if value}
        line = dumps(shown, ensure_ascii=False, separators=(",", ":"))
        return f"{line if line.isprintable() else dumps(shown, separators=(',', ':'))}\n"


@functools.lru_cache(1024)
def _named_arguments(format: str) -> list[tuple[int, str]]:
    """Returns the index of each argument of a format that is the name of a `queue` or `channel`, or a `client`."""
    starts = [match.start() for match in re.finditer(_CONVERSION, format)]
    labels = [(index, re.search(_LABEL, format[:start])) for index, start in enumerate(starts)]
    return [(index, label.lastgroup) for index, label in labels if label is not None and label.lastgroup is not None]


def new_logger(format: str, prefix: str, level: Level) -> Logger:
    """Returns a logger for stderr, of a format of `--log-format`."""
    return (JSONLogger if format == JSONLogger.format else Logger)(prefix, level)


def escape(text: str) -> str:
    """Returns `text` with the characters escaped that do not print: controls, also those of the direction of text,
    marks of no width, all spaces but one, and surrogates."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _escape_lines(text: str) -> str:
    return "\n".join(map(escape, text.split("\n")))
