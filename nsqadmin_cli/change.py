"""Changes of the cluster as values. Every command that changes the cluster returns one, and does nothing itself.

`run` is for the command line, and the only place that asks; `web.changes` shows the same values on the page.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nsqadmin_cli.errors import AdminError, ExitCode
from nsqadmin_cli.output import Confirm, Made, Output, report
from nsqadmin_cli.table import Block, Line, Table


@dataclass(frozen=True, slots=True)
class Shown:
    """An answer in all its forms: the `document` for JSON, `blocks` for people, and the `table` for CSV, by default the
    first one of the blocks. `errors` are reported after it; without any, `code` is the exit code."""

    document: Any
    blocks: Sequence[Block]
    table: Made[Table] | None = None
    errors: Sequence[AdminError] = ()
    code: int = ExitCode.OK
    is_interrupted: bool = False  # by Ctrl-C, after a part was done


@dataclass(frozen=True, slots=True)
class Change:
    """A planned change. `show(dry_run)` returns the plan before `do` was called, and the results afterwards; `do` is
    None if nothing has to be done. What has a `warning`, a sentence about what is lost or becomes otherwise, needs
    confirmation by the answer to `question`. `matches` are the topics or channels of a pattern: the page does nothing
    if they are no longer the ones that it showed."""

    show: Callable[[bool], Shown]
    do: Callable[[], None] | None
    warning: str = ""
    question: str = "Continue?"
    matches: Sequence[object] = ()


def ending(dry_run: bool, warning: str = "") -> list[Block]:
    """Returns the last line of a dry run."""
    return [Line.of(f"{warning} Nothing was done.".lstrip())] if dry_run else []


def run(change: Change, output: Output, confirm: Confirm) -> int:
    """Does the change after confirmation, or only shows it in a dry run; returns the exit code."""
    if not confirm.dry_run and change.do is not None:
        if change.warning:
            confirm.ask(change.warning, change.show(False).blocks, change.question)
        change.do()
    return show(change.show(confirm.dry_run), output)


def show(shown: Shown, output: Output) -> int:
    """Prints an answer, and returns the exit code."""
    output.show(shown.document, shown.blocks, shown.table)
    if shown.is_interrupted:
        raise KeyboardInterrupt
    return report(shown.errors) or shown.code
