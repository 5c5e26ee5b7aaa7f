"""What a shell completes: commands, options, and the topics and channels that nodes have at that moment."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from cli.fake_nsqd import node, topic
from cli.gnsqadmin import COMMAND, FakeNode, environment, http_answer, ok
from cli.nodes import DOWN, address
from kit.daemons import DEADLINE, Daemon
from kit.traffic import create
from nsqadmin_cli.cli import cli

Complete = Callable[..., list[str]]


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Complete:
    """What the last of some words may become, however long nodes take to answer."""
    monkeypatch.setattr("nsqadmin_cli.completion._PATIENCE", DEADLINE)

    def completed(*words: str, **variables: str) -> list[str]:
        with pytest.MonkeyPatch.context() as patched:
            for name, value in environment(**variables).items():
                patched.setenv(name, value)
            completing = ShellComplete(cli, {}, "gnsqadmin", "_GNSQADMIN_COMPLETE")
            found = completing.get_completions(list(words[:-1]), words[-1])
        assert capfd.readouterr() == ("", "")
        return [one.value for one in found]

    return completed


def completed(*words: str, **variables: str) -> list[str]:
    """What the last of `words` may become, as the script for bash asks."""
    asking = {"_GNSQADMIN_COMPLETE": "bash_complete", "COMP_CWORD": str(len(words))}
    out = ok(COMP_WORDS=" ".join(["gnsqadmin", *words]), **asking, **variables)
    return [line.partition(",")[2] for line in out.splitlines() if line]


@pytest.fixture
def at(nsqd: Daemon) -> dict[str, str]:
    """The variables that name a node with topics."""
    create(nsqd, "orders", "archive", "billing")
    create(nsqd, "other", "crm", "backup")
    return {"GNSQADMIN_NSQD_HTTP_ADDRESS": address(nsqd)}


def test_topics_and_channels_are_completed_live(live: Complete, nsqd: Daemon, at: dict[str, str]) -> None:
    assert live("topic", "show", "o", **at) == ["orders", "other"]
    assert live("stats", "--topic", "ord", **at) == ["orders"]
    assert live("channel", "show", "orders", "b", **at) == ["billing"]
    assert live("stats", "--topic", "other", "--channel", "c", **at) == ["crm"]
    create(nsqd, "orphans")
    assert live("topic", "show", "or", **at) == ["orders", "orphans"]
    assert live("topic", "show", "--nsqd-http-address", address(nsqd), "orp") == ["orphans"]


def test_commands_are_completed() -> None:
    assert completed("chan") == ["channel"]
    assert "show" in completed("topic", "s")
    assert completed("stats", "--by", "c") == ["channel", "client"]


def test_trouble_completes_nothing_and_prints_nothing() -> None:
    with FakeNode(hangs=True) as hanging:
        for place in (DOWN, "nonsense", hanging.address):
            assert completed("topic", "show", "t", GNSQADMIN_NSQD_HTTP_ADDRESS=place) == []


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["--nsqd-http-address", "nonsense"], {}),
        ([], {"GNSQADMIN_NSQD_HTTP_ADDRESS": "nonsense"}),
        ([], {"GNSQADMIN_LOOKUPD_HTTP_ADDRESS": "host:99999"}),
        ([], {"GNSQADMIN_TIMEOUT": "soon"}),
        ([], {"GNSQADMIN_TLS_INSECURE": "perhaps"}),
        ([], {"GNSQADMIN_CONTEXT": "none"}),
        (["--nsqd-http-adress", "127.0.0.1:4151"], {}),
        (["--unknown", "--nsqd-http-address=127.0.0.1:4151"], {}),
        (["--tls-insecure=no"], {}),
        ([], {"GNSQADMIN_TOKEN_FILE": "/nonexistent/token"}),
    ],
)
def test_with_settings_that_cannot_be_used_nobody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], variables: dict[str, str]
) -> None:
    config = tmp_path / "config.toml"
    monkeypatch.setattr("nsqadmin_cli.completion._PATIENCE", DEADLINE)
    monkeypatch.setenv("GNSQADMIN_CONFIG", str(config))
    completing = ShellComplete(cli, {}, "gnsqadmin", "_GNSQADMIN_COMPLETE")
    with FakeNode(http_answer(json.dumps(node(topic("t1"))).encode())) as asked:
        config.write_text(f'current = "c"\n[contexts.c]\nnsqd_http_address = ["{asked.address}"]\n')
        assert [found.value for found in completing.get_completions(["topic", "show"], "t")] == ["t1"]
        asked.requests.clear()
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert completing.get_completions(["topic", "show", *words], "t") == []
        assert asked.requests == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_what_the_shell_takes(shell: str) -> None:
    out = ok("completion", shell)
    assert "_GNSQADMIN_COMPLETE" in out
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=out, text=True, timeout=DEADLINE).returncode == 0


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_bash_completes_with_the_script(at: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "gnsqadmin"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    script = ok("completion", "bash")
    ask = "COMP_WORDS=(gnsqadmin channel show orders a); COMP_CWORD=4; _gnsqadmin_completion gnsqadmin"
    done = subprocess.run(
        ["bash", "--norc", "-c", f'{script}\n{ask}; echo "${{COMPREPLY[@]}}"'],
        capture_output=True,
        text=True,
        env=environment(**at, PATH=f"{tmp_path}:{os.environ['PATH']}"),
        timeout=DEADLINE,
    )
    assert (done.stdout, done.stderr) == ("archive\n", "")
