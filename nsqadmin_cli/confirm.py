"""Confirmation of destructive operations: shows what will be lost, then asks, or requires `--yes`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click

from nsqadmin_cli.errors import AdminError, ExitCode
from nsqadmin_cli.output import is_terminal
from nsqadmin_cli.table import Block, Line, Tone


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
        from nsqadmin_cli.render import show_aside  # not before it is wanted: what it needs loads slowly

        show_aside([*blocks, Line.of(warning, Tone.STRONG_NOTE)])
        if not _agrees(question):
            raise AdminError("not confirmed, nothing was done", ExitCode.NOT_CONFIRMED)


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
