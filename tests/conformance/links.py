"""A symlink `nsqd` to a daemon: how gnsqd takes the real one's place, on a user's PATH as in these tests."""

import shlex
import sys
from pathlib import Path


def link_as_nsqd(command: list[str], directory: Path) -> Path:
    """Makes a symlink `nsqd` in a new subdirectory `bin`, to the program that runs `command`."""
    link = directory / "bin" / "nsqd"
    link.parent.mkdir()
    link.symlink_to(program(command, directory))
    return link


def program(command: list[str], directory: Path) -> Path:
    """Returns a file that runs `command`: itself, the installed script, or a wrapper where nothing is installed."""
    if len(command) == 1:
        return Path(command[0]).absolute()
    if command[0] == sys.executable and (script := Path(sys.executable).with_name("gnsqd")).exists():
        return script
    wrapper = directory / "gnsqd"
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    return wrapper
