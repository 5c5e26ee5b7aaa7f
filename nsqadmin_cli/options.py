"""What several commands share: their options as click decorators, and the exit codes."""

import enum
from collections.abc import Callable
from typing import Any, TypeVar

import click

from nsqadmin_cli.api import Address

F = TypeVar("F", bound=Callable[..., Any])


class ExitCode(enum.IntEnum):
    """What `gnsqadmin` exits with. USAGE is what click itself uses for a wrong command line."""

    OK = 0
    FAILED = 1
    USAGE = 2
    INTERRUPTED = 130


def _addresses(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[Address, ...]:
    try:
        return tuple(Address.parse(text) for text in texts)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _seconds(ctx: click.Context, param: click.Parameter, seconds: float) -> float:
    if not 0 < seconds <= 3600:  # NaN is turned down too
        raise click.BadParameter(f"{seconds:g} is not more than 0 and at most 3600.", ctx, param)
    return seconds


def node_options(command: F) -> F:
    """Which nodes to ask and how long to wait: parameters `addresses` (tuple[Address, ...]) and `timeout` (seconds)."""
    command = click.option(
        "--timeout",
        type=float,
        default=5,
        show_default=True,
        callback=_seconds,
        metavar="SECONDS",
        help="How long to wait for the whole answer of a node.",
    )(command)
    return click.option(
        "--nsqd-http-address",
        "addresses",
        multiple=True,
        default=["127.0.0.1:4151"],
        show_default=True,
        callback=_addresses,
        metavar="HOST:PORT",
        help="HTTP address of an nsqd: host:port, [ipv6]:port or http://host:port. Repeat it for several nodes.",
    )(command)


def json_option(command: F) -> F:
    """`--json`: parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print a JSON document for programs.")(command)
