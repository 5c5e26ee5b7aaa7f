"""Spark for tests: the Java that it runs on, the environment its processes want, and a small local session."""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark 4 runs on these. Java 25 fails on the launcher's `--add-modules jdk.incubator.vector`.
VERSIONS = (17, 21)

VERSION = version("pyspark")


class NoJava(Exception):
    """There is no Java that Spark could run on; str() is what was found instead."""


@functools.cache
def java_home() -> Path:
    """Returns the home of the Java of $JAVA_HOME, else of `java` on PATH. Raises NoJava if Spark cannot use it."""
    if home := os.environ.get("JAVA_HOME"):
        java = Path(home) / "bin" / "java"
    elif found := shutil.which("java"):
        java = Path(found).resolve()
    else:
        raise NoJava("needs Java 17 or 21: there is no java on PATH, and JAVA_HOME is not set")
    try:
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except OSError as error:
        raise NoJava(f"needs Java 17 or 21: {java}: {error.strerror}") from None
    version = re.search(r'version "(\d+)', printed)
    if version is None or int(version[1]) not in VERSIONS:
        raise NoJava(f"needs Java 17 or 21, and {java} is {printed.splitlines()[0] if printed else 'silent'}")
    return java.parents[1]


# Spark 4.1 has none: no limit of a batch, and `availableNow` is one batch.
ADMISSION_CONTROL = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None

# What `python -m spark.shared_classes` makes. A JVM ignores the archive of another Java or Spark.
CLASSES = Path(sys.prefix, f"spark-{VERSION}.jsa")
_SHARE = f" -XX:SharedArchiveFile={CLASSES} -Xlog:disable" if CLASSES.exists() else ""

# A JVM that starts fast and is done with little: half the time of a test otherwise goes into compiling Spark.
QUICK_JAVA = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC{_SHARE}"

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
    """Returns the environment of a process that starts Spark, with workers of `python`. Raises NoJava if it cannot."""
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
    """Starts a session in this process that keeps its files below `directory`."""
    from pyspark.sql import SparkSession

    os.environ.update(spark_environment())
    builder = SparkSession.builder.master(master).appName("gnsqd")
    own = {"spark.local.dir": str(directory / "local"), "spark.sql.warehouse.dir": str(directory / "warehouse")}
    for name, value in {**conf, **own}.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
