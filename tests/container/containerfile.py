"""A Containerfile taken apart: its stages, and in each the instructions with their arguments.

As far as contrib/container goes: lines that end in a backslash go on, `#` begins a comment line, and an argument that
begins with `[` is the exec form, a JSON list.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = ROOT / "contrib" / "container"


@dataclass
class Stage:
    """`base` as FROM has it, and the (instruction, argument) pairs that follow."""

    base: str
    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [argument for found, argument in self.instructions if found == instruction]

    def last(self, instruction: str) -> str:
        return self.all(instruction)[-1]


def read(path: Path = DIRECTORY / "Containerfile") -> tuple[dict[str, str], list[Stage]]:
    """The arguments before the first stage with their defaults, and the stages."""
    text = re.sub(r"^#.*\n", "", path.read_text("utf-8"), flags=re.MULTILINE)
    text = re.sub(r"\\\n\s*", "", text)
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        instruction, _, argument = line.partition(" ")
        if instruction == "FROM":
            base, _, name = argument.partition(" AS ")
            stages.append(Stage(base, name))
        elif not stages:
            assert instruction == "ARG", line
            key, _, value = argument.partition("=")
            arguments[key] = value
        else:
            stages[-1].instructions.append((instruction, argument.strip()))
    return arguments, stages


def exec_form(argument: str) -> list[str]:
    """The words of a command that no shell takes apart; AssertionError for the shell form."""
    words = json.loads(argument)
    assert isinstance(words, list)
    assert all(isinstance(word, str) for word in words)
    return words


def health_check() -> list[str]:
    """The command of the last stage's HEALTHCHECK."""
    options, _, command = read()[1][-1].last("HEALTHCHECK").partition("CMD ")
    assert "--timeout=" in options
    return exec_form(command)
