"""`python -m spark.shared_classes`: the archive of Spark's classes that tests share (Java's class data sharing).

With it, a JVM starts and runs its first queries in half the time. A JVM ignores the archive of another Java or Spark.
"""

import contextlib
import tempfile
from pathlib import Path

from kit.spark_sessions import CLASSES, CONF, QUICK_JAVA, NoJava, start_session

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "rolled" / "data"


def make() -> None:
    """Runs a batch and a stream like those of the tests in a JVM that archives its classes when it ends."""
    made = CLASSES.with_suffix(".part")
    archiving = f"{QUICK_JAVA} -XX:ArchiveClassesAtExit={made} -Xlog:disable"
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        spark = start_session(directory, conf={**CONF, "spark.driver.extraJavaOptions": archiving})
        messages = spark.read.format("nsq_diskqueue").load(str(GOLDEN))
        messages.write.partitionBy("topic").parquet(str(directory / "table"))
        table = spark.readStream.schema(messages.schema).parquet(str(directory / "table"))
        writer = table.writeStream.trigger(availableNow=True).format("parquet")
        writer.start(str(directory / "output"), checkpointLocation=str(directory / "checkpoint")).awaitTermination()
        spark.read.parquet(str(directory / "output")).groupBy("topic").count().orderBy("topic").collect()
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        spark.stop()
        gateway.proc.communicate()  # it ends at the end of its input, and archives the classes
    made.rename(CLASSES)  # whole, even if this program is interrupted


if __name__ == "__main__" and not CLASSES.exists():
    with contextlib.suppress(NoJava):
        make()
