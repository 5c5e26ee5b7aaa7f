"""The reference page and the help: every command and option is in both, with examples that can be typed."""

import re
import shlex
from pathlib import Path

import click
import pytest

from cli.findings import assert_typable
from cli.gnsqadmin import ok
from documentation.writers import load_writer
from gnsqd.shared.version import VERSION
from nsqadmin_cli.cli import cli
from nsqadmin_cli.command_base import AdminCommand
from nsqadmin_cli.commands import GROUPS, SECTIONS
from nsqadmin_cli.commands.context import LINES
from nsqadmin_cli.errors import ExitCode

PAGE = Path(__file__).resolve().parents[2] / "contrib" / "docs" / "gnsqadmin.md"

# These print no data, or nothing but a screen or a script.
WITHOUT_JSON = ("top", "web", "completion", "context set", "context use", "context remove", "topology export")

COMMANDS: dict[str, AdminCommand] = load_writer("write_gnsqadmin").all_commands()


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_and_option_has_help_and_examples(words: str) -> None:
    command = COMMANDS[words]
    assert command.help
    assert command.help.partition("\n\n")[0].rstrip().endswith((".", ":"))
    shown = command.get_help(click.Context(command, info_name=words))
    assert all(f"  {line}" in shown for line in command.examples.splitlines() if line)
    for param in command.params:
        if isinstance(param, click.Option):
            assert param.help, f"{param.opts} of {words} has no help"
    has_json = any("--json" in param.opts for param in command.params)
    assert has_json == bool(command.document) == (words not in WITHOUT_JSON)


@pytest.mark.parametrize("words", COMMANDS)
def test_examples_can_be_typed(words: str) -> None:
    examples = COMMANDS[words].examples.replace("\\\n", " ")
    assert "gnsqadmin" in examples
    for line in examples.splitlines():
        typed = shlex.split(line, comments=True)
        if "gnsqadmin" not in typed:
            continue  # one that uses it inside something else
        arguments = typed[typed.index("gnsqadmin") :]
        for end in ("|", ">", ">>", "&&", "||", ";", "<"):
            if end in arguments:
                arguments = arguments[: arguments.index(end)]
        assert shlex.join(arguments).startswith(f"gnsqadmin {words}"), line
        assert_typable(shlex.join(arguments))


def test_summaries_are_the_first_sentences_of_help() -> None:
    for entry in (entry for entries in SECTIONS.values() for entry in entries):
        assert entry.summary == " ".join((COMMANDS[entry.words].help or "").partition("\n\n")[0].split())


def test_every_help_fits_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # as from a terminal: click's CliRunner has a width of its own
    wrong = []
    for words in ("", *GROUPS, *COMMANDS):
        assert cli.main([*words.split(), "--help"], "gnsqadmin", standalone_mode=False) == 0
        out = capsys.readouterr().out
        wrong += [(words, line) for line in out.splitlines() if len(line) > 80 or re.search(r"…|[a-z.]\.\.\.$", line)]
        if words in COMMANDS:  # a docstring keeps the indentation of its source before Python 3.13
            wrong += [(words, gap[0]) for gap in re.finditer(r"\w+ {2,}\w+", out.partition("\nOptions:")[0])]
    assert wrong == []


def test_help_that_lists_commands_loads_none(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = click.Context(cli)
    for group in [cli, *(cli.get_command(ctx, name) for name in GROUPS)]:
        monkeypatch.setattr(group, "get_command", lambda ctx, name: pytest.fail(f"{name} was loaded"))
        assert group is not None
        assert "ommands" in group.get_help(click.Context(group))


def test_help_of_all_lists_every_command_and_exit_code_and_the_cheat_sheet_what_exists() -> None:
    assert ok("--version") == f"gnsqadmin {VERSION}\n"
    assert ok("stats", "-h") == ok("stats", "--help")
    out = ok("cheat")
    assert (len(out.splitlines()), len(LINES)) == (10, 10)
    for line, meaning in LINES:
        assert line in out
        assert meaning in out
        assert_typable(line)
    out, page = ok("-h"), PAGE.read_text("utf-8")
    assert "Exit codes" in out
    assert all(f"  {words.split()[0]}" in out for words in COMMANDS)
    for known in set(ExitCode) - {ExitCode.UNKNOWN}:  # which is for check alone
        assert any(line.split()[:1] == [str(known.value)] for line in out.splitlines())
        assert f"\n| {known.value} |" in page
