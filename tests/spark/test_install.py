"""Spark looks for data sources with `pkgutil` among top-level modules: which installs it finds them in."""

import json
import subprocess
import sys
from pathlib import Path

from spark.environments import bare_environment, clean_path, install_editable

FOUND = ["pyspark_nsq", "pyspark_nsq_diskqueue"]

LOOK = (
    "import json, pkgutil;"
    "print(json.dumps(sorted(one.name for one in pkgutil.iter_modules() if one.name.startswith('pyspark_nsq'))))"
)


def seen_by(python: str | Path, environment: dict[str, str] | None = None) -> list[str]:
    """Returns those of our data sources that Spark's way of looking finds."""
    result = subprocess.run([python, "-P", "-c", LOOK], capture_output=True, text=True, check=True, env=environment)
    names: list[str] = json.loads(result.stdout)
    return names


def test_an_ordinary_install_is_seen() -> None:
    assert seen_by(sys.executable) == FOUND


def test_an_editable_install_that_is_strict_is_seen(tmp_path: Path) -> None:
    python = bare_environment(tmp_path / "venv")
    assert seen_by(python, clean_path()) == []
    install_editable(python, tmp_path / "tree")
    assert seen_by(python, clean_path()) == FOUND
