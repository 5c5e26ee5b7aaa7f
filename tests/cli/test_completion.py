"""What a shell completes: commands, options, and the topics and channels that nodes have at that moment."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from cli.gnsqadmin import COMMAND, FakeNode, environment, gnsqadmin
from cli.nodes import address, create
from daemons import DEADLINE, Daemon, free_port


def completed(*words: str, **variables: str) -> list[str]:
    """What the last of `words` may become, as the script for bash asks."""
    asking = {"_GNSQADMIN_COMPLETE": "bash_complete", "COMP_CWORD": str(len(words))}
    result = gnsqadmin(COMP_WORDS=" ".join(["gnsqadmin", *words]), **asking, **variables)
    assert (result.code, result.err) == (0, "")
    return [line.partition(",")[2] for line in result.out.splitlines() if line]


@pytest.fixture
def at(nsqd: Daemon) -> dict[str, str]:
    """The variables that name a node with topics."""
    create(nsqd, "orders", "archive", "billing")
    create(nsqd, "other", "crm", "backup")
    return {"GNSQADMIN_NSQD_HTTP_ADDRESS": address(nsqd)}


def test_topics_and_channels_are_completed_live(nsqd: Daemon, at: dict[str, str]) -> None:
    assert completed("topic", "show", "o", **at) == ["orders", "other"]
    assert completed("stats", "--topic", "ord", **at) == ["orders"]
    assert completed("channel", "show", "orders", "b", **at) == ["billing"]
    assert completed("stats", "--topic", "other", "--channel", "c", **at) == ["crm"]
    create(nsqd, "orphans")
    assert completed("topic", "show", "or", **at) == ["orders", "orphans"]


def test_nodes_of_the_command_line_are_asked(nsqd: Daemon) -> None:
    create(nsqd, "t1")
    assert completed("topic", "show", "--nsqd-http-address", address(nsqd), "t") == ["t1"]


def test_commands_are_completed() -> None:
    assert completed("chan") == ["channel"]
    assert "show" in completed("topic", "s")
    assert completed("stats", "--by", "c") == ["channel", "client"]


def test_trouble_completes_nothing_and_says_nothing() -> None:
    assert completed("topic", "show", "t", GNSQADMIN_NSQD_HTTP_ADDRESS=f"127.0.0.1:{free_port()}") == []
    assert completed("topic", "show", "t", GNSQADMIN_NSQD_HTTP_ADDRESS="nonsense") == []
    assert completed("topic", "show", "t", GNSQADMIN_CONTEXT="none") == []


def test_a_node_that_hangs_is_not_waited_for() -> None:
    with FakeNode(hangs=True) as hanging:
        assert completed("topic", "show", "t", GNSQADMIN_NSQD_HTTP_ADDRESS=hanging.address) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_what_the_shell_takes(shell: str) -> None:
    code, out, err = gnsqadmin("completion", shell)
    assert (code, err) == (0, "")
    assert "_GNSQADMIN_COMPLETE" in out
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=out, text=True, timeout=DEADLINE).returncode == 0


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_bash_completes_with_the_script(at: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "gnsqadmin"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    script = gnsqadmin("completion", "bash").out
    ask = "COMP_WORDS=(gnsqadmin channel show orders a); COMP_CWORD=4; _gnsqadmin_completion gnsqadmin"
    done = subprocess.run(
        ["bash", "--norc", "-c", f'{script}\n{ask}; echo "${{COMPREPLY[@]}}"'],
        capture_output=True,
        text=True,
        env=environment(**at, PATH=f"{tmp_path}:{os.environ['PATH']}"),
        timeout=DEADLINE,
    )
    assert (done.stdout, done.stderr) == ("archive\n", "")
