"""SQL: `CREATE TABLE`, `CREATE TEMPORARY VIEW`, `spark.read.table` and `spark.readStream.table`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.daemons import Instance
from kit.spark_sessions import ADMISSION_CONTROL
from kit.spark_topics import bodies, daemon_options
from kit.traffic import DaemonFactory, create, publish, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROLLED = Path(__file__).parents[1] / "golden" / "rolled" / "data"  # 27 messages


@pytest.fixture
def tables(spark: "SparkSession") -> Iterator["SparkSession"]:
    """Lends the session; drops its tables and views afterwards."""
    yield spark
    for table in spark.catalog.listTables():
        kind = "VIEW" if table.isTemporary else "TABLE"
        spark.sql(f"DROP {kind} IF EXISTS {table.name}")


def clause(options: dict[str, str]) -> str:
    return "OPTIONS (" + ", ".join(f"`{name}` '{value}'" for name, value in options.items()) + ")"


def options(nsqd: Instance, **more: str) -> dict[str, str]:
    return daemon_options(nsqd) | {"subscribe": "orders", "channel": "spark"} | more


def values(frame: "DataFrame") -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())


def test_a_query_of_a_table_leaves_the_messages_in_the_queue(tables: "SparkSession", gnsqd: Instance) -> None:
    publish(gnsqd, "orders", *bodies(100))
    tables.sql(
        f"CREATE TABLE queued USING nsq {clause(options(gnsqd))} COMMENT 'orders' TBLPROPERTIES ('team' = 'sales')"
    )
    for _ in range(2):
        assert values(tables.sql("SELECT * FROM queued")) == sorted(bodies(100))
    for reader in (tables.read.option("peek", "false"), tables.read.option("mode", "ranges")):
        with pytest.raises(Exception, match="NO_JOURNAL"):
            reader.table("queued").collect()


def test_a_table_reads_ranges_unless_it_only_looks(tables: "SparkSession", gnsqd_factory: DaemonFactory) -> None:
    """Finds in each query what there is then."""
    nsqd = gnsqd_factory("--durability=process")
    create(nsqd, "orders", "spark")
    publish(nsqd, "orders", *bodies(100))
    cases: list[tuple[dict[str, str], int | None]]
    cases = [({}, None), ({"peek": "false"}, 1), ({"startingOffsets": "earliest"}, 1)]
    for number, (more, _) in enumerate(cases):
        tables.sql(f"CREATE TABLE of_{number} USING nsq {clause(options(nsqd, **more))}")
    for count in (100, 110):
        for number, (_, lowest) in enumerate(cases):
            rows = tables.sql(f"SELECT count(*), min(offset) FROM of_{number}").collect()
            assert [tuple(row) for row in rows] == [(count, lowest)]
            wait_for(nsqd, "orders", "spark", depth=count, in_flight_count=0)
        publish(nsqd, "orders", *bodies(10))


def test_a_stream_reads_a_table(tables: "SparkSession", gnsqd: Instance, tmp_path: Path) -> None:
    publish(gnsqd, "orders", *bodies(100))
    limit = {"maxMessagesPerTrigger": "60"} if ADMISSION_CONTROL else {}
    given = options(gnsqd, peek="true", **limit)
    tables.sql(f"CREATE TABLE queued USING nsq {clause(given)}")
    taken: list[bytes] = []
    writer = tables.readStream.table("queued").writeStream.foreachBatch(lambda frame, _: taken.extend(values(frame)))
    query = writer.trigger(availableNow=True).start(checkpointLocation=str(tmp_path / "checkpoint"))
    query.awaitTermination()
    assert sorted(taken) == sorted(bodies(100))
    assert len([one for one in query.recentProgress if one.numInputRows]) == (2 if limit else 1)


def test_a_temporary_view_is_one_read(tables: "SparkSession", gnsqd_factory: DaemonFactory) -> None:
    nsqd = gnsqd_factory("--durability=process")
    publish(nsqd, "orders", *bodies(100))
    tables.sql(f"CREATE TEMPORARY VIEW logged USING nsq {clause(options(nsqd))}")
    assert tables.sql("SELECT * FROM logged a JOIN logged b USING (message_id)").count() == 100
    publish(nsqd, "orders", *bodies(10, "later "))
    assert values(tables.table("logged")) == sorted(bodies(100))


@pytest.mark.parametrize("where", [f"OPTIONS (path '{ROLLED}')", f"LOCATION '{ROLLED}'"])
def test_a_table_of_a_data_directory_has_its_messages(tables: "SparkSession", where: str) -> None:
    tables.sql(f"CREATE TABLE left_behind USING nsq_diskqueue {where}")
    assert tables.sql("SELECT topic FROM left_behind").count() == 27
    assert tables.read.option("topic", "another").table("left_behind").count() == 0


def test_what_a_table_cannot_do_is_refused_in_one_line(tables: "SparkSession", gnsqd: Instance) -> None:
    tables.sql(f"CREATE TABLE copies (value STRING) USING nsq {clause(options(gnsqd, topic='copies'))}")
    reported = "Of a table, Spark passes OPTIONS to no INSERT"
    for statement, text in (
        ("INSERT INTO copies VALUES ('x')", reported),
        ("SELECT * FROM copies", reported),
        (f"CREATE TABLE queued USING nsq {clause(options(gnsqd, chanel='c'))}", "unknown option 'chanel': did you"),
    ):
        with pytest.raises(Exception) as error:
            tables.sql(statement).collect()
        assert text in str(error.value).splitlines()[0]
    assert not tables.catalog.tableExists("queued")
