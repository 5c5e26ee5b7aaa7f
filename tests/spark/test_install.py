"""Spark looks for data sources with `pkgutil` among top-level modules: which installs it finds them in."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kit.spark_sessions import CONF, spark_environment
from spark.environments import bare_environment, clean_path, install_editable

FOUND = ["pyspark_nsq", "pyspark_nsq_diskqueue"]

LOOK = (
    "import json, pkgutil;"
    "print(json.dumps(sorted(one.name for one in pkgutil.iter_modules() if one.name.startswith('pyspark_nsq'))))"
)

# The last line of its output is the text of the error that load() gives.
LOAD = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]")
for setting in sys.argv[1:]:
    builder = builder.config(*setting.split("=", 1))
spark = builder.getOrCreate()
try:
    spark.read.format("nsq").load()
except Exception as error:
    print(" ".join(str(error).split()))
"""


def seen_by(python: str | Path, environment: dict[str, str] | None = None) -> list[str]:
    """Those of our data sources that Spark's way of looking finds."""
    result = subprocess.run([python, "-P", "-c", LOOK], capture_output=True, text=True, check=True, env=environment)
    names: list[str] = json.loads(result.stdout)
    return names


def load(python: Path, directory: Path) -> str:
    """What `spark.read.format("nsq").load()` says, without any options."""
    program = directory / "load.py"
    program.write_text(LOAD)
    settings = [f"{name}={value}" for name, value in CONF.items()]
    environment = {**spark_environment(python)}
    environment.pop("PYTHONPATH", None)
    result = subprocess.run(
        [python, program, *settings], capture_output=True, text=True, check=False, env=environment, cwd=directory
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1]


def test_an_ordinary_install_is_seen() -> None:
    assert seen_by(sys.executable) == FOUND


@pytest.mark.spark
@pytest.mark.parametrize(
    "config, seen, error",
    [
        (["editable_mode=strict"], FOUND, "is required"),
        ([], [], "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: nsq."),  # imported, but not seen
    ],
)
def test_an_editable_install_has_to_be_strict(tmp_path: Path, config: list[str], seen: list[str], error: str) -> None:
    python = bare_environment(tmp_path / "venv")
    assert seen_by(python, clean_path()) == []
    install_editable(python, tmp_path / "tree", *config)
    subprocess.run([python, "-P", "-c", "import pyspark_nsq.options"], check=True, env=clean_path())
    assert seen_by(python, clean_path()) == seen
    assert error in load(python, tmp_path)
    if not seen:
        assert error in (Path(__file__).parents[2] / "contrib" / "docs" / "spark.md").read_text("utf-8")
