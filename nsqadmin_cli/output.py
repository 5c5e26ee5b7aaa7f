"""Output of commands: tables, JSON or CSV on standard output, everything else on standard error."""

import csv
import enum
import io
import json
import sys
from collections.abc import Callable, Iterable, Sequence

import click

from nsqadmin_cli import units
from nsqadmin_cli.errors import AdminError, ExitCode, NotFound
from nsqadmin_cli.table import Block, Cell, Table
from nsqadmin_cli.text import printable


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
    ) -> None:
        """Print one answer: `document` as JSON, `blocks` as tables, `rows` as CSV (else the first table of blocks).

        Only the one that is used is called. Commands that print repeatedly use `show_next`.
        """
        match self.format:
            case OutputFormat.JSON:
                click.echo(json.dumps(document(), indent=2))
            case OutputFormat.CSV:
                self._csv(rows or (lambda: next(block for block in blocks() if isinstance(block, Table))))
            case OutputFormat.TABLE:
                from nsqadmin_cli.render import show_blocks  # imported late: it loads slowly

                show_blocks(blocks())

    def show_next(
        self,
        document: Callable[[], object],
        blocks: Callable[[], Sequence[Block]],
        rows: Callable[[], Table] | None = None,
    ) -> None:
        """Print one of many answers at once: JSON on one line, CSV under one header for all."""
        if self.format is OutputFormat.JSON:
            click.echo(json.dumps(document()))
        else:
            self.show(document, blocks, rows)
        if sys.stdout is not None:  # it may be closed
            sys.stdout.flush()

    def show_row(self, table: Table, number: int) -> None:
        """Print the one row of `table`, the `number`th of many rows; not for JSON or CSV."""
        from nsqadmin_cli.render import show_row

        show_row(table, number)

    def _csv(self, rows: Callable[[], Table]) -> None:
        table = rows()
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        header = [column.key for column in table.columns]
        if header != self._headed:
            writer.writerow(header)
            self._headed = header
        for row in table.rows:
            writer.writerow([_csv_value(value.value if isinstance(value, Cell) else value) for value in row])
        click.echo(text.getvalue(), nl=False)


def _csv_value(value: object) -> object:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return printable(value)
        case float():
            return units.exact(value)
        case _:
            return value


def note(text: str) -> None:
    """Print a message on standard error."""
    click.echo(printable(text, 2000), err=True)


def report(errors: Iterable[AdminError]) -> ExitCode:
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
