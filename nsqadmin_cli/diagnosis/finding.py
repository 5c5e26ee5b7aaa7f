"""Findings of rules, and commands that correct them."""

import enum
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from nsqadmin_cli.context import ClusterSettings, merged
from nsqadmin_cli.http_client import Address
from nsqadmin_cli.table import shown, told


class Severity(enum.StrEnum):
    """Severity, the worst first."""

    CRITICAL = "critical"  # messages are lost, or not taken, or a node is not there
    WARNING = "warning"  # it will be critical, or somebody forgot something
    NOTE = "note"  # worth knowing, and perhaps meant to be so


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do; `command`, if there is one, does it or helps."""

    text: str
    command: str = told(null=True, default="")


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. `code` is the stable name of the rule; topic, channel and node are empty if it is not about one."""

    severity: Severity = shown("severity", help="critical, warning or note")
    code: str = shown("code")
    summary: str = shown("summary")
    evidence: tuple[str, ...] = shown("evidence", help="list of texts", default=())
    remedies: tuple[Remedy, ...] = told("list of text, command (null, or a command line)", default=())
    topic: str = shown("topic", null=True, default="")
    channel: str = shown("channel", null=True, default="")
    node: str = shown("node", null=True, help="null if not about one", default="")


class Commands:
    """Formats gnsqadmin commands for the current cluster."""

    def __init__(self, settings: ClusterSettings) -> None:
        # Variables come after a context that an option names, and would as options come before it.
        given = settings.options if settings.by_option else merged(settings.variables, settings.options)
        told = given.settings()
        self._where: list[str] = []
        self._how: list[str] = []
        if settings.context_name:
            self._how.append(f"--context={settings.context_name}")
        for name, value in told.items():
            flag = f"--{name.replace('_', '-')}"
            if isinstance(value, list | tuple):
                self._where += [f"{flag}={text}" for text in value]
            elif value is True:
                self._how.append(flag)
            elif name != "timeout":
                self._how.append(f"{flag}={value}")

    def on_all(self, words: str, *names: str) -> str:
        """`gnsqadmin {words} {names}` on the nodes that were examined."""
        return self._line(words, names, [*self._where, *self._how])

    def on(self, node: Address, words: str, *names: str) -> str:
        """The same on one node."""
        return self._line(words, names, [f"--nsqd-http-address={node}", *self._how])

    def _line(self, words: str, names: Sequence[str], flags: list[str]) -> str:
        if any(name.startswith("-") for name in names):
            return shlex.join(["gnsqadmin", *words.split(), *flags, "--", *names])
        return shlex.join(["gnsqadmin", *words.split(), *names, *flags])


def some_of(names: Sequence[str], longest: int = 3) -> str:
    """Names in a line: the first ones, and how many more there are."""
    more = f" and {len(names) - longest:,} more" if len(names) > longest else ""
    return ", ".join(names[:longest]) + more
