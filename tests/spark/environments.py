"""Virtual environments that share this one's libraries but have no gnsqd, and ways to bring it into them."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gnsqd", "nsqadmin_cli", "pyspark_nsq", "pyspark_nsq_diskqueue", "gnsq_pipeline")
LIBRARIES = ("_distutils_hack", "py4j", "pyarrow", "pyspark", "setuptools")


def _parent(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{package} is not installed"
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]).parent


def clean_path() -> dict[str, str]:
    """Returns the environment without what lets children import a source tree."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def bare_environment(directory: Path) -> Path:
    """Makes a virtual environment with Spark, linked from here, and without gnsqd; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    python = directory / "bin" / "python"
    shown = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    for library in LIBRARIES:
        parent = _parent(library)
        for found in (parent / library, *parent.glob(f"{library}-*")):
            Path(shown.stdout.strip(), found.name).symlink_to(found)
    return python


def install_editable(python: Path, directory: Path) -> None:
    """Runs a strict `pip install --editable` of a copy of the source tree, at `directory` without extension modules."""
    directory.mkdir()
    for name in ("README.md", "LICENSE", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, directory)
    for package in PACKAGES:
        top = "contrib" if (ROOT / "contrib" / package).exists() else "."
        no_cache = shutil.ignore_patterns("__pycache__", "*.so", "*.c")
        shutil.copytree(ROOT / top / package, directory / top / package, ignore=no_cache)
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--config-settings=editable_mode=strict"]
    result = subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", *options, "--editable", directory],
        capture_output=True,
        text=True,
        check=False,
        env=clean_path() | {"CC": "/bin/false"},
    )
    assert result.returncode == 0, result.stdout + result.stderr


def zip_recipe(directory: Path) -> dict[str, str]:
    """Runs the commands of spark.md that make a zip of what jobs import, `gnsqd.zip` in `directory`; returns the
    variables that they set for the job."""
    text = (ROOT / "contrib" / "docs" / "spark.md").read_text("utf-8")
    block = re.search(r"^    cd .*\n(?:    .*\n)+", text, re.MULTILINE)
    assert block is not None
    commands = textwrap.dedent(block[0]).replace("/tmp/", f"{directory}/").replace("python ", f"{sys.executable} ")
    making, variables, _ = re.split(r"^(.*?) spark-submit ", commands, flags=re.MULTILINE)
    subprocess.run(making, shell=True, check=True, env=clean_path())
    assert (directory / "gnsqd.zip").stat().st_size < 1 << 20
    return dict(variable.split("=", 1) for variable in variables.split())
