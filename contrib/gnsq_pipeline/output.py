"""What a command prints as its result: a table for people, or JSON, one object a line."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime

import click

Function = Callable[..., object]


def json_option(function: Function) -> Function:
    """For `as_json: bool`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")(function)


def show_rows(title: str, rows: Sequence[Mapping[str, object]], as_json: bool, empty: bool = True) -> None:
    """Print `rows`, which have the same keys; if there are none, a line on stderr unless `empty` is false."""
    rows = [{key: _in_utc(value) for key, value in row.items()} for row in rows]
    if not rows:
        if empty:
            click.echo("Nothing there.", err=True)
        return
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, default=_plain))
        return
    from gnsq_pipeline.display import show_table

    columns = list(rows[0])
    show_table(title, [column.replace("_", " ") for column in columns], [list(row.values()) for row in rows])


def _in_utc(value: object) -> object:
    """Spark hands out timestamps in this process's zone, without saying so."""
    if isinstance(value, datetime):
        text = value.astimezone(UTC).isoformat(timespec="milliseconds" if value.microsecond else "seconds")
        return text.replace("+00:00", "Z")
    return value


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, date) else str(value)
