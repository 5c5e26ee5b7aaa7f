"""Saved contexts, variables, options, which of them counts, and what a shell completes with them."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from click.shell_completion import ShellComplete

from cli.fake_nsqd import StatsNsqd, node, topic
from cli.gnsqadmin import COMMAND, FakeNode, environment, failure, gnsqadmin, ok
from cli.nodes import DOWN, address
from kit.daemons import DEADLINE, Instance
from kit.traffic import create
from nsqadmin_cli import context as contexts
from nsqadmin_cli.cli import cli
from nsqadmin_cli.context import ClusterContext
from nsqadmin_cli.errors import AdminError

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
    with pytest.raises(AdminError):
        cli.main(["topic", "show", "t", *words.split()], standalone_mode=False)
    shell = ShellComplete(cli, {}, "gnsqadmin", "_GNSQADMIN_COMPLETE")
    assert shell.get_completions(["topic", "show", *words.split()], "t") == []
    [of_command, of_completion] = found
    assert of_command == expected
    assert of_completion == of_command | {"timeout": 1}


def test_contexts_are_listed_changed_copied_and_removed(tmp_path: Path) -> None:
    """Makes the first that is saved the current one."""
    home = {"GNSQADMIN_CONFIG": "", "XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path / "home")}

    def contexts() -> dict[str, object]:
        found = json.loads(ok("context", "list", "--json", **home))
        assert found["file"] == str(tmp_path / "config" / "gnsqadmin" / "config.toml")
        return {context.pop("name"): context for context in found["contexts"]}

    def run(*args: str, **variables: str) -> None:
        assert gnsqadmin("context", *args, **home, **variables).code == 0

    assert contexts() == {}
    assert ok("context", "list", **home).startswith("No contexts in ")
    strange = '/tmp/"quoted" \\ \x7f \t é.pem'
    run("set", "prod", "--nsqd-http-address=a:1", "--nsqd-http-address=https://b:2")
    run("set", "prod", "--timeout=1500ms", "--tls-insecure", GNSQADMIN_TLS_CA="ca.pem")
    run("set", "copy", "--context=prod", "--tls-ca=ca.pem", f"--tls-cert={strange}")
    prod = {"nsqd_http_address": ["a:1", "https://b:2"], "timeout": 1.5, "tls_insecure": True}
    copy = prod | {"tls_ca": os.path.abspath("ca.pem"), "tls_cert": strange}
    assert contexts() == {"copy": {"current": False} | copy, "prod": {"current": True} | prod}
    lines = [line.split() for line in ok("context", "list", **home).splitlines()]
    options = ["--nsqd-http-address", "a:1", "--nsqd-http-address", "https://b:2", "--timeout", "1.5", "--tls-insecure"]
    assert ["prod", "yes", *options] in lines
    for command in (["stats", "--context=x"], ["context", "use", "x"], ["context", "remove", "x"]):
        error = failure(*command, code=4, **home)
        assert (error[:27], error[-19:]) == ("there is no context 'x' in ", "; there: copy, prod")
    run("use", "copy")
    assert contexts() == {"copy": {"current": True} | copy, "prod": {"current": False} | prod}
    run("use", "--none")
    run("remove", "prod")
    assert contexts() == {"copy": {"current": False} | copy}


BAD_FILES = {
    b"x": "is not valid TOML",
    b"\xff": "is not valid TOML",
    b"colour = 1": "unknown key 'colour'",
    b"current = 1": '"current" must be a string',
    b"[contexts]\nx = 1": "context x must be a table",
    b"[contexts.x]\ncolour = 1": "context x: unknown key 'colour'",
    b"[contexts.x]\ntimeout = 'x'": "context x: timeout must be a number of seconds",
    b"[contexts.x]\ntimeout = true": "context x: timeout must be a number of seconds",
    b"[contexts.x]\ntimeout = nan": "context x: timeout must be more than 0 and at most 3600 seconds",
    b"[contexts.x]\nnsqd_http_address = 'a:1'": "context x: nsqd_http_address must be a list of strings",
    b"[contexts.x]\ntls_ca = 1": "context x: tls_ca must be a string",
    b"[contexts.'\\u001b']\nx = 1": "unknown key",
    b"current = 'x'\n[contexts.x]\nnsqd_http_address = ['y']": "context x: 'y': expected host:port",
}


def test_a_bad_file_is_one_line_of_error(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    for text, complaint in BAD_FILES.items():
        file.write_bytes(text)
        error = failure("stats", GNSQADMIN_CONFIG=str(file))
        assert error.startswith((f"{file}", "context x: 'y'"))
        assert complaint in error
    assert failure("stats", GNSQADMIN_CONFIG=str(tmp_path)) == f"cannot read {tmp_path}: is a directory"
    assert failure("stats", GNSQADMIN_CONFIG="/dev/zero") == "cannot read /dev/zero: more than 16777216 bytes"
    inside = str(file / "config.toml")
    assert failure("context", "set", "x", "--timeout=1", GNSQADMIN_CONFIG=inside).startswith("cannot ")


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Completes the last of some words, however long nodes take to answer."""
    monkeypatch.setattr("nsqadmin_cli.command_base._TAB_SECONDS", DEADLINE)
    shell = ShellComplete(cli, {}, "gnsqadmin", "_GNSQADMIN_COMPLETE")
    return lambda *words: [found.value for found in shell.get_completions(list(words[:-1]), words[-1])]


def test_topics_and_channels_are_completed_live(live: Callable[..., list[str]], nsqd: Instance) -> None:
    create(nsqd, "orders", "archive", "billing")
    create(nsqd, "other", "crm", "backup")
    at = f"--nsqd-http-address={address(nsqd)}"
    assert live("topic", "show", at, "o") == ["orders", "other"]
    assert live("stats", at, "--topic", "ord") == ["orders"]
    assert live("channel", "show", "--nsqd-http-address", address(nsqd), "orders", "b") == ["billing"]
    assert live("stats", at, "--topic", "other", "--channel", "c") == ["crm"]
    create(nsqd, "orphans")
    assert live("topic", "show", at, "or") == ["orders", "orphans"]


def test_commands_are_completed_and_trouble_completes_and_prints_nothing() -> None:
    def completed(words: str, place: str = "") -> list[str]:
        """Completes the last of `words`, as the script for bash asks."""
        asking = {"_GNSQADMIN_COMPLETE": "bash_complete", "COMP_CWORD": str(len(words.split()))}
        out = ok(COMP_WORDS=f"gnsqadmin {words}", GNSQADMIN_NSQD_HTTP_ADDRESS=place, **asking)
        return [line.partition(",")[2] for line in out.splitlines() if line]

    assert completed("chan") == ["channel"]
    assert "show" in completed("topic s")
    assert completed("stats --by c") == ["channel", "client"]
    with FakeNode(hangs=True) as hanging:
        for place in (DOWN, "nonsense", hanging.address):
            assert completed("topic show t", place) == []


UNUSABLE = [
    "--nsqd-http-address nonsense",
    "--nsqd-http-adress 127.0.0.1:4151",
    "--unknown --nsqd-http-address=127.0.0.1:4151",
    "--tls-insecure=no",
    "GNSQADMIN_NSQD_HTTP_ADDRESS=nonsense",
    "GNSQADMIN_LOOKUPD_HTTP_ADDRESS=host:99999",
    "GNSQADMIN_TIMEOUT=soon",
    "GNSQADMIN_TLS_INSECURE=perhaps",
    "GNSQADMIN_CONTEXT=none",
    "GNSQADMIN_TOKEN_FILE=/nonexistent/token",
]


def test_with_settings_that_cannot_be_used_nobody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, live: Callable[..., list[str]]
) -> None:
    config = tmp_path / "config.toml"
    monkeypatch.setenv("GNSQADMIN_CONFIG", str(config))
    with StatsNsqd(node(topic("t1"))) as asked:
        config.write_text(f'current = "c"\n[contexts.c]\nnsqd_http_address = ["{asked.address}"]\n')
        assert live("topic", "show", "t") == ["t1"]
        asked.asked.clear()
        for setting in UNUSABLE:
            with monkeypatch.context() as patched:
                if not setting.startswith("--"):
                    patched.setenv(*setting.split("="))
                assert live("topic", "show", *(setting.split() if setting.startswith("--") else []), "t") == []
        assert asked.asked == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_what_the_shell_takes(shell: str) -> None:
    out = ok("completion", shell)
    assert "_GNSQADMIN_COMPLETE" in out
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=out, text=True, timeout=DEADLINE).returncode == 0


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_bash_completes_with_the_script(nsqd: Instance, tmp_path: Path) -> None:
    create(nsqd, "orders", "archive", "billing")
    program = tmp_path / "gnsqadmin"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    script = ok("completion", "bash")
    ask = "COMP_WORDS=(gnsqadmin channel show orders a); COMP_CWORD=4; _gnsqadmin_completion gnsqadmin"
    command = ["bash", "--norc", "-c", f'{script}\n{ask}; echo "${{COMPREPLY[@]}}"']
    env = environment(GNSQADMIN_NSQD_HTTP_ADDRESS=address(nsqd), PATH=f"{tmp_path}:{os.environ['PATH']}")
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=DEADLINE)
    assert (done.stdout, done.stderr) == ("archive\n", "")
