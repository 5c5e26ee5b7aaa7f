"""Saved contexts, variables and options: which of them counts, and what a bad file gives."""

import json
import os
from pathlib import Path
from typing import NoReturn

import pytest
from click.shell_completion import ShellComplete

from cli.gnsqadmin import failure, gnsqadmin, ok
from cli.nodes import at
from nsqadmin_cli import completion
from nsqadmin_cli import context as contexts
from nsqadmin_cli.cli import cli
from nsqadmin_cli.context import ClusterContext
from nsqadmin_cli.errors import AdminError


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The variables of a user without a file of contexts."""
    return {"GNSQADMIN_CONFIG": "", "XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path / "home")}


def run(*args: str, **variables: str) -> None:
    assert gnsqadmin("context", *args, **variables).code == 0


def nodes(*args: str, **variables: str) -> list[str]:
    """The nodes that were asked."""
    return [node["address"] for node in json.loads(gnsqadmin("nodes", "--json", *args, **variables).out)["nodes"]]


A, B, OF_CURRENT, OF_ONE = "a:1", "b:2", "current:3", "one:4"
CONTEXTS = f"""
current = "current"
[contexts.current]
nsqd_http_address = ["{OF_CURRENT}"]
timeout = 1
[contexts.one]
lookupd_http_address = ["{OF_ONE}"]
timeout = 2
[contexts.bare]
timeout = 3
"""
NSQD, LOOKUPD = "--nsqd-http-address", "--lookupd-http-address"
NSQD_VARIABLE, LOOKUPD_VARIABLE = "GNSQADMIN_NSQD_HTTP_ADDRESS", "GNSQADMIN_LOOKUPD_HTTP_ADDRESS"
NODE, AT_LOOKUPD = "nsqd_http_address", "lookupd_http_address"

PRECEDENCE: list[tuple[str, dict[str, str], dict[str, object]]] = [
    ("", {}, {NODE: [OF_CURRENT], "timeout": 1}),
    ("", {"GNSQADMIN_CONTEXT": "one"}, {AT_LOOKUPD: [OF_ONE], "timeout": 2}),
    ("--context=one", {"GNSQADMIN_CONTEXT": "bare"}, {AT_LOOKUPD: [OF_ONE], "timeout": 2}),
    ("", {NSQD_VARIABLE: A}, {NODE: [A], "timeout": 1}),
    ("", {LOOKUPD_VARIABLE: A}, {AT_LOOKUPD: [A], "timeout": 1}),
    ("", {NSQD_VARIABLE: f"{A} {B}", LOOKUPD_VARIABLE: B}, {NODE: [A, B], AT_LOOKUPD: [B], "timeout": 1}),
    ("", {LOOKUPD_VARIABLE: A, "GNSQADMIN_CONTEXT": "one"}, {AT_LOOKUPD: [A], "timeout": 2}),
    (f"{NSQD}={A}", {LOOKUPD_VARIABLE: B}, {NODE: [A], "timeout": 1}),
    (f"{LOOKUPD}={A}", {NSQD_VARIABLE: B}, {AT_LOOKUPD: [A], "timeout": 1}),
    (f"{NSQD}={A} {LOOKUPD}={B}", {NSQD_VARIABLE: B}, {NODE: [A], AT_LOOKUPD: [B], "timeout": 1}),
    (f"{NSQD}={A} --context=one", {LOOKUPD_VARIABLE: B}, {NODE: [A], "timeout": 2}),
    ("--context=one", {NSQD_VARIABLE: B}, {AT_LOOKUPD: [OF_ONE], "timeout": 2}),
    ("--context=bare", {NSQD_VARIABLE: B}, {NODE: [B], "timeout": 3}),
    ("--context=one", {"GNSQADMIN_TIMEOUT": "9"}, {AT_LOOKUPD: [OF_ONE], "timeout": 2}),
    ("--context=one --timeout=8", {"GNSQADMIN_TIMEOUT": "9"}, {AT_LOOKUPD: [OF_ONE], "timeout": 8}),
    ("", {"GNSQADMIN_TIMEOUT": "9"}, {NODE: [OF_CURRENT], "timeout": 9}),
    ("--timeout=8", {"GNSQADMIN_TIMEOUT": "9"}, {NODE: [OF_CURRENT], "timeout": 8}),
]


@pytest.mark.parametrize(("words", "variables", "expected"), PRECEDENCE)
def test_options_replace_variables_and_variables_replace_contexts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, variables: dict[str, str], expected: dict[str, object]
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONTEXTS)
    for name, value in {"GNSQADMIN_CONFIG": str(config), **variables}.items():
        monkeypatch.setenv(name, value)
    found: list[dict[str, object]] = []

    def take(context: ClusterContext, name: str) -> NoReturn:
        found.append(context.settings())
        raise AdminError(name)

    monkeypatch.setattr(contexts, "make_cluster", take)
    monkeypatch.setattr(completion, "make_cluster", take)
    with pytest.raises(AdminError):
        cli.main(["topic", "show", "t", *words.split()], standalone_mode=False)
    shell = ShellComplete(cli, {}, "gnsqadmin", "_GNSQADMIN_COMPLETE")
    assert shell.get_completions(["topic", "show", *words.split()], "t") == []
    [of_command, of_completion] = found
    assert of_command == expected
    assert of_completion == of_command | {"timeout": 1}


def test_the_current_context_is_used(home: dict[str, str]) -> None:
    a, b = "127.0.0.1:1", "127.0.0.1:2"
    for name, place in (("one", a), ("two", b)):
        run("set", name, *at(place), **home)
    assert nodes(**home) == [a]  # the first that was saved is the current one
    run("use", "two", **home)
    assert nodes(**home) == [b]
    run("use", "--none", **home)
    assert nodes(**home) == ["127.0.0.1:4151"]


def test_contexts_are_listed_changed_copied_and_removed(home: dict[str, str], tmp_path: Path) -> None:
    def contexts() -> dict[str, object]:
        found = json.loads(ok("context", "list", "--json", **home))
        assert found["file"] == str(tmp_path / "config" / "gnsqadmin" / "config.toml")
        return {context.pop("name"): context for context in found["contexts"]}

    assert contexts() == {}
    assert ok("context", "list", **home).startswith("No contexts in ")
    run("set", "prod", "--nsqd-http-address=a:1", "--nsqd-http-address=https://b:2", **home)
    run("set", "prod", "--timeout=1500ms", "--tls-insecure", **home, GNSQADMIN_TLS_CA="ca.pem")
    run("set", "copy", "--context=prod", "--tls-ca=ca.pem", **home)
    prod = {"nsqd_http_address": ["a:1", "https://b:2"], "timeout": 1.5, "tls_insecure": True}
    copy = prod | {"tls_ca": os.path.abspath("ca.pem")}
    assert contexts() == {"copy": {"current": False} | copy, "prod": {"current": True} | prod}
    lines = [line.split() for line in ok("context", "list", **home).splitlines()]
    options = ["--nsqd-http-address", "a:1", "--nsqd-http-address", "https://b:2", "--timeout", "1.5", "--tls-insecure"]
    assert ["prod", "yes", *options] in lines
    run("remove", "prod", **home)
    assert contexts() == {"copy": {"current": False} | copy}


def test_a_missing_context_is_named_with_the_existing_ones(home: dict[str, str]) -> None:
    run("set", "prod", "--timeout=1", **home)
    for command in (["stats", "--context=x"], ["context", "use", "x"], ["context", "remove", "x"]):
        error = failure(*command, code=4, **home)
        assert error.startswith("there is no context 'x' in ")
        assert error.endswith("; there: prod")


@pytest.mark.parametrize(
    "text, complaint",
    [
        (b"x", "is not valid TOML"),
        (b"\xff", "is not valid TOML"),
        (b"colour = 1", "unknown key 'colour'"),
        (b"current = 1", '"current" must be a string'),
        (b"[contexts]\nx = 1", "context x must be a table"),
        (b"[contexts.x]\ncolour = 1", "context x: unknown key 'colour'"),
        (b"[contexts.x]\ntimeout = 'x'", "context x: timeout must be a number of seconds"),
        (b"[contexts.x]\ntimeout = true", "context x: timeout must be a number of seconds"),
        (b"[contexts.x]\ntimeout = nan", "context x: timeout must be more than 0 and at most 3600 seconds"),
        (b"[contexts.x]\nnsqd_http_address = 'a:1'", "context x: nsqd_http_address must be a list of strings"),
        (b"[contexts.x]\ntls_ca = 1", "context x: tls_ca must be a string"),
        (b"[contexts.'\\u001b']\nx = 1", "unknown key"),
        (b"current = 'x'\n[contexts.x]\nnsqd_http_address = ['y']", "context x: 'y': expected host:port"),
    ],
)
def test_a_bad_file_is_one_line_of_error(tmp_path: Path, text: bytes, complaint: str) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(text)
    error = failure("stats", GNSQADMIN_CONFIG=str(file))
    assert error.startswith((f"{file}", "context x: 'y'"))
    assert complaint in error


def test_a_file_that_cannot_be_read_or_written_is_one_line_of_error(tmp_path: Path) -> None:
    assert failure("stats", GNSQADMIN_CONFIG=str(tmp_path)) == f"cannot read {tmp_path}: is a directory"
    assert failure("stats", GNSQADMIN_CONFIG="/dev/zero") == "cannot read /dev/zero: more than 16777216 bytes"
    (tmp_path / "file").write_text("")
    inside = str(tmp_path / "file" / "config.toml")
    assert failure("context", "set", "x", "--timeout=1", GNSQADMIN_CONFIG=inside).startswith("cannot ")


def test_texts_of_a_context_come_back_as_they_were(home: dict[str, str]) -> None:
    strange = '/tmp/"quoted" \\ \x7f \t é.pem'
    run("set", "x", f"--tls-ca={strange}", **home)
    [context] = json.loads(ok("context", "list", "--json", **home))["contexts"]
    assert context["tls_ca"] == strange
