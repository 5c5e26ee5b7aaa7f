"""The options that commands share, as click decorators and types; each documents the parameters that the command gets.

How addresses, durations and sizes are written is how the options of `format("nsq")` are (`pyspark_nsq.option_values`).
"""

import functools
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from gnsq_pipeline.session import SessionSettings
from pyspark_nsq import option_values
from pyspark_nsq.option_values import Kind

Function = Callable[..., Any]


class KindType(click.ParamType[Any]):
    """A value as `pyspark_nsq.option_values` reads it."""

    def __init__(self, kind: Kind) -> None:
        self.name = kind.name
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._kind.read(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}.", param, ctx)


class Moment(click.ParamType[int]):
    """A moment as nanoseconds since 1970: ISO 8601 (UTC unless it has an offset), or seconds since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return _from_number(value) if value.replace(".", "", 1).isdigit() and "-" not in value else _from_iso(value)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time: expected 2026-11-21T13:00 or seconds since 1970.", param, ctx)


def _from_number(text: str) -> int:
    whole, _, fraction = text.partition(".")
    return int(whole) * 1_000_000_000 + int((fraction + "0" * 9)[:9])


def _from_iso(text: str) -> int:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return math.floor(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000


class Setting(click.ParamType[tuple[str, str]]):
    """`key=value`."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, setting = value.partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not key=value.", param, ctx)
        return key, setting


DURATION = KindType(option_values.DURATION)
TIMEOUT = KindType(option_values.TIMEOUT)
SIZE = KindType(option_values.SIZE)
ADDRESS = KindType(Kind("address", lambda text: option_values.HTTP_ADDRESSES.read(text)[0]))  # type: ignore[index]
NAME = KindType(option_values.TOPIC)
SETTING = Setting()
MOMENT = Moment()

_SPARK_OPTIONS = (
    click.option("--master", metavar="URL", help="Where Spark runs; default: here, or as given to spark-submit."),
    click.option("--conf", "conf", type=SETTING, multiple=True, help="A setting of Spark; may be repeated."),
    click.option("--verbose", is_flag=True, help="Enable Spark's log, and show where an error comes from."),
)
_RUN_OPTIONS = (
    click.option(
        "--progress",
        type=click.Choice(["auto", "live", "lines", "none"]),
        default="auto",
        show_default=True,
        help="How to show progress on stderr. auto: live on a terminal, otherwise a line for each batch.",
    ),
    click.option(
        "--metrics-address", type=ADDRESS, metavar="HOST:PORT", help="Address at which to serve Prometheus metrics."
    ),
    click.option(
        "--summary",
        "summary_file",
        metavar="FILE",
        help="File for the result of the run as JSON; - is stdout.",
    ),
)
_LOOKUPD = click.option(
    "--lookupd-http-address", "lookupd", multiple=True, metavar="HOST:PORT", help="An nsqlookupd; may be repeated."
)
_NSQD = click.option("--nsqd-tcp-address", "nsqd", multiple=True, metavar="HOST:PORT", help="An nsqd; may be repeated.")
_NSQD_HTTP = click.option(
    "--nsqd-http-address",
    "nsqd_http",
    multiple=True,
    metavar="HOST:PORT",
    help="HTTP address of the same nsqd, if not its TCP port + 1.",
)
_EXTRA = click.option(
    "-o",
    "--option",
    "extra",
    type=SETTING,
    multiple=True,
    help='Any other option of format("nsq"), such as nsq.tls.ca=FILE; may be repeated.',
)
_SUBSCRIPTION = (
    click.option("--topic", "topics", type=NAME, multiple=True, help="A topic to read; may be repeated."),
    click.option("--channel", type=NAME, metavar="CHANNEL", help="The channel to read; each pipeline needs its own."),
)
_READING = (
    click.option("--spool", metavar="DIRECTORY", help="Directory for messages until they are committed."),
    click.option("--checkpoint", metavar="DIRECTORY", help="Directory in which Spark stores its progress."),
    click.option("--max-messages", type=click.IntRange(min=1), metavar="N", help="Maximum size of a batch."),
    click.option("--continuous", is_flag=True, help="Continue until stopped, not only until everything is read."),
    click.option(
        "--trigger",
        type=DURATION,
        default="10s",
        show_default=True,
        help="With --continuous: the time between batches.",
    ),
    click.option("--allow-missing-topics", is_flag=True, help="Run even if no nsqd has a topic yet."),
)


def _with(function: Function, *options: Callable[[Function], Function]) -> Function:
    for option in reversed(options):
        function = option(function)
    return function


def spark_options(function: Function) -> Function:
    """For `session: SessionSettings`."""

    @functools.wraps(function)
    def called(*args: Any, master: str | None, conf: tuple[tuple[str, str], ...], verbose: bool, **values: Any) -> Any:
        session = SessionSettings(click.get_current_context().command_path, master, dict(conf), verbose)
        return function(*args, session=session, **values)

    return _with(called, *_SPARK_OPTIONS)


def run_options(function: Function) -> Function:
    """For `progress: str`, `metrics_address: tuple[str, int] | None` and `summary_file: str | None`."""
    return _with(function, *_RUN_OPTIONS)


def _with_nodes(function: Function, *options: Callable[[Function], Function]) -> Function:
    @functools.wraps(function)
    def called(
        *args: Any,
        lookupd: tuple[str, ...],
        nsqd: tuple[str, ...],
        extra: tuple[tuple[str, str], ...],
        nsqd_http: tuple[str, ...] = (),
        **values: Any,
    ) -> Any:
        addresses = {
            "nsq.lookupd.http.addresses": ",".join(lookupd),
            "nsq.nsqd.tcp.addresses": ",".join(nsqd),
            "nsq.nsqd.http.addresses": ",".join(nsqd_http),
        }
        nodes = {key: value for key, value in addresses.items() if value} | dict(extra)
        return function(*args, nodes=nodes, **values)

    return _with(called, *options)


def source_options(function: Function) -> Function:
    """For `nodes: dict[str, str]`, options of format("nsq") that name the nsqds to read from, and any others."""
    return _with_nodes(function, _LOOKUPD, _NSQD, _NSQD_HTTP, _EXTRA)


def destination_options(function: Function) -> Function:
    """For `nodes: dict[str, str]`, options of format("nsq") that name the nsqds to write to, and any others."""
    return _with_nodes(function, _LOOKUPD, _NSQD, _EXTRA)


def subscription_options(function: Function) -> Function:
    """For `topics: tuple[str, ...]` and `channel: str | None`."""
    return _with(function, *_SUBSCRIPTION)


def reading_options(function: Function) -> Function:
    """For `spool`, `checkpoint` (str or None), `max_messages` (int or None), `continuous: bool`, `trigger: float` and
    `allow_missing_topics: bool`."""
    return _with(function, *_READING)
