"""Shared by commands that consume: their options, and the choice of the channel."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from nsqadmin_cli.command import Name
from nsqadmin_cli.completion import complete_channels
from nsqadmin_cli.consumer import ephemeral_channel
from nsqadmin_cli.subscription import Wish

Function = Callable[..., Any]


@dataclass(frozen=True)
class Source:
    """What to consume from: without `follow`, it ends when the channel is empty; `create` and `yes` are for
    `Consumer.start`."""

    wish: Wish
    count: int | None
    follow: bool
    create: bool
    yes: bool


count_option = click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="Stop after N messages.")
auth_option = click.option(
    "--auth-secret",
    envvar="GNSQADMIN_AUTH_SECRET",
    default="",
    metavar="TEXT",
    help="Secret for AUTH, if nodes require it of consumers.",
)

yes_option = click.option(
    "--yes",
    is_flag=True,
    help="Without --channel: consume messages queued in a topic without channels, without confirmation.",
)


def source_options(purpose: str) -> Callable[[Function], Function]:
    """The options of a command that consumes a channel: parameter `source` (Source)."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def called(
            *args: Any,
            channel: str | None,
            create: bool,
            follow: bool,
            count: int | None,
            in_flight: int,
            auth_secret: str,
            yes: bool,
            **values: Any,
        ) -> Any:
            if create and not channel:
                raise click.UsageError("--create requires --channel.")
            window = min(in_flight, count or in_flight)  # what is taken and given back counts as an attempt
            wish = Wish(channel or ephemeral_channel(purpose), window, auth_secret=auth_secret)
            return function(*args, source=Source(wish, count, follow or not channel, create, yes), **values)

        for option in (
            yes_option,
            auth_option,
            click.option(
                "--in-flight",
                type=click.IntRange(1, 1_000_000),
                default=1000,
                show_default=True,
                metavar="N",
                help="Maximum number of messages in flight to this command, over all nodes.",
            ),
            count_option,
            click.option("--follow", is_flag=True, help="Continue with new messages when --channel is empty."),
            click.option("--create", is_flag=True, help="Create the channel if it does not exist."),
            click.option(
                "--channel",
                type=Name("channel"),
                metavar="NAME",
                shell_complete=complete_channels,
                help="Consume this channel until it is empty. Without it, a temporary channel receives messages "
                "published from now on.",
            ),
        ):
            called = option(called)
        return called

    return decorate
