"""How a run shows itself on stderr, live on a terminal, else a line for each batch; and what results look like."""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gnsq_pipeline.progress import Progress, Totals

_BARS = "▁▂▃▄▅▆▇█"
_BATCHES = 40  # in the bar chart
_IDLE_LINE = 60.0  # seconds between two lines about nothing happening


def count(number: float) -> str:
    return f"{number:,.0f}"


def span(seconds: float) -> str:
    """A span of time for people: 1.2 s, 3:05 min, 2:30 h, 4.5 d."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)}:{int(seconds % 60):02} min"
    if seconds < 86400:
        return f"{int(seconds // 3600)}:{int(seconds % 3600 // 60):02} h"
    return f"{seconds / 86400:.1f} d"


class Lines:
    """A line for each batch that had rows."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said = time.monotonic()

    def add(self, progress: Progress) -> None:
        if progress.idle and time.monotonic() - self._said < _IDLE_LINE:
            return
        self._said = time.monotonic()
        parts = [
            progress.when,
            f"batch {progress.batch}",
            f"{count(progress.rows)} rows",
            f"{progress.seconds:.1f} s",
            f"{count(progress.rows_per_second)} rows/s",
        ]
        if progress.lag is not None:
            parts.append(f"lag {count(progress.lag)}")
        if progress.late_rows:
            parts.append(f"late {count(progress.late_rows)}")
        self._console.print("  ".join(parts), markup=False, highlight=False, soft_wrap=True)

    def tick(self) -> None:
        pass


class LiveTable:
    """A table that stays in its place: totals, the last batch, and the rows per second of the last batches as bars."""

    def __init__(self, live: Live, title: str) -> None:
        self._live = live
        self._title = title
        self._began = time.monotonic()
        self._totals = Totals()
        self._rates: deque[float] = deque(maxlen=_BATCHES)

    def add(self, progress: Progress) -> None:
        self._totals.add(progress)
        if not progress.idle:
            self._rates.append(progress.rows_per_second)
        self.tick()

    def tick(self) -> None:
        self._live.update(self.render())

    def render(self) -> Group:
        totals, latest = self._totals, self._totals.latest
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column()
        table.add_row("running", span(time.monotonic() - self._began))
        table.add_row("rows", f"{count(totals.rows)} in {count(totals.batches)} batches")
        if latest is None:
            table.add_row("last batch", "none yet")
        else:
            state = "nothing to read" if latest.idle else f"{count(latest.rows)} rows in {latest.seconds:.1f} s"
            table.add_row("last batch", f"{latest.batch}: {state}")
            table.add_row("rows/s", f"{count(self._rates[-1] if self._rates else 0)}  {bars(self._rates)}")
            table.add_row("lag", "unknown" if latest.lag is None else f"{count(latest.lag)} messages")
            if latest.watermark:
                table.add_row("watermark", f"{latest.watermark}  ({count(latest.state_rows)} rows kept)")
            if totals.late_rows:
                table.add_row("too late", Text(f"{count(totals.late_rows)} rows", style="yellow"))
        return Group(Text(self._title, style="bold"), table)


def bars(values: Sequence[float] | deque[float]) -> str:
    """The values as a line of blocks, of which the highest is full."""
    top = max(values, default=0)
    return "".join(_BARS[min(7, int(value / top * 7.999))] if top > 0 else _BARS[0] for value in values)


class Silent:
    """Shows nothing."""

    def add(self, progress: Progress) -> None:
        pass

    def tick(self) -> None:
        pass


@contextlib.contextmanager
def shown(title: str, mode: str) -> Iterator[Lines | LiveTable | Silent]:
    """The display of a run for `mode`: auto, live, lines or none."""
    console = Console(stderr=True)
    if mode == "none":
        yield Silent()
    elif mode == "live" or (mode == "auto" and console.is_terminal):
        with Live(console=console, refresh_per_second=4) as live:
            yield LiveTable(live, title)
    else:
        yield Lines(console)


class Tasks:
    """How far a job is, on one line of a terminal."""

    def __init__(self, console: Console, title: str, quiet: bool) -> None:
        self._title = title
        self._status = None if quiet else console.status(title)

    def __enter__(self) -> "Tasks":
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def tick(self, done: int, tasks: int) -> None:
        if self._status is not None:
            self._status.update(f"{self._title}: {done} of {tasks} tasks" if tasks else self._title)


def tasks_shown(title: str, mode: str) -> Tasks:
    """The display of a job for `mode`; without a terminal a job shows nothing until it is done."""
    console = Console(stderr=True)
    return Tasks(console, title, quiet=mode in ("none", "lines") or not (console.is_terminal or mode == "live"))


def note(text: str) -> None:
    """A line on stderr."""
    Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on standard output; numbers to the right. Without a terminal no line is cut."""
    console = Console(width=None if sys.stdout.isatty() else 10_000)
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for number, column in enumerate(columns):
        numeric = all(isinstance(row[number], int | float) or row[number] is None for row in rows)
        table.add_column(column, justify="right" if numeric and rows else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    console.print(table)


def _cell(value: object) -> Text:
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, int):
        return Text(f"{value:,}")
    if isinstance(value, float):
        return Text(f"{value:,.1f}")
    return Text(str(value))
