"""Neither pandas nor NumPy is needed: not on the driver, nor in Spark's workers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit.daemons import Daemon
from kit.spark_sessions import CONF, spark_environment
from kit.spark_topics import bodies, daemon_options, sink_options
from kit.traffic import publish

pytestmark = pytest.mark.spark


# Every Python that starts with this finds neither, installed or not.
ABSENT = """
from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec
PathFinder.find_spec = lambda name, path=None, target=None: (
    None if name.partition(".")[0] in ("numpy", "pandas") else find_spec(name, path, target)
)
"""


def test_everything_works_without_pandas_and_numpy(gnsqd: Daemon, tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    absent.mkdir()
    (absent / "sitecustomize.py").write_text(ABSENT)
    environment = spark_environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(absent), *filter(None, [environment.get("PYTHONPATH")])])
    publish(gnsqd, "orders", *bodies(300))
    spool = {"subscribe": "orders", "channel": "c", "spoolLocation": str(tmp_path / "spool")}
    arguments = {
        "conf": CONF,
        "source": daemon_options(gnsqd) | spool,
        "sink": sink_options(gnsqd) | {"topic": "copies"},
        "path": str(Path(__file__).parents[1] / "golden" / "rolled" / "data"),
        "directory": str(tmp_path / "checkpoint"),
    }
    job = Path(__file__).parent / "without_pandas_job.py"
    ended = subprocess.run(
        [sys.executable, job, json.dumps(arguments)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["batch", "300", "directory", "27", "stream", "300"]
