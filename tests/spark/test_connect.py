"""Spark Connect, where each action on a frame may be analysed again. Needs what `pyspark[connect]` installs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kit.spark_sessions import spark_environment
from kit.spark_topics import bodies, daemon_options
from kit.traffic import DaemonFactory, publish


@pytest.mark.spark
def test_each_action_on_a_frame_has_the_same_rows(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    pytest.importorskip("grpc_status", reason="needs pip install 'pyspark[connect]'")
    pytest.importorskip("pandas", reason="needs pip install 'pyspark[connect]'")
    gnsqd = gnsqd_factory("--durability=process")
    publish(gnsqd, "orders", *bodies(500))
    given = {"subscribe": "orders", "channel": "spark"}
    script = str(Path(__file__).with_name("connect_job.py"))
    job = [sys.executable, script, json.dumps(daemon_options(gnsqd) | given)]
    environment = spark_environment() | {"SPARK_TESTING": "1"}  # the server takes any free port
    result = subprocess.run(
        job, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    rows = [line for line in result.stdout.splitlines() if "rows [" in line]
    assert rows, result.stdout + result.stderr
    assert json.loads(rows[0].partition("rows ")[2]) == [500, 500, 1000, 500]
