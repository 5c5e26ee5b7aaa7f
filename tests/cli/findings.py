"""The findings of `gnsqadmin doctor`, as its tests need them."""

import json
import re
import shlex
from typing import Any

import click

from cli.gnsqadmin import gnsqadmin
from nsqadmin_cli.cli import cli
from nsqadmin_cli.commands.doctor import doctor

SHORT = "--interval=0.2"
DOCUMENTED = re.findall(r"[a-z-]+", doctor.document)
SEVERITIES = ("critical", "warning", "note")

Finding = dict[str, Any]


def examined(*args: str) -> list[Finding]:
    """Returns the findings of a run, whose exit code is 1 if there are any but notes."""
    result = gnsqadmin("doctor", SHORT, "--json", *args)
    assert result.err == ""
    document = json.loads(result.out)
    findings: list[Finding] = document["findings"]
    for finding in findings:
        assert finding["code"] in DOCUMENTED
        for text in commands(finding):
            if text.startswith("gnsqadmin "):
                assert_typable(text)
    severities = [finding["severity"] for finding in findings]
    assert result.code == any(severity != "note" for severity in severities)
    assert document["counts"] == {severity: severities.count(severity) for severity in SEVERITIES}
    return findings


def brief(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding["severity"], finding["code"]) for finding in findings]


def only(findings: list[Finding], code: str) -> Finding:
    [match] = [finding for finding in findings if finding["code"] == code]
    return match


def commands(finding: Finding) -> list[str]:
    return [remedy["command"] for remedy in finding["remedies"] if remedy["command"]]


def assert_typable(text: str) -> None:
    ctx = click.Context(cli)
    command: click.Command | None = cli
    arguments = shlex.split(text)[1:]
    while isinstance(command, click.Group) and arguments:
        command = command.get_command(ctx, arguments.pop(0))
    assert command is not None, text
    _, left, _ = command.make_parser(click.Context(command)).parse_args(arguments)
    assert not left, text
