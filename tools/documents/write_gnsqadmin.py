"""Writes the list of commands in contrib/docs/gnsqadmin.md from the program itself, and the reference of all of them
for the site."""

import inspect
from collections.abc import Iterator

import click

from documents.marks import escaped, table
from nsqadmin_cli.cli import cli
from nsqadmin_cli.command_base import AdminCommand
from nsqadmin_cli.commands import SECTIONS


def command_list(_: str) -> str:
    rows = [[f"`{entry.words}`", escaped(entry.summary)] for entries in SECTIONS.values() for entry in entries]
    return table(["Command", ""], rows)


def reference() -> str:
    """Describes every command with its options, examples and keys of JSON, in Markdown."""
    return "\n".join(_commands()) + "\n"


def all_commands() -> dict[str, AdminCommand]:
    """Returns every command by its words, in the order of help."""
    found: dict[str, AdminCommand] = {}
    ctx = click.Context(cli, info_name="gnsqadmin")
    for entries in SECTIONS.values():
        for entry in entries:
            group: click.Command | None = cli
            for word in entry.words.split():
                assert isinstance(group, click.Group)
                group = group.get_command(ctx, word)
            assert isinstance(group, AdminCommand), f"{entry.words} is not made by nsqadmin_cli.command_base"
            found[entry.words] = group
    return found


def _commands() -> Iterator[str]:
    commands = all_commands()
    shared: dict[str, dict[str, click.Option]] = {}
    for command in commands.values():
        for option in _options(command):
            if (section := _section(option)) in _SHARED:
                shared.setdefault(section, {}).setdefault(option.opts[-1], option)
    for section, options in shared.items():
        yield f"### {section}\n\n{_SHARED[section]}\n"
        yield _table(list(options.values()))
    for heading, entries in SECTIONS.items():
        for entry in entries:
            yield from _command(entry.words, commands[entry.words], heading)


_SHARED = {
    "Which nodes": "Options of every command that queries nodes.",
    "Output": "Options of every command that prints data.",
}


def _command(words: str, command: AdminCommand, heading: str) -> Iterator[str]:
    ctx = click.Context(command, info_name=f"gnsqadmin {words}")
    usage = " ".join([f"gnsqadmin {words}", *command.collect_usage_pieces(ctx)])
    yield f"### gnsqadmin {words}\n\n*{heading}* · `{usage}`\n"
    yield _text(command) + "\n"
    options = _options(command)
    own = [option for option in options if _section(option) not in _SHARED]
    if own:
        yield _table(own)
    used = dict.fromkeys(section for option in options if (section := _section(option)) in _SHARED)
    if used:
        yield f"Also the options of {' and '.join(f'[{name}](#{_anchor(name)})' for name in used)}.\n"
    yield _block(command.examples)
    if command.document:
        yield f"Keys of `--json`:\n\n{_block(command.document)}"


def _options(command: click.Command) -> list[click.Option]:
    return [param for param in command.params if isinstance(param, click.Option) and not param.hidden]


def _section(option: click.Option) -> str:
    return str(getattr(option, "section", "Options"))


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def _text(command: click.Command) -> str:
    """Returns the help, one line per paragraph."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(escaped(" ".join(paragraph.split())) for paragraph in paragraphs)


def _block(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines()) + "\n"


def _table(options: list[click.Option]) -> str:
    with_variables = any(option.envvar for option in options)
    ctx = click.Context(click.Command("x"))
    rows = []
    for option in options:
        names = ", ".join(f"`{name}`" for name in option.opts)
        value = "" if option.is_flag or option.count else f" {escaped(option.make_metavar(ctx))}"
        default = f" Default: `{option.default}`." if option.show_default and option.default not in (None, ()) else ""
        variable = [f"`{option.envvar}`" if option.envvar else ""] if with_variables else []
        rows.append([names + value, *variable, escaped(option.help or "") + default])
    return table(["Option", "Variable", ""] if with_variables else ["Option", ""], rows)
