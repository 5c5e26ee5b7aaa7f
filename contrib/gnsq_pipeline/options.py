"""Declares commands, prints their rows, and has the options that they share, also as those of `format("nsq")`.

Addresses, durations and sizes are written as in the options of `format("nsq")` (`pyspark_nsq.option_values`).
"""

import errno
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import click

from gnsq_pipeline.archive import CHECKPOINT, FORMATS
from gnsq_pipeline.errors import INTERRUPTED, InputNotFound, PipelineError, UsageError
from gnsqd.shared.durations import parse_duration
from gnsqd.shared.errors import reason_of
from pyspark_nsq import option_values
from pyspark_nsq.discovery import find_nsqds
from pyspark_nsq.errors import NsqSourceError, OptionError
from pyspark_nsq.options import EARLIEST, LATEST, OPTIONS, READERS, Settings, parse

# What the extra `spark` in pyproject.toml installs; gnsqd itself, whose extra that is, may be on no index.
INSTALL = "pip install 'pyarrow>=18' 'pyspark>=4.1,<4.3'"
_ENDS = {"first": EARLIEST, "next": LATEST}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Rows = list[dict[str, object]]
Command = TypeVar("Command", bound=Callable[[SimpleNamespace], Rows | None])


class Text(click.ParamType[Any]):
    """A value that `read` makes of a text, or refuses with a ValueError."""

    def __init__(self, name: str, read: Callable[[str], object]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._read(value)
        except (ValueError, OverflowError) as error:
            self.fail(f"{value!r}: {error}.", param, ctx)


def _moment(text: str) -> int:
    """Returns nanoseconds since 1970 of an ISO 8601 time (UTC unless it has an offset), or of seconds since 1970."""
    if text.replace(".", "", 1).isdecimal():
        return int(Decimal(text) * 10**9)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("not a time; expected 2026-11-21T13:00 or seconds since 1970") from None
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1) * 1000


def _position(text: str) -> str:
    """Returns a position in logs: first, next, the number of a message, or a time of RFC 3339."""
    if text in _ENDS or text.isdecimal():
        return text
    try:
        if re.fullmatch("-.*[a-z]", text):
            return (datetime.now(UTC) - timedelta(seconds=parse_duration(text[1:]))).isoformat()
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("expected first, next, the number of a message, 2026-11-21T13:00, or -15m") from None
    return moment.replace(tzinfo=moment.tzinfo or UTC).isoformat()


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError("not key=value")
    return key, value


DURATION = Text("duration", option_values.DURATION.read)
TIMEOUT = Text("duration", option_values.TIMEOUT.read)
ADDRESS = Text("address", lambda text: option_values.HTTP_ADDRESSES.read(text)[0])  # type: ignore[index]
NAME = Text("name", option_values.TOPIC.read)
SETTING = Text("key=value", _setting)
MOMENT = Text("time", _moment)
POSITION = Text("position", _position)


def option(*names: str, **attributes: Any) -> click.Option:
    return click.Option(names, **attributes)


def command(
    group: click.Group, name: str, *params: click.Parameter, short_help: str | None = None
) -> Callable[[Command], Command]:
    """Makes a function a command, with its docstring as help. It gets the values of `params` as the attributes of one
    object, and may return rows to print. Its errors end the command with a line on stderr, Ctrl-C with INTERRUPTED."""

    def add(function: Command) -> Command:
        def run(**values: Any) -> None:
            try:
                rows = function(SimpleNamespace(**values))
                if rows is not None:
                    show_rows(rows, values["as_json"])
            except KeyboardInterrupt:
                raise click.exceptions.Exit(INTERRUPTED) from None
            except NsqSourceError as error:
                raise PipelineError(str(error)) from None
            except ModuleNotFoundError as error:
                if (error.name or "").partition(".")[0] not in ("pyspark", "pyarrow"):
                    raise
                raise PipelineError(f"{error.name} is not installed: {INSTALL}") from None
            except OSError as error:
                if error.errno == errno.EPIPE:  # nobody reads the output any more
                    raise
                raise PipelineError(f"{error.filename or 'standard output'}: {reason_of(error)}") from None

        group.command(name, params=list(params), help=function.__doc__, short_help=short_help)(run)
        return function

    return add


def show_rows(rows: Sequence[Mapping[str, object]], as_json: bool) -> None:
    """Prints `rows`, which have the same keys; if there are none, a line on stderr."""
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, default=_text))
    elif rows:
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for name in rows[0]:
            numeric = all(isinstance(row[name], int | float) or row[name] is None for row in rows)
            table.add_column(name.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(_text, row.values()))
        Console(width=None if sys.stdout.isatty() else 10_000, markup=False, highlight=False).print(table)
    if not rows:
        click.echo("Nothing there.", err=True)


def _text(value: object) -> str:
    if isinstance(value, datetime):  # Spark's are in this process's time zone
        text = value.astimezone(UTC).isoformat(timespec="milliseconds" if value.microsecond else "seconds")
        return text.replace("+00:00", "Z")
    if value is None or isinstance(value, bool):
        return "-" if value is None else "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}" if isinstance(value, float) else str(value)


JSON = option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
FORMAT = option(
    "--format", "table_format", type=click.Choice(FORMATS), default="parquet", show_default=True,
    help="Format of the table. Delta Lake and Iceberg need their packages: --conf spark.jars.packages=...",
)  # fmt: skip
TO_TOPIC = option(
    "--to-topic", "topic", type=NAME, metavar="TOPIC", help="Publish all to this topic, not each to its own."
)
DRY_RUN = option("--dry-run", is_flag=True, help="Only count what would be published.")
PERIOD = (
    option("--since", type=MOMENT, metavar="TIME", help="Only archived messages at or after this time (UTC)."),
    option("--until", type=MOMENT, metavar="TIME", help="Only archived messages before this time."),
)
_NODES = (
    option("--lookupd-http-address", "lookupd_http_addresses", multiple=True, metavar="HOST:PORT",
           help="An nsqlookupd; may be repeated."),
    option("--nsqd-tcp-address", "nsqd_tcp_addresses", multiple=True, metavar="HOST:PORT",
           help="An nsqd; may be repeated."),
)  # fmt: skip
_EXTRA = option(
    "-o", "--option", "extra", type=SETTING, multiple=True,
    help='Any other option of format("nsq"), such as nsq.tls.ca=FILE; may be repeated.',
)  # fmt: skip
_HTTP = option(
    "--nsqd-http-address", "nsqd_http_addresses", multiple=True, metavar="HOST:PORT",
    help="HTTP address of the same nsqd, if not its TCP port + 1.",
)  # fmt: skip
DESTINATION = (*_NODES, _EXTRA)
RANGE = (
    option("--from", "begin", type=POSITION, metavar="POSITION",
           help="Begin there: first, next, the number of a message, 2026-11-21T13:00 (UTC), or -15m."),
    option("--to", "end", type=POSITION, metavar="POSITION", help="End before this position, and consume nothing."),
)  # fmt: skip
LOGS = (*RANGE, _HTTP)
# Parameters that only a stream has.
QUERY = (
    option("--channel", type=NAME, metavar="CHANNEL", help="The channel to read; each pipeline needs its own."),
    option("--checkpoint", metavar="DIRECTORY", help="Directory in which Spark stores its progress."),
    option("--max-messages", "max_messages_per_trigger", type=click.IntRange(min=1), metavar="N",
           help="Maximum size of a batch."),
    option("--continuous", is_flag=True, help="Continue until stopped, not only until everything is read."),
    option("--trigger", type=DURATION, default="10s", show_default=True, help="Time between continuous batches."),
    option("--metrics-address", type=ADDRESS, metavar="HOST:PORT", help="Address for Prometheus metrics."),
)  # fmt: skip
STREAM = (
    option("--topic", "topics", type=NAME, multiple=True, help="A topic to read; may be repeated."),
    option("--topic-pattern", "topic_pattern", metavar="REGEX",
           help="Read all topics whose whole name matches it, also later ones."),
    *_NODES, *LOGS, _EXTRA, *QUERY,
    option("--allow-missing-topics", is_flag=True, help="Run even if no nsqd has a topic yet."),
    option("--summary", metavar="FILE", help="File for the result of the run as JSON; - is stdout."),
)  # fmt: skip
SPARK = (
    option("--master", metavar="URL", help="Where Spark runs; default: here, or as given to spark-submit."),
    option("--conf", type=SETTING, multiple=True, help="A setting of Spark; may be repeated."),
    option("--verbose", is_flag=True, help="Enable Spark's log, and show where an error comes from."),
)


def nsq_options(given: SimpleNamespace, use: str, other: str = "") -> dict[str, str]:
    """Returns the options of `format("nsq")` for "readStream", "write" or "read", without options that only the `other`
    use has. Raises UsageError if the source would refuse them.

    Parameters that set one of them are named after its field in the settings of pyspark_nsq."""
    others = {row.name.lower() for row in OPTIONS if other in row.used_by and use not in row.used_by}
    options = {key: value for key, value in given.extra if key.lower() not in others}
    for row in OPTIONS:
        if use in row.used_by and (value := vars(given).get(row.field)):
            options[row.name] = ",".join(value) if isinstance(value, tuple) else str(value)
    try:
        ends = (("starting", "--from", given.begin), ("ending", "--to", given.end)) if use in READERS else ()
        for name, flag, position in ends:
            if position in _ENDS:
                options[f"{name}Offsets"] = _ENDS[position]
            elif position is not None and position.isdecimal():
                options[f"{name}Offsets"] = _number_of_log(flag, int(position), parse(options, use))
            elif position is not None:
                options[f"{name}Timestamp"] = position
        parse(options, use)
    except OptionError as error:
        text, flags = str(error), {parameter.name: parameter.opts[0] for parameter in (*STREAM, TO_TOPIC)}
        for row in OPTIONS:
            if row.field in flags:
                text = re.sub(f"(options? )?{re.escape(repr(row.name))}", flags[row.field], text)
        raise UsageError(text) from None
    return options


def _number_of_log(flag: str, number: int, settings: Settings) -> str:
    """Returns the value of an option for offsets. Raises UsageError if there are several logs: each has its numbers."""
    offsets = {topic: {node.name: number for node in find_nsqds(settings, topic)} for topic in settings.topics}
    if settings.topic_pattern or sum(map(len, offsets.values())) > 1:
        names = f"='{json.dumps(offsets)}'" if offsets else ""
        option = f"{'starting' if flag == '--from' else 'ending'}Offsets{names}"
        raise UsageError(f"{flag} {number}: each topic of each nsqd has numbers of its own, so use -o {option}")
    return json.dumps(offsets)


def refuse(params: Sequence[click.Parameter], why: str) -> None:
    """Raises UsageError if the command line has one of these parameters; `why` follows its name."""
    source = click.get_current_context().get_parameter_source
    for parameter in params:
        if source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE:
            raise UsageError(f"{parameter.opts[0]} {why}")


def local_path(location: str) -> Path | None:
    """Returns the path of this machine that `location` names, None if it is on another file system."""
    if not location:
        raise UsageError("an empty path names no directory")
    location = re.sub("^file:(?://)?(?=/)", "", location)
    return None if "://" in location else Path(location)


def require_directory(location: str) -> None:
    """Raises InputNotFound if a directory of this machine is missing."""
    if (path := local_path(location)) is not None and not path.exists():
        raise InputNotFound(f"{location}: no such directory")


def checkpoint_of(given: SimpleNamespace) -> str:
    """Returns the checkpoint of a stream: as given, else a hidden directory of its output.

    The checkpoint of Parquet is always there (see `archive`). Raises UsageError if it has no place, as an Iceberg table
    is not a directory.
    """
    output, table_format, checkpoint = given.output, given.table_format, given.checkpoint
    if table_format == "iceberg" and "/" in output:
        raise UsageError(f"{output}: --format iceberg needs the name of a table, catalog.database.table")
    path = None if table_format == "iceberg" else local_path(output)
    if table_format == "parquet" and checkpoint is not None:
        raise UsageError("--checkpoint is for other formats: the checkpoint of a Parquet table is in its directory")
    if table_format == "iceberg" and checkpoint is None:
        raise UsageError("--checkpoint is required with --format iceberg")
    if checkpoint is not None:
        return str(checkpoint)
    root = (str(path.absolute()) if path else output).rstrip("/")
    return f"{root}/{CHECKPOINT}" + (f"/{given.channel}" if table_format == "delta" else "")
