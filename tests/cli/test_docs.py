"""The reference page and the help: every command and option is in both, with examples that can be typed."""

import re
import shlex
from pathlib import Path

import click
import pytest

from cli.gnsqadmin import gnsqadmin
from documentation.writers import load_writer
from nsqadmin_cli.cli import cli
from nsqadmin_cli.command import AdminCommand
from nsqadmin_cli.commands import GROUPS, SECTIONS
from nsqadmin_cli.errors import ExitCode

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "contrib" / "docs" / "gnsqadmin.md"

# These print no data, or nothing but a screen or a script.
WITHOUT_JSON = ("top", "web", "completion", "context set", "context use", "context remove", "topology export")

WRITER = load_writer("write_gnsqadmin")
COMMANDS: dict[str, AdminCommand] = WRITER.all_commands()

each = pytest.mark.parametrize("words", COMMANDS)


def test_the_page_is_what_the_command_line_says() -> None:
    text = PAGE.read_text("utf-8")
    assert text == WRITER.page(text), "run `make options`"


@each
def test_every_command_and_option_has_help_and_a_place_in_the_page(words: str) -> None:
    command = COMMANDS[words]
    assert command.help
    assert command.help.partition("\n\n")[0].rstrip().endswith((".", ":"))
    page = PAGE.read_text("utf-8")
    assert f"### gnsqadmin {words}\n" in page
    for param in command.params:
        if isinstance(param, click.Option):
            assert param.help, f"{param.opts} of {words} has no help"
            assert f"`{param.opts[-1]}`" in page


@each
def test_examples_can_be_typed(words: str) -> None:
    examples = COMMANDS[words].examples.replace("\\\n", " ").splitlines()
    assert examples
    found = 0
    for line in examples:
        typed = shlex.split(line, comments=True)
        if "gnsqadmin" not in typed:
            continue  # one that uses it inside something else
        arguments = typed[typed.index("gnsqadmin") + 1 :]
        for end in ("|", ">", ">>", "&&", "||", ";", "<"):
            if end in arguments:
                arguments = arguments[: arguments.index(end)]
        assert arguments[: len(words.split())] == words.split(), line
        command = COMMANDS[words]
        parser = command.make_parser(click.Context(command))
        _, left, _ = parser.parse_args(arguments[len(words.split()) :])
        assert not left, line
        found += 1
    assert found or "gnsqadmin" in COMMANDS[words].examples


@each
def test_json_is_there_and_its_document_described(words: str) -> None:
    command = COMMANDS[words]
    has_json = any("--json" in param.opts for param in command.params)
    assert has_json == (words not in WITHOUT_JSON)
    assert bool(command.document) == has_json


@each
def test_help_has_sections_and_examples(words: str) -> None:
    ctx = click.Context(COMMANDS[words], info_name=words)
    text = COMMANDS[words].get_help(ctx)
    assert "Examples:" in text
    assert all(f"  {line}" in text for line in COMMANDS[words].examples.splitlines() if line)


def test_summaries_are_the_first_sentences_of_help() -> None:
    entries = [entry for entries in SECTIONS.values() for entry in entries]
    told = {entry.words: " ".join((COMMANDS[entry.words].help or "").partition("\n\n")[0].split()) for entry in entries}
    assert {entry.words: entry.summary for entry in entries} == told


def test_every_help_fits_80_columns_and_nothing_is_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # as from a terminal: click's CliRunner has a width of its own
    wrong = []
    for words in ("", *GROUPS, *COMMANDS):
        assert cli.main([*words.split(), "--help"], "gnsqadmin", standalone_mode=False) == 0
        for line in capsys.readouterr().out.splitlines():
            if len(line) > 80 or re.search(r"…|[a-z.]\.\.\.$", line):
                wrong.append((words, line))
    assert wrong == []


def test_help_that_lists_commands_loads_none(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = click.Context(cli)
    for group in [cli, *(cli.get_command(ctx, name) for name in GROUPS)]:
        monkeypatch.setattr(group, "get_command", lambda ctx, name: pytest.fail(f"{name} was loaded"))
        assert group is not None
        assert "ommands" in group.get_help(click.Context(group))


def test_help_of_all_lists_every_command_and_exit_code() -> None:
    code, out, err = gnsqadmin("--help")
    assert (code, err) == (0, "")
    assert all(f"  {words.split()[0]}" in out for words in COMMANDS)
    page = PAGE.read_text("utf-8")
    for known in set(ExitCode) - {ExitCode.UNKNOWN}:  # which is for check alone
        assert any(line.split()[:1] == [str(known.value)] for line in out.splitlines())
        assert f"\n| {known.value} |" in page
