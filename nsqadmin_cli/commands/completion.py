"""`gnsqadmin completion`: prints a script for completion in a shell."""

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from nsqadmin_cli.command import command


class _BashComplete(BashComplete):
    @staticmethod
    def _check_version() -> None:
        """The script may be generated on another machine."""


_SHELLS: dict[str, type[ShellComplete]] = {"bash": _BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@command(
    "completion",
    examples="""
        eval "$(gnsqadmin completion bash)"      # in ~/.bashrc
        eval "$(gnsqadmin completion zsh)"       # in ~/.zshrc, after compinit
        gnsqadmin completion fish > ~/.config/fish/completions/gnsqadmin.fish
    """,
)
@click.argument("shell", type=click.Choice(sorted(_SHELLS)))
def completion(shell: str) -> None:
    """Print a script that lets a shell complete commands, options, saved contexts, topics and channels.

    Topics and channels are queried from the nodes, for at most a second.
    """
    root = click.get_current_context().find_root().command
    click.echo(_SHELLS[shell](root, {}, "gnsqadmin", "_GNSQADMIN_COMPLETE").source())
