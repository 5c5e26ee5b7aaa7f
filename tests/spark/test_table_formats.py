"""Messages in a table of Delta Lake or Iceberg: of that one which spark.md names for the installed Spark."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from conftest import missing
from gnsq_pipeline.archive import PARTITION_COLUMNS, read_archive, to_archive
from gnsq_pipeline.errors import InputNotFound, UsageError
from gnsq_pipeline.running import DELTA_CONF
from kit.spark_topics import bodies, daemon_options
from kit.table_formats import installed
from kit.traffic import DaemonFactory, create, publish
from spark.command_line import Run, sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CATALOG = "spark.sql.catalog.spark_catalog"


@pytest.fixture
def table_format(spark: "SparkSession") -> Iterator[str]:
    found = installed()
    if found is None:
        missing("needs Delta Lake or Iceberg, which `make test-spark` downloads if there is one for this Spark")
    if found == "delta":
        spark.conf.set(CATALOG, DELTA_CONF[CATALOG])
    yield found
    spark.conf.unset(CATALOG)


def rows(frame: "DataFrame") -> Counter[tuple[str, bytes]]:
    return Counter((row.channel, bytes(row.value)) for row in frame.select("channel", "value").collect())


def fail(frame: "DataFrame", batch: int) -> NoReturn:
    raise RuntimeError("the sink fails")


def test_a_table_has_every_message_once(
    spark: "SparkSession", table_format: str, run: Run, gnsqd_factory: DaemonFactory, tmp_path: Path
) -> None:
    """Writes messages of a batch read, and of an archive that continues after a failure."""
    gnsqd, table = gnsqd_factory("--durability=process"), str(tmp_path / "table")
    if table_format == "iceberg":
        spark.sql("CREATE NAMESPACE lake.logs")
        table = "lake.logs.archive"
    gnsqd = gnsqd_factory("--durability=process")
    create(gnsqd, "orders", "a", "b")
    publish(gnsqd, "orders", *bodies(100))
    source = daemon_options(gnsqd) | {"subscribe": "orders"}

    messages = spark.read.format("nsq").options(**source, channel="a").load()
    archive = to_archive(messages)
    if table_format == "iceberg":
        archive.writeTo(table).using("iceberg").create()
    else:
        archive.write.format("delta").partitionBy(*PARTITION_COLUMNS).save(table)

    checkpoint = str(tmp_path / "checkpoint")
    stream = spark.readStream.format("nsq").options(**source, channel="b").load()
    failing = stream.writeStream.foreachBatch(fail).trigger(availableNow=True)
    with pytest.raises(Exception, match="the sink fails"):
        failing.start(checkpointLocation=checkpoint).awaitTermination()
    publish(gnsqd, "orders", *bodies(10, "later "))
    where = [table, "--format", table_format, "--checkpoint", checkpoint]
    ended = run("archive", "--topic", "orders", "--channel", "b", *sources(gnsqd), *where)
    assert ended.status == 0, ended.stderr
    everything = [("a", bodies(100)), ("b", bodies(100)), ("b", bodies(10, "later "))]
    expected = Counter((channel, body) for channel, values in everything for body in values)
    assert rows(read_archive(spark, table, table_format)) == expected

    with pytest.raises(InputNotFound, match=f"no such {table_format} table"):
        read_archive(spark, f"{table}_missing", table_format)
    if table_format == "delta":
        with pytest.raises(UsageError, match="use --format delta"):
            read_archive(spark, table)
