"""A full-screen view with key input; the terminal is always restored."""

import os
import re
import select
import shlex
import signal
import subprocess
import sys
import termios
import tty
from collections import deque
from collections.abc import Iterable
from types import FrameType
from typing import Any

from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.render import OutputTerminal
from nsqadmin_cli.render.layout import Parts

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # the other screen, no cursor, no wrapping
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_CSI = {"A": "up", "B": "down", "5~": "page up", "6~": "page down", "H": "home", "F": "end", "1~": "home", "4~": "end"}
_KEYS = {f"\x1b[{code}": name for code, name in _CSI.items()} | {"\x1bOA": "up", "\x1bOB": "down", "\x1b": "escape"}
_KEYS |= {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\t": "tab"}
_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)


class Screen:
    """Owns the terminal inside `with`; raises AdminError if there is none. A change of its size ends the wait for a
    key."""

    def __init__(self) -> None:
        if not (sys.stdin and sys.stdout and sys.stdin.isatty() and sys.stdout.isatty()):
            raise AdminError("a full screen requires a terminal; elsewhere use gnsqadmin stats --watch")
        self._page = OutputTerminal()
        self._fd = sys.stdin.fileno()
        self._wakeup, self._bell = os.pipe()
        self._saved: list[Any] = []
        self._typed: deque[str] = deque()  # keys that came with one that was asked for
        self._handlers: dict[signal.Signals, Any] = {}
        for end in (self._wakeup, self._bell):
            os.set_blocking(end, False)

    def size(self) -> tuple[int, int]:
        return os.get_terminal_size(sys.stdout.fileno())

    def run(self, command: str) -> None:
        """Runs a command line of gnsqadmin on the ordinary screen, then waits for Enter."""
        self._give_back()
        interrupt = signal.signal(signal.SIGINT, lambda *args: None)  # is for the program
        try:
            self._write(f"$ {command}\n")
            subprocess.run([sys.executable, "-m", "nsqadmin_cli", *shlex.split(command)[1:]], check=False)
            self._write("Enter returns to the full screen. ")
            sys.stdin.readline()
        finally:
            signal.signal(signal.SIGINT, interrupt)
            self._take()

    def draw(self, lines: Iterable[Parts]) -> None:
        """Shows these lines and nothing else, truncated to fit. The last column stays empty."""
        _, height = self.size()
        drawn = [self._page.painted(parts) for parts in lines][:height]
        # Line by line over what was there, and only then clearing the rest, does not flicker.
        self._write("\x1b[H" + "\x1b[K\n".join(drawn) + "\x1b[K\x1b[J")

    def _write(self, text: str) -> None:
        self._page.write(text)
        self._page.flush()

    def key(self, timeout: float) -> str:
        """Returns the next key, a character or a name from above; empty after `timeout` seconds and when woken up."""
        if self._typed:
            return self._typed.popleft()
        readable, _, _ = select.select([self._fd, self._wakeup], [], [], max(0.0, timeout))
        if self._wakeup in readable:
            os.read(self._wakeup, 4096)
        if self._fd not in readable:
            return ""
        typed = os.read(self._fd, 64)
        if not typed:
            raise EOFError
        keys = (_KEYS.get(key, key) for key in _KEY.findall(typed.decode("utf-8", "replace")))
        self._typed += (key for key in keys if key.isprintable())
        return self._typed.popleft() if self._typed else ""

    def __enter__(self) -> "Screen":
        self._saved = termios.tcgetattr(self._fd)
        handlers = {signal.SIGTERM: self._end, signal.SIGHUP: self._end, signal.SIGTSTP: self._suspend}
        handlers[signal.SIGWINCH] = lambda *args: None
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)  # each of them ends the wait for a key
        self._handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        self._take()
        return self

    def __exit__(self, *error: object) -> None:
        self._give_back()
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _take(self) -> None:
        tty.setcbreak(self._fd)
        self._write(_ENTER)

    def _give_back(self) -> None:
        self._write(_LEAVE)
        termios.tcsetattr(self._fd, termios.TCSADRAIN, self._saved)

    def _end(self, number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Restores the terminal for the shell at Ctrl-Z, and redraws after `fg`."""
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._suspend)
        self._take()
