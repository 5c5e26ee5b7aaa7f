"""Output of commands: tables, JSON or CSV on standard output, everything else on standard error."""

import enum
import io
import json
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple, TextIO, TypeAlias, TypeVar

import click

from nsqadmin_cli import units
from nsqadmin_cli.errors import AdminError, ExitCode, NotOnNode
from nsqadmin_cli.table import Block, Cell, Column, Form, Line, Table, Tone, as_json
from nsqadmin_cli.units import printable

Advance = Callable[[float], None]


class OutputFormat(enum.StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"


T = TypeVar("T")
Made: TypeAlias = T | Callable[[], T]  # a value, or a function that makes it


def _made(value: Made[T]) -> T:
    return value() if callable(value) else value


class Output:
    def __init__(self, output_format: str, as_json: bool) -> None:
        self.format = OutputFormat.JSON if as_json else OutputFormat(output_format)
        self._headed: list[str] = []  # of the CSV that was printed so far

    def show(
        self,
        document: object,
        blocks: Made[Sequence[Block]],
        rows: Made[Table] | None = None,
        *,
        number: int | None = None,
    ) -> None:
        """Prints one answer: `document` as JSON, `blocks` as tables, `rows` as CSV (else the first table of blocks).

        Each may be a function, which is called only if it is used. `number` counts the answers of a command that has
        many, which are printed at once: JSON on one line, CSV under one header, tables of one row under one heading.
        """
        match self.format:
            case OutputFormat.JSON:
                click.echo(json.dumps(_made(document), default=as_json, indent=2 if number is None else None))
            case OutputFormat.CSV:
                self._csv(_made(rows) if rows else next(block for block in _made(blocks) if isinstance(block, Table)))
            case OutputFormat.TABLE:
                from nsqadmin_cli.render import show_blocks, show_row  # imported late: it loads slowly

                match _made(blocks):
                    case [Table(rows=[_]) as table] if number is not None:
                        show_row(table, number)
                    case several:
                        show_blocks(several)
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
        case bool(flag):
            return str(flag).lower()
        case int() | None as count:
            return count
        case float(seconds) if column.form is Form.TIME:
            return units.iso_time(round(seconds * 1000) * 1_000_000)
        case float(number):
            return units.exact(number)
        case other:
            return printable(str(other))


def progress(
    description: str, total: int | None = None, unit: str = "messages", *, shown: bool = True
) -> AbstractContextManager[Advance]:
    """Shows the progress of `with`, which gets a function to call with the number of further `unit` done. Nothing is
    shown if standard error is not a terminal. `unit` "bytes" is shown in kB and MB."""
    if not (shown and is_terminal(sys.stderr)) or _COLLECTED.get() is not None:
        return nullcontext(lambda count: None)
    from nsqadmin_cli.render.progress import progress  # imported late: what it needs loads slowly

    return progress(description, total, unit)


def measure_rates(seconds: float) -> None:
    """Waits between two snapshots, with a countdown."""
    from nsqadmin_cli.render.progress import countdown  # imported late: what it needs loads slowly

    with countdown(f"measuring rates, {seconds:g} s", seconds) as show:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(0.1, left))
            show("")


def is_terminal(stream: Any) -> bool:
    """Returns whether a standard stream is a terminal; it is None if it was closed before the start."""
    return stream is not None and not stream.closed and stream.isatty()


def standard_output() -> TextIO:
    """Returns the stream for data that must not be lost; raises AdminError if it was closed before the start."""
    if sys.stdout is None:
        raise AdminError("cannot write standard output: it is closed")
    return sys.stdout


_COLLECTED: ContextVar[list[str] | None] = ContextVar("collected", default=None)


@contextmanager
def collected(texts: list[str]) -> Iterator[None]:
    """Adds what `note` and `report` print in `with`, in this thread, to `texts` instead. Nothing is asked on the
    terminal, and no progress is shown there."""
    token = _COLLECTED.set(texts)
    try:
        yield
    finally:
        _COLLECTED.reset(token)


def note(text: str, label: str = "") -> None:
    """Prints a line on standard error."""
    if (texts := _COLLECTED.get()) is not None:
        texts.append(text)
    else:
        click.echo(label + printable(text, 2000), err=True)


def report(errors: Iterable[Exception]) -> ExitCode:
    """Prints a line on standard error for each; returns the exit code."""
    code = ExitCode.OK
    for error in errors:
        note(str(error), "Error: ")
        code = ExitCode.FAILED
    return code


@contextmanager
def explained(done: Callable[[], str]) -> Iterator[None]:
    """Adds what was done until then to an AdminError in `with`, and prints it after Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"Interrupted: {done()}")
        raise
    except AdminError as error:
        raise AdminError(f"{error}; {done()}") from None


def not_found(what: str, errors: Sequence[AdminError]) -> AdminError:
    """Returns the error if no node has `what`; `errors` are of the nodes that did not answer."""
    if errors:
        return AdminError(f"no node that answered has {what}", causes=errors)
    return NotOnNode(f"no node has {what}")


class Confirm(NamedTuple):
    yes: bool
    dry_run: bool

    def ask(
        self, warning: str, blocks: Sequence[Block], question: str, more: str = ", or --dry-run to see more"
    ) -> None:
        """Returns if confirmed, else raises AdminError with NOT_CONFIRMED. `warning` is a sentence about what will be
        lost; `blocks` show details before `question` is asked."""
        if self.yes:
            return
        if _COLLECTED.get() is not None or not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
            raise AdminError(f"{warning} Nothing was done: use --yes to do it{more}", ExitCode.NOT_CONFIRMED)
        from nsqadmin_cli.render import show_blocks  # imported late: what it needs loads slowly

        show_blocks([*blocks, Line.of(warning, Tone.STRONG_NOTE)], stderr=True)
        click.echo(f"{question} [y/N] ", nl=False, err=True)  # click's own prompt would write to standard output
        # A read would lose a signal that comes just before it blocks.
        while not select.select([sys.stdin], [], [], 0.1)[0]:
            pass
        try:
            answer = sys.stdin.readline()
        except UnicodeDecodeError:
            answer = "\n"
        if not answer.endswith("\n"):
            click.echo(err=True)
        if answer.strip().lower() not in ("y", "yes"):
            raise AdminError("not confirmed, nothing was done", ExitCode.NOT_CONFIRMED)
