"""What a command prints as its result: a table for people, or JSON, one object a line."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import click


def show_rows(rows: Sequence[Mapping[str, object]], as_json: bool, title: str = "", empty: bool = True) -> None:
    """Print `rows`, which have the same keys; if there are none, a line on stderr unless `empty` is false."""
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, default=_text))
    elif rows:
        from rich.console import Console
        from rich.table import Table

        table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
        for name in rows[0]:
            numeric = all(isinstance(row[name], int | float) or row[name] is None for row in rows)
            table.add_column(name.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(_text, row.values()))
        Console(width=None if sys.stdout.isatty() else 10_000, markup=False, highlight=False).print(table)
    if empty and not rows:
        click.echo("Nothing there.", err=True)


def _text(value: object) -> str:
    if isinstance(value, datetime):  # Spark's are in this process's time zone
        text = value.astimezone(UTC).isoformat(timespec="milliseconds" if value.microsecond else "seconds")
        return text.replace("+00:00", "Z")
    if value is None or isinstance(value, bool):
        return "-" if value is None else "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}" if isinstance(value, float) else str(value)
