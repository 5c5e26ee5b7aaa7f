"""Output of commands: tables, JSON or CSV on standard output, everything else on standard error."""

import enum
import io
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import click

from nsqadmin_cli import units
from nsqadmin_cli.errors import AdminError, ExitCode, NotFound
from nsqadmin_cli.table import Block, Cell, Column, Form, Line, Table, Tone, as_json
from nsqadmin_cli.units import printable

Advance = Callable[[int], None]


class OutputFormat(enum.StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class Output:
    """The output options of this command."""

    def __init__(self, form: OutputFormat = OutputFormat.TABLE) -> None:
        self.format = form
        self._headed: list[str] = []  # of the CSV that was printed so far

    def show(
        self,
        document: Callable[[], object],
        blocks: Callable[[], Sequence[Block]],
        rows: Callable[[], Table] | None = None,
        *,
        number: int | None = None,
    ) -> None:
        """Print one answer: `document` as JSON, `blocks` as tables, `rows` as CSV (else the first table of blocks).

        Only the one that is used is called. `number` counts the answers of a command that has many, which are printed
        at once: JSON on one line, CSV under one header for all, tables of one row under one heading.
        """
        match self.format:
            case OutputFormat.JSON:
                click.echo(json.dumps(document(), default=as_json, indent=2 if number is None else None))
            case OutputFormat.CSV:
                self._csv(rows() if rows else next(block for block in blocks() if isinstance(block, Table)))
            case OutputFormat.TABLE:
                from nsqadmin_cli.render import show_blocks, show_row  # imported late: it loads slowly

                match made := blocks():
                    case [Table(rows=[_]) as table] if number is not None:
                        show_row(table, number)
                    case _:
                        show_blocks(made)
        if number is not None and sys.stdout is not None:  # it may be closed
            sys.stdout.flush()

    def _csv(self, table: Table) -> None:
        import csv  # imported late: few need it

        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        header = [column.key for column in table.columns]
        if header != self._headed:
            writer.writerow(header)
            self._headed = header
        for row in table.rows:
            writer.writerow([_csv_value(value, column) for value, column in zip(row, table.columns, strict=True)])
        click.echo(text.getvalue(), nl=False)


def _csv_value(value: object, column: Column) -> object:
    match value.value if isinstance(value, Cell) else value:
        case bool(found):
            return str(found).lower()
        case int() | None as found:
            return found
        case float(found) if column.form is Form.TIME:
            return units.iso_time(round(found * 1000) * 1_000_000)
        case float(found):
            return units.exact(found)
        case found:
            return printable(str(found))


def progress(
    description: str, total: int | None = None, unit: str = "messages", *, shown: bool = True
) -> AbstractContextManager[Advance]:
    """Show the progress of `with`, which gets a function to call with the number of further `unit` done.

    Nothing is shown if standard error is not a terminal. `unit` "bytes" is shown in kB and MB.
    """
    if not (shown and is_terminal(sys.stderr)):
        return nullcontext(lambda count: None)
    from nsqadmin_cli.render.progress import progress  # imported late: what it needs loads slowly

    return progress(description, total, unit)


def is_terminal(stream: Any) -> bool:
    """Whether a standard stream is a terminal; it is None if it was closed before the start."""
    return stream is not None and not stream.closed and stream.isatty()


def note(text: str) -> None:
    """Print a message on standard error."""
    click.echo(printable(text, 2000), err=True)


def report(errors: Iterable[Exception]) -> ExitCode:
    """Print a line on standard error for each; returns the exit code."""
    code = ExitCode.OK
    for error in errors:
        click.echo(f"Error: {printable(str(error), 2000)}", err=True)
        code = ExitCode.FAILED
    return code


def not_found(what: str, errors: Sequence[AdminError]) -> AdminError:
    """The error if no node has `what`, after a line for each node that did not answer."""
    report(errors)
    if errors:
        return AdminError(f"no node that answered has {what}")
    return NotFound(f"no node has {what}")


class Confirm(NamedTuple):
    """The options of confirmation."""

    yes: bool
    dry_run: bool

    def ask(self, warning: str, blocks: Sequence[Block], question: str) -> None:
        """Return if confirmed, else raise AdminError with NOT_CONFIRMED.

        `warning` is a sentence about what will be lost; `blocks` show details before `question` is asked.
        """
        if self.yes:
            return
        if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
            text = f"{warning} Nothing was done: use --yes to do it, or --dry-run to see more"
            raise AdminError(text, ExitCode.NOT_CONFIRMED)
        from nsqadmin_cli.render import show_blocks  # imported late: what it needs loads slowly

        show_blocks([*blocks, Line.of(warning, Tone.STRONG_NOTE)], stderr=True)
        if not _agrees(question):
            raise AdminError("not confirmed, nothing was done", ExitCode.NOT_CONFIRMED)


def _agrees(question: str) -> bool:
    """Whether the answer is y or yes. click's own prompt would write to standard output."""
    click.echo(f"{question} [y/N] ", nl=False, err=True)
    try:
        answer = sys.stdin.readline()
    except UnicodeDecodeError:
        return False
    if not answer.endswith("\n"):
        click.echo(err=True)
    return answer.strip().lower() in ("y", "yes")
