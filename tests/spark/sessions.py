"""Spark for tests: the environment its processes want, and a small local session."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from spark import shared_classes
from spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A JVM that starts fast and is done with little: half the time of a test otherwise goes into compiling Spark.
QUICK_JAVA = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {shared_classes.options()}".rstrip()

# Small and quiet: tests share the machine, and look at rows, not at pages.
CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def spark_environment(python: str | Path = sys.executable) -> dict[str, str]:
    """The environment of a process that starts Spark, whose Python workers are `python`; NoJava when it cannot."""
    return {
        **os.environ,
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "SPARK_LAUNCHER_OPTS": QUICK_JAVA,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def start_session(directory: Path, master: str = "local[2]", conf: Mapping[str, str] = CONF) -> "SparkSession":
    """A session of this process that keeps its files below `directory`."""
    from pyspark.sql import SparkSession

    from gnsq_pipeline.running import DELTA_CONF

    os.environ.update(spark_environment())
    builder = SparkSession.builder.master(master).appName("gnsqd")
    own = {"spark.local.dir": str(directory / "local"), "spark.sql.warehouse.dir": str(directory / "warehouse")}
    if delta := os.environ.get("GNSQD_TEST_DELTA"):  # the package of Delta Lake for this version of Spark
        own |= {"spark.jars.packages": delta, **DELTA_CONF}
    for name, value in {**conf, **own}.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
