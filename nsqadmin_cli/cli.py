"""The `gnsqadmin` command line: the group of all commands, and how a run ends.

A user's mistake is a line on stderr, never a traceback. Ctrl-C and a closed pipe (`| head`) end the run silently; click
turns the first into an `Abort`, the second into exit code 1.
"""

import importlib
import io
import os
import sys
from typing import Any, NoReturn

import click

from gnsqd.shared.errors import StorageError, reason_of
from gnsqd.shared.version import VERSION
from nsqadmin_cli.commands import GROUPS, SECTIONS, Entry
from nsqadmin_cli.errors import AdminError, ExitCode
from nsqadmin_cli.output import is_terminal, report
from nsqadmin_cli.units import printable, suggestion


class LazyGroup(click.Group):
    """A group of the commands of `commands.SECTIONS` whose words begin with `first`; loads them on demand."""

    def __init__(self, *args: Any, first: str = "", **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._entries: dict[str, Entry] = {}
        self._sections: dict[str, list[str]] = {}
        for section, entries in SECTIONS.items():
            for entry in entries:
                name, is_group, _ = entry.words.removeprefix(first).partition(" ")
                if entry.words.startswith(first) and name not in self._entries:
                    self._entries[name] = Entry(name, GROUPS[name]) if is_group else entry
                    self._sections.setdefault("Commands" if first else section, []).append(name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not (args or ctx.parent or ctx.resilient_parsing) and is_terminal(sys.stdout):
            args = ["status"]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._entries)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        entry = self._entries.get(name)
        if entry is None:
            return None
        if entry.words in GROUPS:
            return LazyGroup(name, first=f"{name} ", help=entry.summary)
        module, attribute = entry.module or entry.words.split()[0].replace("-", "_"), name.replace("-", "_")
        imported = importlib.import_module(module if "." in module else f"nsqadmin_cli.commands.{module}")
        loaded = getattr(imported, attribute, None) or getattr(imported, f"{attribute}_")  # list_, as list is Python's
        assert isinstance(loaded, click.Command)
        if not (loaded.help or "").startswith(entry.summary):
            loaded.help = f"{entry.summary}\n\n{loaded.help or ''}".rstrip()
        return loaded

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and name not in self._entries:
            others = f"; there are {', '.join(self._entries)}." if ctx.parent else "."
            ctx.fail(f"No such command {printable(name)!r}{suggestion(name, self._entries) or others}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, names in self._sections.items():
            with formatter.section(section):
                formatter.write_dl([(name, self._entries[name].summary) for name in names])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(VERSION, prog_name="gnsqadmin", message="%(prog)s %(version)s")
def cli() -> None:
    """Inspect and manage gnsqd and nsqd: show queues, find problems, and correct them.

    Nodes are specified by address, by nsqlookupd or by a saved context. The default is 127.0.0.1:4151.

    \b
    Exit codes:
      0    success
      1    a node could not be reached, refused, or sent an invalid answer
      2    wrong usage
      4    no node has this topic, channel or option
      5    a destructive operation was not confirmed, and nothing was done
      130  interrupted
    """


def main() -> NoReturn:
    if isinstance(sys.stdout, io.TextIOWrapper):  # names may have characters that the encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = cli.main(prog_name="gnsqadmin", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except (AdminError, StorageError) as error:
        report([*error.causes, error] if isinstance(error, AdminError) else [error])
        status = error.exit_code if isinstance(error, AdminError) else ExitCode.FAILED
    except click.Abort:
        status = ExitCode.INTERRUPTED
    except OSError as error:  # of standard output, such as a full disk: those of nodes are NodeErrors
        click.echo(f"Error: cannot write the output: {reason_of(error)}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left in the buffer
        status = ExitCode.FAILED
    sys.exit(status)
