"""Confirm to what cannot be undone: what will be lost is said first, and then a person is asked, or `--yes` needed."""

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
    """What was said about it on the command line."""

    yes: bool
    dry_run: bool

    def ask(self, warning: str, blocks: Sequence[Block], question: str) -> None:
        """Return if it may be done, else raise AdminError with NOT_CONFIRMED.

        `warning` is a sentence that says what will be lost; `blocks` show it in detail to whom is asked `question`.
        """
        if self.yes:
            return
        if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
            text = f"{warning} Nothing was done: say --yes to do it, or --dry-run to see more"
            raise AdminError(text, ExitCode.NOT_CONFIRMED)
        from nsqadmin_cli.render import show_aside  # not before it is wanted: what it needs loads slowly

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
        help="Do it without asking. Needed where there is no terminal to ask on.",
    )
    return yes_option(dry_run_option(called))


def is_terminal(stream: Any) -> bool:
    """Whether a standard stream is one; it is None when it was closed before the start."""
    return stream is not None and not stream.closed and stream.isatty()


def _agrees(question: str) -> bool:
    """Whether a person types y or yes; all else is no. click's own prompt would write to standard output."""
    click.echo(f"{question} [y/N] ", nl=False, err=True)
    try:
        answer = sys.stdin.readline()
    except UnicodeDecodeError:
        return False
    if not answer.endswith("\n"):
        click.echo(err=True)
    return answer.strip().lower() in ("y", "yes")
