"""Decorators for options that commands share. Each docstring names the parameters it adds."""

import functools
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import click

from nsqadmin_cli.address import Address
from nsqadmin_cli.command import AdminOption
from nsqadmin_cli.completion import complete_channels, complete_contexts, complete_topics
from nsqadmin_cli.output import Output, OutputFormat
from nsqadmin_cli.settings import DEFAULT_ADDRESS, DEFAULT_TIMEOUT, take_settings
from nsqadmin_cli.text import printable
from nsqadmin_cli.units import parse_duration

Function = Callable[..., Any]

_WHERE = "Which nodes"
_OUTPUT = "Output"
_FILE = click.Path(dir_okay=False)


class Duration(click.ParamType[float]):
    """A span of time in seconds, as a number or a text such as 250ms, 1h30m; more than 0 and at most `largest`."""

    name = "duration"

    def __init__(self, largest: float = 86400.0) -> None:
        self.largest = largest

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not 0 < seconds <= self.largest:
            self.fail(f"{value} must be more than 0 and at most {self.largest:g} seconds.", param, ctx)
        return seconds


class Name(click.ParamType[str]):
    """A valid name of a topic or channel."""

    name = "name"

    def __init__(self, what: str) -> None:
        self.what = what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if len(text) > 64 or not re.fullmatch(r"[.a-zA-Z0-9_-]+(#ephemeral)?", text):
            rule = "1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-', optionally with #ephemeral at the end"
            self.fail(f"{printable(repr(text), 100)} is not a valid {self.what} name: expected {rule}.", param, ctx)
        return text


class AddressType(click.ParamType[Address]):
    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        try:
            return value if isinstance(value, Address) else Address.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


_CLUSTER_OPTIONS = (
    click.option(
        "--nsqd-http-address",
        "nsqd_http_address",
        cls=AdminOption,
        section=_WHERE,
        multiple=True,
        type=AddressType(),
        envvar="GNSQADMIN_NSQD_HTTP_ADDRESS",
        metavar="ADDRESS",
        help="HTTP address of an nsqd: host:port, [ipv6]:port, http://host:port, https://host:port or unix:/path. "
        f"Repeat it for several nodes. Without any address, it is {DEFAULT_ADDRESS}.",
    ),
    click.option(
        "--lookupd-http-address",
        "lookupd_http_address",
        cls=AdminOption,
        section=_WHERE,
        multiple=True,
        type=AddressType(),
        envvar="GNSQADMIN_LOOKUPD_HTTP_ADDRESS",
        metavar="ADDRESS",
        help="HTTP address of an nsqlookupd, for all nodes that it lists. May be repeated.",
    ),
    click.option(
        "--context",
        "context_name",
        cls=AdminOption,
        section=_WHERE,
        envvar="GNSQADMIN_CONTEXT",
        metavar="NAME",
        shell_complete=complete_contexts,
        help="A saved context with addresses and the options below. See gnsqadmin context --help.",
    ),
    click.option(
        "--timeout",
        cls=AdminOption,
        section=_WHERE,
        type=Duration(3600),
        envvar="GNSQADMIN_TIMEOUT",
        metavar="DURATION",
        help=f"Time limit for the whole answer of a node, as in 5 or 500ms. [default: {DEFAULT_TIMEOUT:g}]",
    ),
    click.option(
        "--tls-ca",
        cls=AdminOption,
        section=_WHERE,
        type=_FILE,
        envvar="GNSQADMIN_TLS_CA",
        metavar="FILE",
        help="CA certificates in PEM format to trust for https, instead of the system's.",
    ),
    click.option(
        "--tls-cert",
        cls=AdminOption,
        section=_WHERE,
        type=_FILE,
        envvar="GNSQADMIN_TLS_CERT",
        metavar="FILE",
        help="Client certificate in PEM format.",
    ),
    click.option(
        "--tls-key",
        cls=AdminOption,
        section=_WHERE,
        type=_FILE,
        envvar="GNSQADMIN_TLS_KEY",
        metavar="FILE",
        help="Its key, unless the certificate's file contains it.",
    ),
    click.option(
        "--tls-insecure",
        cls=AdminOption,
        section=_WHERE,
        is_flag=True,
        envvar="GNSQADMIN_TLS_INSECURE",
        help="Accept any certificate for https.",
    ),
    click.option(
        "--token-file",
        cls=AdminOption,
        section=_WHERE,
        type=_FILE,
        envvar="GNSQADMIN_TOKEN_FILE",
        metavar="FILE",
        help="File whose first line is the token for gnsqds that require one; nsqlookupds do not get it.",
    ),
)


def settings_options(function: Function) -> Function:
    """Options to select nodes and connect to them: parameter `settings` (ClusterSettings)."""

    @functools.wraps(function)
    def called(*args: Any, **values: Any) -> Any:
        settings = take_settings(click.get_current_context(), values)
        return function(*args, settings=settings, **values)

    return _with_options(called, _CLUSTER_OPTIONS)


def cluster_options(function: Function) -> Function:
    """Options to select nodes and connect to them: parameter `cluster` (Cluster)."""

    @functools.wraps(function)
    def called(*args: Any, **values: Any) -> Any:
        settings = take_settings(click.get_current_context(), values)
        cluster = settings.cluster()
        cluster.waiting = _waiting
        return function(*args, cluster=cluster, **values)

    return _with_options(called, _CLUSTER_OPTIONS)


def _waiting(count: int) -> AbstractContextManager[Callable[[int], None]]:
    from nsqadmin_cli.render.progress import progress  # rarely needed, and it loads slowly

    return progress("waiting for answers", count, "nodes")


def output_options(function: Function) -> Function:
    """`-o` and `--json`: parameter `output` (Output)."""

    @functools.wraps(function)
    def called(*args: Any, as_json: bool, output_format: str, **values: Any) -> Any:
        form = OutputFormat.JSON if as_json else OutputFormat(output_format)
        return function(*args, output=Output(form), **values)

    return _with_options(
        called,
        (
            click.option(
                "-o",
                "--output",
                "output_format",
                cls=AdminOption,
                section=_OUTPUT,
                type=click.Choice([form.value for form in OutputFormat]),
                default=OutputFormat.TABLE.value,
                show_default=True,
                help="Output format.",
            ),
            click.option("--json", "as_json", cls=AdminOption, section=_OUTPUT, is_flag=True, help="Same as -o json."),
        ),
    )


def topic_option(function: Function) -> Function:
    """`--topic`: parameter `topic`, empty when it was not given."""
    return click.option(
        "--topic", default="", metavar="NAME", shell_complete=complete_topics, help="Show only this topic."
    )(function)


def channel_option(function: Function) -> Function:
    """`--channel`: parameter `channel`, empty when it was not given."""
    return click.option(
        "--channel",
        default="",
        metavar="NAME",
        shell_complete=complete_channels,
        help="Show only this channel and the topics that have it.",
    )(function)


def topic_argument(function: Function) -> Function:
    """Parameter `topic`: a valid name; the shell completes it."""
    return click.argument("topic", type=Name("topic"), shell_complete=complete_topics)(function)


def channel_argument(function: Function) -> Function:
    """Parameter `channel`: a valid name; the shell completes channels of the argument `topic` before it."""
    return click.argument("channel", type=Name("channel"), shell_complete=complete_channels)(function)


def _with_options(function: Function, options: tuple[Callable[[Any], Any], ...]) -> Function:
    for option in reversed(options):
        function = option(function)
    return function
