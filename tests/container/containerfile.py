"""A Containerfile taken apart: its stages, and in each the instructions with their arguments; and the compose files.

As far as contrib/container goes: lines that end in a backslash go on, `#` begins a comment line, and an argument that
begins with `[` is the exec form, a JSON list.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = ROOT / "contrib" / "container"


@dataclass
class BuildStage:
    """The (instruction, argument) pairs after FROM."""

    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [argument for name, argument in self.instructions if name == instruction]

    def last(self, instruction: str) -> str:
        return self.all(instruction)[-1]


def read() -> list[BuildStage]:
    """Returns the stages; arguments before the first one are left out."""
    text = re.sub(r"^#.*\n", "", (DIRECTORY / "Containerfile").read_text("utf-8"), flags=re.MULTILINE)
    text = re.sub(r"\\\n\s*", "", text)
    stages: list[BuildStage] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        instruction, _, argument = line.partition(" ")
        if instruction == "FROM":
            stages.append(BuildStage())
        elif stages:
            stages[-1].instructions.append((instruction, argument.strip()))
    return stages


def exec_form(argument: str) -> list[str]:
    """Returns the words of a command that no shell takes apart; raises AssertionError for the shell form."""
    words = json.loads(argument)
    assert isinstance(words, list)
    assert all(isinstance(word, str) for word in words)
    return words


def health_check() -> list[str]:
    """Returns the command of the last stage's HEALTHCHECK."""
    options, _, command = read()[-1].last("HEALTHCHECK").partition("CMD ")
    assert "--timeout=" in options
    return exec_form(command)


def services(file: str = "compose.yaml") -> dict[str, dict[str, Any]]:
    by_name: dict[str, dict[str, Any]] = yaml.safe_load((DIRECTORY / file).read_text("utf-8"))["services"]
    return by_name
