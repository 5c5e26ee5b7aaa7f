"""Progress of long operations: a bar, the rate and the time left, on standard error, if it is a terminal."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from nsqadmin_cli import units
from nsqadmin_cli.render import make_console
from nsqadmin_cli.units import printable

_BESIDE_BAR = 70  # columns


class _CountColumn(ProgressColumn):
    """`1,234 / 5,000 messages   600/s`; bytes as bytes."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        number = units.size if self._unit == "bytes" else "{:,}".format
        text = number(int(task.completed))
        if task.total is not None:
            text += f" / {number(int(task.total))}"
        if self._unit != "bytes":
            text += f" {self._unit}"
        if task.speed and self._unit != "nodes":
            text += f"   {number(int(task.speed))}/s"
        return Text(text)


@contextmanager
def _bar(description: str, total: float | None, last: ProgressColumn) -> Iterator[Callable[..., None]]:
    """Shows a bar, or without `total` only a spinner, and removes it after `with`, which gets a function to change
    it. Nothing is shown if standard error is not a terminal."""
    console = make_console(stderr=True)
    if not console.is_terminal:
        yield lambda **changes: None
        return
    columns = [SpinnerColumn(), TextColumn("{task.description}")]
    if total is not None:
        columns += [BarColumn(max(5, min(40, console.width - _BESIDE_BAR))), TimeRemainingColumn(compact=True)]
    # The bar must not affect data on standard output, which may be a file.
    bar = Progress(*columns, last, console=console, transient=True, redirect_stdout=False)
    task = bar.add_task(printable(description), total=total, remark="")
    with bar:
        yield partial(bar.update, task)


@contextmanager
def progress(description: str, total: int | None = None, unit: str = "messages") -> Iterator[Callable[[float], None]]:
    """Does what `output.progress` does."""
    with _bar(description, total, _CountColumn(unit)) as update:
        yield lambda count: update(advance=count)


@contextmanager
def countdown(description: str, seconds: float) -> Iterator[Callable[[str], None]]:
    """Shows how much of `seconds` has elapsed: `with` gets a function to call at times, with an optional remark."""
    started = time.monotonic()
    with _bar(description, seconds, TextColumn("{task.fields[remark]}")) as update:
        yield lambda remark: update(completed=time.monotonic() - started, remark=printable(remark))
