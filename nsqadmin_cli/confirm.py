"""Confirmation of destructive operations: shows what will be lost, then asks, or requires `--yes`."""

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from nsqadmin_cli.command import AdminOption
from nsqadmin_cli.errors import AdminError, ExitCode
from nsqadmin_cli.table import Block, Line, Tone

_SECTION = "Before anything is lost"


@dataclass(frozen=True, slots=True)
class Confirm:
    """The options of confirmation."""

    yes: bool
    dry_run: bool

    def ask(self, warning: str, blocks: Sequence[Block], question: str) -> None:
        """Return if confirmed, else raise AdminError with NOT_CONFIRMED.

        `warning` is a sentence about what will be lost; `blocks` show details before `question` is asked.
        """
        if self.yes:
            return
        if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
            text = f"{warning} Nothing was done: use --yes to do it, or --dry-run to see more"
            raise AdminError(text, ExitCode.NOT_CONFIRMED)
        from nsqadmin_cli.render import show_aside  # imported late: it loads slowly

        show_aside([*blocks, Line.of(warning, Tone.STRONG_NOTE)])
        if not _agrees(question):
            raise AdminError("not confirmed, nothing was done", ExitCode.NOT_CONFIRMED)


def confirm_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--yes` and `--dry-run`: parameter `confirm` (Confirm)."""

    @functools.wraps(function)
    def called(*args: Any, yes: bool, dry_run: bool, **values: Any) -> Any:
        return function(*args, confirm=Confirm(yes, dry_run), **values)

    dry_run_option = click.option(
        "--dry-run",
        "-n",
        cls=AdminOption,
        section=_SECTION,
        is_flag=True,
        help="Show what would be done and lost, and do nothing.",
    )
    yes_option = click.option(
        "--yes",
        "-y",
        cls=AdminOption,
        section=_SECTION,
        is_flag=True,
        help="Do not ask for confirmation. Required without a terminal.",
    )
    return yes_option(dry_run_option(called))


def is_terminal(stream: Any) -> bool:
    """Whether a standard stream is a terminal; it is None if it was closed before the start."""
    return stream is not None and not stream.closed and stream.isatty()


def _agrees(question: str) -> bool:
    """Whether the answer is y or yes. click's own prompt would write to standard output."""
    click.echo(f"{question} [y/N] ", nl=False, err=True)
    try:
        answer = sys.stdin.readline()
    except UnicodeDecodeError:
        return False
    if not answer.endswith("\n"):
        click.echo(err=True)
    return answer.strip().lower() in ("y", "yes")
