"""`gnsqadmin context`, `completion` and `cheat`: saved addresses of clusters, scripts for shells, a short help."""

import os
import re
from dataclasses import replace

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from nsqadmin_cli.change import Shown
from nsqadmin_cli.command_base import argument, command, complete_contexts, flag
from nsqadmin_cli.context import ClusterContext, ClusterSettings, config_path, load_contexts, merged
from nsqadmin_cli.output import note
from nsqadmin_cli.table import ALWAYS, Cell, Column, Grid, Table, Tone

_FILES = ("tls_ca", "tls_cert", "tls_key", "token_file")


@command(
    examples="gnsqadmin context list\ngnsqadmin context list --json",
    document="""
        file      the path of the file, which may not exist
        contexts  list by name: name, current (whether it is the default), and its
                  settings, named like their options
    """,
)
def list_() -> Shown:
    saved = load_contexts()
    settings = {name: context.settings() for name, context in sorted(saved.contexts.items())}
    documents = [{"name": name, "current": name == saved.current} | given for name, given in settings.items()]
    columns = Column("name", "context"), Column("current", "current", keep=ALWAYS)
    table = Table((*columns, Column("settings", "settings", keep=ALWAYS)), empty=f"No contexts in {config_path()}.")
    for name, given in settings.items():
        words = []  # as one would type them
        for key, value in given.items():
            values = value if isinstance(value, list) else [f"{value:g}" if isinstance(value, float) else value]
            words += [f"--{key.replace('_', '-')}{'' if value is True else f' {text}'}" for text in values]
        tone, current = (Tone.STRONG, "yes") if name == saved.current else (None, "")
        table.rows.append([Cell(name, tone), current, " ".join(words)])
    return Shown({"file": str(config_path()), "contexts": documents}, [table])


@command(
    examples="""
        gnsqadmin context set prod --lookupd-http-address lookup.example:4161 --timeout 10
        gnsqadmin context set prod --tls-ca /etc/nsq/ca.pem
    """
)
def set_(settings: ClusterSettings, name: str = argument(shell_complete=complete_contexts)) -> None:
    """The first context becomes the current one. Variables such as GNSQADMIN_TIMEOUT are not saved."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
        raise click.UsageError("a context name has 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-'.")
    saved = load_contexts()
    # A copy of the context that an option names.
    base = saved.get(settings.context_name) if settings.by_option else saved.contexts.get(name, ClusterContext())
    # Files are found from any directory.
    files = {key: os.path.abspath(path) for key in _FILES if (path := getattr(settings.options, key))}
    contexts = {**saved.contexts, name: merged(base, replace(settings.options, **files))}
    replace(saved, current=saved.current or name, contexts=contexts).save()
    note(f"saved context {name} in {config_path()}")


@command(examples="gnsqadmin context use prod\ngnsqadmin context use --none")
def use(
    name: str | None = argument(required=False, shell_complete=complete_contexts),
    no_context: bool = flag("Use no context by default.", "--none"),
) -> None:
    if (name is None) != no_context:
        raise click.UsageError("give the name of a context, or --none.")
    saved = load_contexts()
    if name is not None:
        saved.get(name)
    replace(saved, current=name or "").save()
    note(f"the current context is {name}" if name else "there is no current context")


@command(examples="gnsqadmin context remove old")
def remove(name: str = argument(shell_complete=complete_contexts)) -> None:
    saved = load_contexts()
    saved.get(name)
    left = {other: context for other, context in saved.contexts.items() if other != name}
    replace(saved, current="" if saved.current == name else saved.current, contexts=left).save()
    note(f"removed context {name}")


class _BashComplete(BashComplete):
    @staticmethod
    def _check_version() -> None:
        """Checks nothing: the script may be generated on another machine."""


_SHELLS: dict[str, type[ShellComplete]] = {"bash": _BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@command(
    examples="""
        eval "$(gnsqadmin completion bash)"      # in ~/.bashrc
        eval "$(gnsqadmin completion zsh)"       # in ~/.zshrc, after compinit
        gnsqadmin completion fish > ~/.config/fish/completions/gnsqadmin.fish
    """
)
def completion(shell: str = argument(click.Choice(sorted(_SHELLS)))) -> None:
    """Topics and channels are queried from the nodes, for at most a second."""
    root = click.get_current_context().find_root().command
    click.echo(_SHELLS[shell](root, {}, "gnsqadmin", "_GNSQADMIN_COMPLETE").source())


LINES = (
    ("gnsqadmin doctor", "problems, their causes and remedies"),
    ("gnsqadmin top", "all queues on a full screen"),
    ("gnsqadmin stats --trouble", "channels that need attention"),
    ("gnsqadmin channel show TOPIC CHANNEL", "one channel with its consumers"),
    ("gnsqadmin peek TOPIC CHANNEL", "queued messages, without consuming them"),
    ("gnsqadmin tail TOPIC", "messages as they are published"),
    ("gnsqadmin pub TOPIC MESSAGE", "publish a message"),
    ("gnsqadmin channel pause TOPIC CHANNEL", "stop deliveries; unpause continues them"),
    ("gnsqadmin channel empty TOPIC CHANNEL", "discard its messages, after confirmation"),
    ("gnsqadmin context set NAME --lookupd-http-address HOST:4161", "save the addresses of a cluster"),
)


@command(examples="gnsqadmin cheat", document="lines    list: command, meaning")
def cheat() -> Shown:
    grid = Grid([[Cell(line, Tone.STRONG), meaning] for line, meaning in LINES])
    table = Table([Column("command", "command"), Column("meaning", "meaning", keep=ALWAYS)], [*LINES])
    return Shown({"lines": [{"command": line, "meaning": meaning} for line, meaning in LINES]}, [grid], table)
