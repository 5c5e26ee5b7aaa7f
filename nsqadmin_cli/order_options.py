"""Options of the commands that give orders."""

from collections.abc import Callable
from typing import Any

import click


def lookupd_only_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--lookupd-only`: parameter `lookupd_only`."""
    return click.option(
        "--lookupd-only",
        is_flag=True,
        help="Create it at nsqlookupds alone, as nsqadmin does with topics: nodes will have it when it is used.",
    )(function)
