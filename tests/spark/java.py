"""The Java that Spark is to run on: where it is, or why there is none."""

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

# Spark 4 runs on these. Java 25 fails on the launcher's `--add-modules jdk.incubator.vector`.
VERSIONS = (17, 21)


class NoJava(Exception):
    """There is no Java that Spark could run on; str() says what was found instead."""


@functools.cache
def java_home() -> Path:
    """The home of the Java that $JAVA_HOME names, else of the `java` on PATH; NoJava when Spark cannot use it."""
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
