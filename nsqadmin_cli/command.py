"""Base of gnsqadmin's commands, and the layout of their help.

A command declares its options, `examples`, and, if it has one, the `document` of its --json; help shows them at its
end, and the reference page is generated from them. Options that many commands share are listed under their own heading.
"""

import textwrap
from collections.abc import Callable
from typing import Any

import click

MISSPELT = "nsqadmin_cli.misspelt"  # in the meta of a context: a line to complete that the command would refuse


class AdminOption(click.Option):
    """An option that help lists under `section`."""

    def __init__(self, *args: Any, section: str = "Options", **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.section = section


class AdminCommand(click.Command):
    """A command with examples. `document` describes what --json prints; both keep their lines."""

    def __init__(self, *args: Any, examples: str = "", document: str = "", **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = textwrap.dedent(examples).strip()
        self.document = textwrap.dedent(document).strip()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # a shell completes, and click leaves out all that follows an unknown option
            parser = self.make_parser(ctx)
            parser.ctx = None
            try:
                parser.parse_args([*args, "value"])  # of an option at the end
            except click.UsageError:
                ctx.meta[MISSPELT] = True
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and record[1]:  # an argument stands in the line of usage
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records, col_max=32)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, text in (("Examples", self.examples), ("Keys of --json", self.document)):
            if text:
                with formatter.section(heading):
                    formatter.write(textwrap.indent(text, " " * formatter.current_indent) + "\n")


def command(
    name: str, *, examples: str, document: str = "", cls: type[AdminCommand] = AdminCommand
) -> Callable[[Callable[..., Any]], AdminCommand]:
    """A decorator instead of click.command: `name` is the last word of the command."""

    def make(function: Callable[..., Any]) -> AdminCommand:
        made = click.command(name, cls=cls, examples=examples, document=document)(function)
        assert isinstance(made, AdminCommand)
        return made

    return make
