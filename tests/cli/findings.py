"""The findings of `gnsqadmin doctor`, as its tests want them."""

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


def examined(*args: str, code: int | None = 1) -> list[dict[str, Any]]:
    """The findings of a run that ends with `code`, or with that which the findings call for."""
    result = gnsqadmin("doctor", SHORT, "--json", *args)
    assert result.err == ""
    document = json.loads(result.out)
    found: list[dict[str, Any]] = document["findings"]
    for finding in found:
        assert finding["code"] in DOCUMENTED
        assert_typable(finding)
    severe = any(finding["severity"] != "note" for finding in found)
    assert result.code == (severe if code is None else code)
    assert document["counts"] == {
        severity: sum(finding["severity"] == severity for finding in found)
        for severity in ("critical", "warning", "note")
    }
    return found


def brief(findings: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(finding["severity"], finding["code"]) for finding in findings]


def only(findings: list[dict[str, Any]], code: str) -> dict[str, Any]:
    [found] = [finding for finding in findings if finding["code"] == code]
    return found


def commands(finding: dict[str, Any]) -> list[str]:
    return [remedy["command"] for remedy in finding["remedies"] if remedy["command"]]


def assert_typable(finding: dict[str, Any]) -> None:
    """Every command of gnsqadmin that a finding names is one, and takes these arguments."""
    for text in commands(finding):
        words = shlex.split(text)
        if words[0] != "gnsqadmin":
            continue
        ctx = click.Context(cli)
        found: click.Command | None = cli
        arguments = words[1:]
        while isinstance(found, click.Group):
            found = found.get_command(ctx, arguments.pop(0))
        assert found is not None, text
        found.make_parser(ctx).parse_args(arguments)
