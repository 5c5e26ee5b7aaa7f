"""A cluster of processes of its own (spark://, two workers) reads three gnsqd and writes to one."""

import json
from pathlib import Path

import pytest

from kit.spark_cluster import ClusterProcess, cluster, spark_home
from kit.spark_sessions import CONF, spark_environment
from kit.spark_topics import bodies, daemon_options, sink_options
from kit.traffic import DaemonFactory, publish, take
from spark.environments import bare_environment, zip_recipe

MESSAGES = 3000  # on each nsqd, more than may be in flight to one connection
HERE = Path(__file__).parent


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_cluster_reads_three_gnsqd_and_writes_to_one(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    # Its Python has Spark, and nothing that helps to find gnsqd: what a job needs comes with it, as spark.md says.
    python = bare_environment(tmp_path / "venv")
    environment = spark_environment(python)
    environment.pop("PYTHONPATH", None)
    sources, sink = [gnsqd_factory() for _ in range(3)], gnsqd_factory()
    published = [bodies(MESSAGES, f"{part} ") for part in range(3)]
    for daemon, messages in zip(sources, published, strict=True):
        publish(daemon, "orders", *messages)
    subscription = {"subscribe": "orders", "channel": "copy"}
    arguments = {
        "source": {**daemon_options(*sources), **subscription, "maxMessagesPerTrigger": "4000"},
        "sink": sink_options(sink),
        "path": str(HERE.parent / "golden" / "rolled" / "data"),
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    settings = {**CONF, "spark.driver.memory": "512m", "spark.executor.memory": "512m"}
    with cluster(tmp_path / "cluster", environment) as url:
        driver = environment | zip_recipe(tmp_path)
        submit: list[str | Path]
        submit = [spark_home() / "bin" / "spark-submit", "--master", url, "--py-files", tmp_path / "gnsqd.zip"]
        submit += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        with ClusterProcess(
            [*submit, HERE / "cluster_job.py", json.dumps(arguments)], driver, tmp_path / "driver.log"
        ) as job:
            assert job.wait(300) == 0, job.text()[-20_000:]
            assert int(job.find(r"^executors (\d+)$")[1]) == 2
            assert int(job.find(r"^rows (\d+)$")[1]) == 27
            assert int(job.find(r"^batches (\d+)$")[1]) >= 3
    everything = sorted(body for part in published for body in part)
    for topic in ("copies", "peeked"):
        assert sorted(message.body for message in take(sink, topic, "check", 3 * MESSAGES)) == everything
