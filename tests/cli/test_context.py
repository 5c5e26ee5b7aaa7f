"""Saved contexts, variables and options: which of them counts, and what a bad file gives."""

import json
import os
from pathlib import Path
from typing import NoReturn

import pytest
from click.shell_completion import ShellComplete

from cli.fake_nsqd import FakeLookupd, FakeNsqd, channel, node, topic
from cli.gnsqadmin import Result, gnsqadmin
from cli.nodes import address
from conftest import DaemonFactory
from kit.daemons import free_port
from nsqadmin_cli import completion
from nsqadmin_cli import context as contexts
from nsqadmin_cli.cli import cli
from nsqadmin_cli.context import Context
from nsqadmin_cli.errors import AdminError


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The variables of a user without a file of contexts."""
    return {"GNSQADMIN_CONFIG": "", "XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path / "home")}


def asked(result: Result) -> list[str]:
    """Which nodes were asked, by the document of `nodes`."""
    return [node["address"] for node in json.loads(result.out)["nodes"]]


def nodes(*args: str, **variables: str) -> list[str]:
    return asked(gnsqadmin("nodes", "--json", "--timeout=5", *args, **variables))


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

    def take(context: Context, name: str) -> NoReturn:
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


def test_an_option_keeps_a_command_from_the_nodes_of_variables() -> None:
    with FakeNsqd(node(topic("t", channel("c")))) as nsqd, FakeLookupd() as lookupd:
        variables = {LOOKUPD_VARIABLE: lookupd.address}
        assert gnsqadmin("channel", "empty", "t", "c", "--dry-run", nsqd.flag, **variables).code == 0
        assert (len(nsqd.asked), lookupd.asked) == (1, [])


def test_the_current_context_is_used(home: dict[str, str]) -> None:
    a, b = (f"127.0.0.1:{free_port()}" for _ in range(2))
    for name, at in (("one", a), ("two", b)):
        assert gnsqadmin("context", "set", name, f"--nsqd-http-address={at}", **home).code == 0
    assert nodes(**home) == [a]  # the first that was saved is the current one
    assert gnsqadmin("context", "use", "two", **home).code == 0
    assert nodes(**home) == [b]
    assert gnsqadmin("context", "use", "--none", **home).code == 0
    assert nodes(**home) == ["127.0.0.1:4151"]


def test_an_address_of_one_kind_replaces_those_of_both(nsqd_factory: DaemonFactory, home: dict[str, str]) -> None:
    node = nsqd_factory()
    lookupd = f"127.0.0.1:{free_port()}"
    assert gnsqadmin("context", "set", "x", f"--lookupd-http-address={lookupd}", **home).code == 0
    assert "nsqlookupd" in gnsqadmin("nodes", **home).err
    result = gnsqadmin("nodes", "--json", f"--nsqd-http-address={address(node)}", **home)
    assert (result.code, result.err, asked(result)) == (0, "", [address(node)])


def test_contexts_are_listed_changed_copied_and_removed(home: dict[str, str], tmp_path: Path) -> None:
    def contexts() -> dict[str, object]:
        found = json.loads(gnsqadmin("context", "list", "--json", **home).out)
        assert found["file"] == str(tmp_path / "config" / "gnsqadmin" / "config.toml")
        return {context.pop("name"): context for context in found["contexts"]}

    assert contexts() == {}
    assert gnsqadmin("context", "list", **home).out.startswith("No contexts in ")
    gnsqadmin("context", "set", "prod", "--nsqd-http-address=a:1", "--nsqd-http-address=https://b:2", **home)
    gnsqadmin("context", "set", "prod", "--timeout=1500ms", "--tls-insecure", **home, GNSQADMIN_TLS_CA="ca.pem")
    gnsqadmin("context", "set", "copy", "--context=prod", "--tls-ca=ca.pem", **home)
    prod = {"nsqd_http_address": ["a:1", "https://b:2"], "timeout": 1.5, "tls_insecure": True}
    copy = prod | {"tls_ca": os.path.abspath("ca.pem")}
    assert contexts() == {"copy": {"current": False} | copy, "prod": {"current": True} | prod}
    lines = [line.split() for line in gnsqadmin("context", "list", **home).out.splitlines()]
    options = ["--nsqd-http-address", "a:1", "--nsqd-http-address", "https://b:2", "--timeout", "1.5", "--tls-insecure"]
    assert ["prod", "yes", *options] in lines
    assert gnsqadmin("context", "remove", "prod", **home).code == 0
    assert contexts() == {"copy": {"current": False} | copy}


def test_a_context_that_is_not_there_is_named_with_those_that_are(home: dict[str, str]) -> None:
    gnsqadmin("context", "set", "prod", "--timeout=1", **home)
    for command in (["stats", "--context=x"], ["context", "use", "x"], ["context", "remove", "x"]):
        code, out, err = gnsqadmin(*command, **home)
        assert (code, out, err.count("\n")) == (4, "", 1)
        assert err.startswith("Error: there is no context 'x' in ")
        assert err.endswith("; there: prod\n")


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
    ],
)
def test_a_bad_file_is_one_line_of_error(tmp_path: Path, text: bytes, complaint: str) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(text)
    code, out, err = gnsqadmin("stats", GNSQADMIN_CONFIG=str(file))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"Error: {file}")
    assert complaint in err


def test_a_bad_address_in_a_context_names_the_context(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("current = 'x'\n[contexts.x]\nnsqd_http_address = ['nonsense']\n")
    code, out, err = gnsqadmin("stats", GNSQADMIN_CONFIG=str(file))
    assert (code, out) == (1, "")
    assert err.startswith("Error: context x: 'nonsense': expected host:port")


def test_a_file_that_cannot_be_read_or_written_is_one_line_of_error(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    code, out, err = gnsqadmin("stats", GNSQADMIN_CONFIG=str(tmp_path / "directory"))
    assert (code, out, err) == (1, "", f"Error: cannot read {tmp_path / 'directory'}: is a directory\n")
    (tmp_path / "file").write_text("")
    inside = str(tmp_path / "file" / "config.toml")
    code, out, err = gnsqadmin("context", "set", "x", "--timeout=1", GNSQADMIN_CONFIG=inside)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("Error: cannot ")


@pytest.mark.parametrize("name", ["a b", "", "x" * 65, "é"])
def test_a_bad_name_of_a_context_is_a_usage_error(home: dict[str, str], name: str) -> None:
    assert gnsqadmin("context", "set", name, "--timeout=1", **home).code == 2


def test_texts_of_a_context_come_back_as_they_were(home: dict[str, str]) -> None:
    strange = '/tmp/"quoted" \\ \x7f \t é.pem'
    gnsqadmin("context", "set", "x", f"--tls-ca={strange}", **home)
    [context] = json.loads(gnsqadmin("context", "list", "--json", **home).out)["contexts"]
    assert context["tls_ca"] == strange
