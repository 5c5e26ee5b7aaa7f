"""`gnsqadmin context` and `completion`: saved addresses of clusters, and scripts for shells."""

import os
from dataclasses import replace
from typing import Any

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from nsqadmin_cli.command import command, option
from nsqadmin_cli.completion import complete_contexts
from nsqadmin_cli.context import (
    ClusterSettings,
    Context,
    Contexts,
    config_path,
    is_name,
    load_contexts,
    merged,
    save_contexts,
)
from nsqadmin_cli.output import Output, note
from nsqadmin_cli.table import ALWAYS, Cell, Column, Table, Tone

_FILES = ("tls_ca", "tls_cert", "tls_key", "token_file")


@command(
    "list",
    examples="gnsqadmin context list\ngnsqadmin context list --json",
    document="""
        file      the path of the file, which may not exist
        contexts  list by name: name, current (whether it is the default), and its
                  settings, named like their options
    """,
)
def list_contexts(output: Output) -> None:
    """List the saved contexts."""
    saved = load_contexts()
    output.show(lambda: _document(saved), lambda: [_table(saved)])


@command(
    "set",
    examples="""
        gnsqadmin context set prod --lookupd-http-address lookup.example:4161 --timeout 10
        gnsqadmin context set prod --tls-ca /etc/nsq/ca.pem
    """,
)
@click.argument("name", shell_complete=complete_contexts)
def set_context(settings: ClusterSettings, name: str) -> None:
    """Save the given options under a name. Options already saved under this name are kept.

    The first context becomes the current one. Variables such as GNSQADMIN_TIMEOUT are not saved.
    """
    if not is_name(name):
        raise click.UsageError("a context name has 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-'.")
    saved = load_contexts()
    # A copy of the context that an option names.
    base = saved.get(settings.context_name) if settings.by_option else saved.contexts.get(name, Context())
    # Files are found from any directory.
    files = {key: os.path.abspath(path) for key in _FILES if (path := getattr(settings.options, key))}
    contexts = {**saved.contexts, name: merged(base, replace(settings.options, **files))}
    save_contexts(Contexts(saved.current or name, contexts))
    note(f"saved context {name} in {config_path()}")


@command("use", examples="gnsqadmin context use prod\ngnsqadmin context use --none")
@click.argument("name", required=False, shell_complete=complete_contexts)
@option("--none", "no_context", is_flag=True, help="Use no context by default.")
def use(name: str | None, no_context: bool) -> None:
    """Make a context the current one, which is used by default."""
    if (name is None) != no_context:
        raise click.UsageError("give the name of a context, or --none.")
    saved = load_contexts()
    if name is not None:
        saved.get(name)
    save_contexts(replace(saved, current=name or ""))
    note(f"the current context is {name}" if name else "there is no current context")


@command("remove", examples="gnsqadmin context remove old")
@click.argument("name", shell_complete=complete_contexts)
def remove(name: str) -> None:
    """Remove a context."""
    save_contexts(load_contexts().without(name))
    note(f"removed context {name}")


def _document(saved: Contexts) -> dict[str, Any]:
    found = [
        {"name": name, "current": name == saved.current} | context.settings()
        for name, context in sorted(saved.contexts.items())
    ]
    return {"file": str(config_path()), "contexts": found}


def _table(saved: Contexts) -> Table:
    table = Table(
        (
            Column("name", "context"),
            Column("current", "current", keep=ALWAYS),
            Column("settings", "settings", keep=ALWAYS),
        ),
        empty=f"No contexts in {config_path()}.",
    )
    for name, context in sorted(saved.contexts.items()):
        current = name == saved.current
        told = [word for key, value in context.settings().items() for word in _words(key, value)]
        cell = Cell(name, Tone.STRONG if current else None)
        table.rows.append([cell, "yes" if current else "", " ".join(told)])
    return table


def _words(key: str, value: object) -> list[str]:
    """A setting as one would type it."""
    option = f"--{key.replace('_', '-')}"
    if value is True:
        return [option]
    values = value if isinstance(value, list) else [f"{value:g}" if isinstance(value, float) else value]
    return [f"{option} {one}" for one in values]


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
