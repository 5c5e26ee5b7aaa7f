"""Waiting for a known time: a bar of it and the time left, on standard error, if that is a terminal."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from nsqadmin_cli.render.palette import make_console
from nsqadmin_cli.text import printable

Say = Callable[[str], None]


@contextmanager
def countdown(description: str, seconds: float) -> Iterator[Say]:
    """Show how much of `seconds` is over: `with` gets a function to call now and then, with a remark or nothing.

    Nothing is shown where standard error is no terminal, and nothing is left of it at the end.
    """
    console = make_console(stderr=True)
    if not console.is_terminal:
        yield lambda remark: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(compact=True))
    bar = Progress(*columns, TextColumn("{task.fields[remark]}"), console=console, transient=True)
    task = bar.add_task(printable(description), total=seconds, remark="")
    started = time.monotonic()
    with bar:
        yield lambda remark: bar.update(task, completed=time.monotonic() - started, remark=printable(remark))


def wait(description: str, seconds: float) -> None:
    """Sleep so long, with a countdown where that takes more than a second."""
    with countdown(description, seconds) as say:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(0.1, left))
            say("")
