"""`python -m kit.table_formats`: downloads the packages for tests that write tables of Delta Lake or Iceberg.

contrib/docs/spark.md names the packages for the installed version of Spark. Spark's own Ivy downloads them, without
their dependencies: of these Spark has all except one of Delta Lake.
"""

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gnsq_pipeline.running import DELTA_CONF
from kit.spark_sessions import VERSION, NoJava, java_home

GUIDE = Path(__file__).resolve().parents[2] / "contrib" / "docs" / "spark.md"
JARS = Path(sys.prefix, f"spark-{VERSION}-jars")


def packages() -> dict[str, str]:
    """Returns the packages (group:artifact:version) of the installed Spark by format, `delta` or `iceberg`."""
    row = re.search(rf"^\| {re.escape(VERSION.rpartition('.')[0])} \|.*", GUIDE.read_text("utf-8"), re.MULTILINE)
    names: list[str] = re.findall(r"`([\w.]+:[\w.-]+:[\d.]+)`", row[0]) if row else []
    return {"iceberg" if "iceberg" in name else "delta": name for name in names}


def installed() -> str | None:
    """Returns the format whose package is downloaded for the installed Spark: `delta`, `iceberg` or None."""
    names = " ".join(jar.name for jar in JARS.glob("*.jar"))
    return next((name for name in ("delta", "iceberg") if name in names), None)


def conf(warehouse: Path) -> dict[str, str]:
    """Returns the configuration of a session that has the downloaded package: for Iceberg, with the catalog `lake`; for
    Delta Lake, without its catalog, which a test sets, because it breaks SQL tables of sources written in Python."""
    catalog = "spark.sql.catalog.lake"
    jars = {"spark.jars": ",".join(map(str, JARS.glob("*.jar")))}
    match installed():
        case "delta":  # by default, each new version of a table takes 50 tasks
            extensions = {"spark.sql.extensions": DELTA_CONF["spark.sql.extensions"]}
            return jars | extensions | {"spark.databricks.delta.snapshotPartitions": "1"}
        case "iceberg":
            lake = {catalog: "org.apache.iceberg.spark.SparkCatalog", f"{catalog}.type": "hadoop"}
            return jars | lake | {f"{catalog}.warehouse": str(warehouse)}
    return {}


def download() -> None:
    """Downloads one package, Iceberg's if there is one, to JARS; exits with Ivy's output if that is not possible."""
    import pyspark

    known = packages()
    package = known.get("iceberg") or known.get("delta")
    if package is None:
        return
    names = [package.split(":")]
    if (JARS / "{1}-{2}.jar".format(*names[0])).exists():
        return
    if package == known.get("delta"):
        names.append(["io.delta", "delta-storage", names[0][2]])
    line = '<dependency org="{}" name="{}" rev="{}" conf="default->master"/>'
    dependencies = "".join(line.format(*name) for name in names)
    with tempfile.TemporaryDirectory(dir=JARS.parent) as name:
        directory = Path(name)
        (directory / "ivy.xml").write_text(
            '<ivy-module version="2.0"><info organisation="gnsqd" module="tests"/>'
            f"<dependencies>{dependencies}</dependencies></ivy-module>"
        )
        classes = Path(pyspark.__file__).parent / "jars" / "*"
        words = ["-confs", "default", "-cache", "cache", "-ivy", "ivy.xml"]
        words += ["-retrieve", "jars/[artifact]-[revision].[ext]"]
        ended = subprocess.run(
            [str(java_home() / "bin" / "java"), "-cp", str(classes), "org.apache.ivy.Main", *words],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if ended.returncode != 0 or len(list(directory.glob("jars/*.jar"))) != len(names):
            sys.exit(f"{ended.stdout}\ncannot download {package}")
        shutil.rmtree(JARS, ignore_errors=True)  # of another version of the package
        (directory / "jars").rename(JARS)  # whole, even if this program is interrupted


if __name__ == "__main__":
    with contextlib.suppress(NoJava):
        download()
