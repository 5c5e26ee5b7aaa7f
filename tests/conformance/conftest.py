"""The daemon under test stands here under the name it replaces: clients and suites get a symlink `nsqd`."""

import shlex
import sys
from pathlib import Path

import pytest


@pytest.fixture
def daemon_command(daemon_command: list[str], tmp_path: Path) -> list[str]:
    """How to start the daemon under test: a link `nsqd`, alone in its directory."""
    return [str(link_as_nsqd(daemon_command, tmp_path))]


def link_as_nsqd(command: list[str], directory: Path) -> Path:
    """A symlink `nsqd` in a new subdirectory `bin`, to the program that runs `command`."""
    link = directory / "bin" / "nsqd"
    link.parent.mkdir()
    link.symlink_to(program(command, directory))
    return link


def program(command: list[str], directory: Path) -> Path:
    """One file that runs `command`: itself, the installed console script, or a wrapper where nothing is installed."""
    if len(command) == 1:
        return Path(command[0]).absolute()
    if command[0] == sys.executable and (script := Path(sys.executable).with_name("gnsqd")).exists():
        return script
    wrapper = directory / "gnsqd"
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    return wrapper
