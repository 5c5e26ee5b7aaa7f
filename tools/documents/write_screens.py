"""Writes the pictures of gnsqadmin in contrib/docs/screens: it starts two nodes, gives them work, runs gnsqadmin on a
terminal and keeps what that shows as SVG."""

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from documents.marks import DOCS
from kit.daemons import Instance, is_readable, own_command
from kit.nsq_client import NSQClient
from kit.traffic import create, post, publish

SCREENS = DOCS / "screens"

SECONDS = 30.0  # for what comes at once
_CELL = 12.2  # how wide rich makes a letter
_TEXT = re.compile(r'(<text class="[^"]*" x=")([\d.]+)("[^>]*? textLength=")([\d.]+)("[^>]*>)((?:&#160;)+)')


class TerminalPicture(NamedTuple):
    """A command, and the size of its terminal."""

    columns: int
    lines: int
    command: str
    seconds: float = 0.0  # how long a full screen runs before it is kept
    keys: str = "x"  # that are pressed then
    until: str = ""  # what it shows after that


PICTURES = {
    "top": TerminalPicture(120, 22, "top --sort trouble", 20.0),
    "tree": TerminalPicture(110, 40, "tree"),
    "doctor": TerminalPicture(130, 40, "doctor"),
    "consumers": TerminalPicture(120, 12, "top --filter archive", 3.0, "\r", "archiver-2"),
    "trouble": TerminalPicture(100, 20, "stats --trouble --sort depth"),
    "pattern": TerminalPicture(100, 20, "channel empty orders/* --dry-run"),
}

QUEUES = {
    "clicks": ["dashboard#ephemeral"],
    "orders": ["archive", "billing", "search-index"],
    "payments": ["fraud-check", "ledger"],
    "signups": ["crm", "welcome-mail"],
}


class ShownConsumer(NamedTuple):
    """A consumer of one channel on one node: messages in flight, and what becomes of them."""

    name: str
    topic: str
    channel: str
    node: int
    rdy: int
    every: float = 0.0  # seconds for a message
    requeues: int = 0  # one of that many


CONSUMERS = (
    ShownConsumer("archiver-1", "orders", "archive", 0, 50, 0.02),
    ShownConsumer("archiver-2", "orders", "archive", 1, 50, 0.001),
    ShownConsumer("indexer", "orders", "search-index", 0, 200, 0.0, 9),
    ShownConsumer("indexer", "orders", "search-index", 1, 200),
    ShownConsumer("ledger", "payments", "ledger", 0, 100),
    ShownConsumer("ledger", "payments", "ledger", 1, 100),
    ShownConsumer("dashboard", "clicks", "dashboard#ephemeral", 0, 20),
    ShownConsumer("crm", "signups", "crm", 0, 5),
    ShownConsumer("welcome", "signups", "welcome-mail", 0, 5),
)


def work(nodes: list[Instance], over: threading.Event) -> None:
    """Publishes until it is over."""
    rates = {"orders": 40, "payments": 12, "clicks": 9, "signups": 1}
    while not over.wait(0.1):
        for number, node in enumerate(nodes):
            for topic, count in rates.items():
                with contextlib.suppress(OSError):
                    publish(node, topic, *(b"%d" % each for each in range(count * (2 - number))))


def consume(node: Instance, consumer: ShownConsumer, over: threading.Event) -> None:
    with NSQClient(node.tcp_address) as client, contextlib.suppress(OSError):
        host = f"{consumer.name}.example"
        client.identify(client_id=consumer.name, hostname=host, user_agent="go-nsq/1.1.0", heartbeat_interval=60_000)
        client.subscribe(consumer.topic, consumer.channel, rdy=consumer.rdy)
        count = 0
        while not over.is_set():
            try:
                id = client.message(0.2).id
            except TimeoutError:
                continue
            count += 1
            requeue = consumer.requeues and count % consumer.requeues == 0
            client.command(b"REQ %s 4000" % id if requeue else b"FIN %s" % id)
            time.sleep(consumer.every)


@contextlib.contextmanager
def busy_nodes() -> Iterator[list[Instance]]:
    over = threading.Event()
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        nodes = [
            stack.enter_context(Instance(own_command(), Path(directory) / f"node-{number}", "--mem-queue-size=1000"))
            for number in range(2)
        ]
        for node in nodes:
            for topic, channels in QUEUES.items():
                create(node, topic, *channels)
        post(nodes[0], "/channel/pause?topic=signups&channel=crm")
        threads = [threading.Thread(target=work, args=(nodes, over))]
        threads += [threading.Thread(target=consume, args=(nodes[one.node], one, over)) for one in CONSUMERS]
        for thread in threads:
            thread.start()
        try:
            time.sleep(6)
            yield nodes
        finally:
            over.set()
            for thread in threads:
                thread.join()


def shown(picture: TerminalPicture, nodes: list[Instance]) -> str:
    """Returns the last screen of the terminal, with its codes for colours."""
    addresses = ["--nsqd-http-address={}:{}".format(*node.http_address) for node in nodes]
    command = [sys.executable, "-P", "-m", "nsqadmin_cli", *picture.command.split(), *addresses]
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    ours = {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", "GNSQADMIN_CONFIG": "/nonexistent/config.toml"}
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", picture.lines, picture.columns, 0, 0))
    terminal: Any = dict.fromkeys(("stdin", "stdout", "stderr"), slave)
    process = subprocess.Popen(command, **terminal, env=kept | ours, start_new_session=True)
    os.close(slave)

    def printed(seconds: float = SECONDS, until: str = "") -> str:
        """Returns the output up to `until`, to the end or until this time is over."""
        found, end = b"", time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and is_readable(master, left):
            try:
                found += os.read(master, 65536)
            except OSError:  # how Linux reports the end of a terminal
                break
            if until and until in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", found.decode("utf-8", "replace")):
                break
        return found.decode().replace("\r\n", "\n")

    try:
        if not picture.seconds:
            return printed().rpartition("\x1b[2K")[2]  # without progress, which is gone
        printed(picture.seconds)
        os.write(master, picture.keys.encode())  # and so one whole frame comes
        frame = printed(until=picture.until or "q quit") + printed(0.5)
        return re.sub(r"\x1b\[[KJ]", "", frame.rpartition("\x1b[H")[2]).replace("\r", "")
    finally:
        process.kill()
        process.wait()
        os.close(master)


def svg(picture: TerminalPicture, text: str) -> str:
    console = Console(record=True, width=picture.columns, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    console.print(Text.from_ansi(text.rstrip("\n")), no_wrap=True, crop=True)
    title = f"gnsqadmin {picture.command}"
    made = console.export_svg(title=title, theme=MONOKAI, unique_id=f"gnsqadmin-{picture.command.split()[0]}")
    made = re.sub(r"\s*@font-face \{.*?\}", "", made, flags=re.DOTALL)  # a picture must not load fonts from anywhere
    return "\n".join(line.rstrip() for line in _TEXT.sub(_moved, made).splitlines()) + "\n"


def _moved(match: re.Match[str]) -> str:
    """Drops the spaces before a text, as some programs do: it begins where they end."""
    spaces = len(match[6]) // len("&#160;") * _CELL
    start, length = float(match[2]) + spaces, max(_CELL, float(match[4]) - spaces)
    return f"{match[1]}{start:g}{match[3]}{length:g}{match[5]}"


def pictures() -> dict[Path, bytes]:
    with busy_nodes() as nodes:
        return {SCREENS / f"{name}.svg": svg(each, shown(each, nodes)).encode() for name, each in PICTURES.items()}
