"""The options that commands share, as click types and decorators; each documents the parameters that the command gets.

Addresses, durations and sizes are written as in the options of `format("nsq")` (`pyspark_nsq.option_values`).
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

import click

from gnsq_pipeline.archive import FORMATS
from gnsq_pipeline.session import SessionSettings
from pyspark_nsq import option_values

Function = Callable[..., Any]


class Text(click.ParamType[Any]):
    """A value that `read` makes of a text, or refuses with a ValueError."""

    def __init__(self, name: str, read: Callable[[str], object]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except (ValueError, OverflowError) as error:
            self.fail(f"{value!r}: {error}.", param, ctx)


def _moment(text: str) -> int:
    """Nanoseconds since 1970 of an ISO 8601 time (UTC unless it has an offset), or of seconds since 1970."""
    if text.replace(".", "", 1).isdigit():
        whole, _, fraction = text.partition(".")
        return int(whole or "x") * 1_000_000_000 + int((fraction + "0" * 9)[:9])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("not a time; expected 2026-11-21T13:00 or seconds since 1970") from None
    moment = moment.replace(tzinfo=moment.tzinfo or UTC)
    return math.floor(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000


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


def together(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """One decorator of several, in the order of the help."""
    return lambda function: functools.reduce(lambda inner, option: option(inner), reversed(options), function)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
format_option = click.option(
    "--format", "table_format", type=click.Choice(FORMATS), default="parquet", show_default=True,
    help="Format of the table. Delta Lake and Iceberg need their packages: --conf spark.jars.packages=...",
)  # fmt: skip
period_options = together(
    click.option("--since", type=MOMENT, metavar="TIME", help="Only archived messages at or after this time (UTC)."),
    click.option("--until", type=MOMENT, metavar="TIME", help="Only archived messages before this time."),
)
_LOOKUPD = click.option(
    "--lookupd-http-address", "lookupd", multiple=True, metavar="HOST:PORT", help="An nsqlookupd; may be repeated."
)
_NSQD = click.option("--nsqd-tcp-address", "nsqd", multiple=True, metavar="HOST:PORT", help="An nsqd; may be repeated.")
_NSQD_HTTP = click.option(
    "--nsqd-http-address", "nsqd_http", multiple=True, metavar="HOST:PORT",
    help="HTTP address of the same nsqd, if not its TCP port + 1.",
)  # fmt: skip
_EXTRA = click.option(
    "-o", "--option", "extra", type=SETTING, multiple=True,
    help='Any other option of format("nsq"), such as nsq.tls.ca=FILE; may be repeated.',
)  # fmt: skip
_STREAM = together(
    click.option("--topic", "topics", type=NAME, multiple=True, help="A topic to read; may be repeated."),
    click.option("--channel", type=NAME, metavar="CHANNEL", help="The channel to read; each pipeline needs its own."),
    _LOOKUPD, _NSQD, _NSQD_HTTP, _EXTRA,
    click.option("--spool", metavar="DIRECTORY", help="Directory for messages until they are committed."),
    click.option("--checkpoint", metavar="DIRECTORY", help="Directory in which Spark stores its progress."),
    click.option("--max-messages", type=click.IntRange(min=1), metavar="N", help="Maximum size of a batch."),
    click.option("--continuous", is_flag=True, help="Continue until stopped, not only until everything is read."),
    click.option("--trigger", type=DURATION, default="10s", show_default=True, help="Time between continuous batches."),
    click.option("--allow-missing-topics", is_flag=True, help="Run even if no nsqd has a topic yet."),
    click.option("--progress", type=click.Choice(["lines", "none"]), default="lines", show_default=True,
                 help="How to show progress on stderr: a line for each batch, or nothing."),
    click.option("--metrics-address", type=ADDRESS, metavar="HOST:PORT", help="Address for Prometheus metrics."),
    click.option("--summary", metavar="FILE", help="File for the result of the run as JSON; - is stdout."),
)  # fmt: skip
_SPARK = together(
    click.option("--master", metavar="URL", help="Where Spark runs; default: here, or as given to spark-submit."),
    click.option("--conf", "conf", type=SETTING, multiple=True, help="A setting of Spark; may be repeated."),
    click.option("--verbose", is_flag=True, help="Enable Spark's log, and show where an error comes from."),
)


@dataclass(frozen=True)
class StreamOptions:
    """What to read from NSQ, and how; `nodes` are the options of `format("nsq")` for the nsqds."""

    topics: tuple[str, ...]
    channel: str | None
    nodes: dict[str, str]
    spool: str | None
    checkpoint: str | None
    max_messages: int | None
    continuous: bool
    trigger: float  # seconds
    allow_missing_topics: bool
    progress: str  # lines or none
    metrics_address: tuple[str, int] | None
    summary: str | None


def _nodes(values: dict[str, Any]) -> dict[str, str]:
    """Take the options of nsqds out of `values`, as options of `format("nsq")`."""
    names = {"lookupd": "nsq.lookupd.http.addresses", "nsqd": "nsq.nsqd.tcp.addresses"}
    names["nsqd_http"] = "nsq.nsqd.http.addresses"
    given = {name: ",".join(values.pop(key, ())) for key, name in names.items()}
    return {name: value for name, value in given.items() if value} | dict(values.pop("extra"))


def spark_options(function: Function) -> Function:
    """For `session: SessionSettings`, which has the packages of `table_format` if that is an option."""

    @functools.wraps(function)
    def called(**values: Any) -> Any:
        conf, table_format = dict(values.pop("conf")), values.get("table_format", "parquet")
        name = click.get_current_context().command_path
        session = SessionSettings(name, values.pop("master"), conf, values.pop("verbose"), table_format)
        return function(session=session, **values)

    return _SPARK(called)


def stream_options(function: Function) -> Function:
    """For `options: StreamOptions`."""

    @functools.wraps(function)
    def called(**values: Any) -> Any:
        nodes = _nodes(values)
        own = {field.name: values.pop(field.name) for field in fields(StreamOptions) if field.name != "nodes"}
        return function(options=StreamOptions(nodes=nodes, **own), **values)

    return _STREAM(called)


def destination_options(function: Function) -> Function:
    """For `nodes: dict[str, str]`, options of format("nsq") that name the nsqds to write to, and any others."""

    @functools.wraps(function)
    def called(**values: Any) -> Any:
        return function(nodes=_nodes(values), **values)

    return together(_LOOKUPD, _NSQD, _EXTRA)(called)
