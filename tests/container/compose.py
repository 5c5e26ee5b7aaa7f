"""The compose files, read, and the files that they bring into their containers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from container.containerfile import DIRECTORY


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def services(file: str = "compose.yaml") -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = load(DIRECTORY / file)["services"]
    return found


def command_of(service: str) -> list[str]:
    """Its command, a list of words."""
    words: list[str] = services()[service]["command"]
    return words


def mounts(service: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(source, place in the container) of each volume; a source with a slash is a path from the file's directory."""
    for volume in service.get("volumes", []):
        source, target = volume.split(":")[:2]
        yield source, target


def file_in(service: str, place: str) -> Path:
    """The file of ours that the service finds there."""
    (source,) = (source for source, target in mounts(services()[service]) if target == place)
    return (DIRECTORY / source).resolve()
