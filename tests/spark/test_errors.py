"""A mistake is one line: the first line of the error that Spark raises has our sentence, and there is no traceback.

Which mistakes there are, and their texts, is judged without a JVM in unit/test_options.py and others."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.daemons import Instance, free_port
from kit.spark_topics import daemon_options, name
from kit.traffic import publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DAMAGED = Path(__file__).parents[1] / "golden" / "corrupt_size" / "data"
Options = dict[str, str]
Use = Callable[["SparkSession", Options, Path], None]


def read(spark: "SparkSession", options: Options, directory: Path) -> None:
    spark.read.format("nsq").options(**options).load().collect()


def read_stream(spark: "SparkSession", options: Options, directory: Path) -> None:
    frame = spark.readStream.format("nsq").options(**options).load()
    frame.writeStream.format("noop").option("checkpointLocation", str(directory / "c")).start().awaitTermination()


def write(spark: "SparkSession", options: Options, directory: Path) -> None:
    spark.sql("SELECT 'x' AS value").write.format("nsq").options(**options).mode("append").save()


def write_null(spark: "SparkSession", options: Options, directory: Path) -> None:
    spark.sql("SELECT CAST(NULL AS STRING) AS value").write.format("nsq").options(**options).mode("append").save()


def write_stream(spark: "SparkSession", options: Options, directory: Path) -> None:
    (directory / "lines").mkdir()
    (directory / "lines" / "one.txt").write_text("line")
    frame = spark.readStream.format("text").load(str(directory / "lines"))
    writer = frame.writeStream.format("nsq").options(**options).trigger(availableNow=True)
    writer.option("checkpointLocation", str(directory / "c")).start().awaitTermination()


def read_directory(spark: "SparkSession", options: Options, directory: Path) -> None:
    spark.read.format("nsq_diskqueue").options(**options).load().collect()


def read_column(spark: "SparkSession", options: Options, directory: Path) -> None:
    spark.read.format("nsq_diskqueue").schema("body BINARY").options(**options).load().collect()


HTTP = {"nsq.nsqd.tcp.addresses": "{http}"}
NOBODY = {"nsq.nsqd.tcp.addresses": "{nobody}"}
READS, WRITES = (read, read_stream), (write, write_stream)

# For each way from where an error is raised to the user: options besides the right ones, of which an empty one is left
# out, and what is in the first line.
MISTAKES: list[tuple[tuple[Use, ...], Options, str]] = [
    (READS, {"chanel": "c"}, "OptionError: unknown option 'chanel': did you mean"),
    (READS, {"channel": ""}, "OptionError: option 'channel' is required"),
    ((read,), {"peek": ""}, "; 'peek' = 'true' looks at queued messages, and format('nsq_diskqueue') reads data dir"),
    ((read,), {"subscribe": "ordres"}, "DiscoveryError: no nsqd has the topic 'ordres': asked {tcp}"),
    (READS, HTTP, "ConnectionLost: nsqd {http} answers HTTP: expected its TCP port"),
    (WRITES, {"topic": ""}, "WriteError: no topic: give the option 'topic'"),
    ((write,), NOBODY, "WriteError: no nsqd can be reached: cannot connect to nsqd {nobody}: connection refused"),
    ((write_stream,), NOBODY, "no nsqd takes 1 messages for topic t: cannot connect to nsqd {nobody}: connection"),
    ((write_null,), {}, "WriteError: the column value is NULL in a row"),
    ((read_directory,), {"path": ""}, "OptionError: option 'path' is required"),
    ((read_directory,), {"path": "{file}/missing"}, "DataDirectoryError: "),
    ((read_directory,), {}, "CorruptionError: "),
    ((read_column,), {}, "there is no column body binary"),
]
CASES = [(use, *mistake) for uses, *mistake in MISTAKES for use in uses]


@pytest.mark.parametrize("use, options, expected", CASES, ids=lambda value: getattr(value, "__name__", None))
def test_a_mistake_is_one_line(
    spark: "SparkSession", gnsqd: Instance, tmp_path: Path, use: Use, options: Options, expected: str
) -> None:
    if use in READS:
        publish(gnsqd, "orders", b"x")
        right = (
            daemon_options(gnsqd) | {"subscribe": "orders", "channel": "c"} | ({"peek": "true"} if use is read else {})
        )
    elif use in (*WRITES, write_null):
        right = {"nsq.nsqd.tcp.addresses": name(gnsqd), "topic": "t", "retryTimeoutMs": "0"}
    else:
        right = {"path": str(DAMAGED)}
    (tmp_path / "file").write_text("")
    http, nobody = "{}:{}".format(*gnsqd.http_address), f"127.0.0.1:{free_port()}"
    places = {"http": http, "tcp": name(gnsqd), "nobody": nobody, "file": str(tmp_path / "file")}
    given = {option: value.format(**places) for option, value in (right | options).items() if value}
    with pytest.raises(Exception) as error:
        use(spark, given, tmp_path)
    text = str(error.value)
    assert "Traceback" not in text
    assert 'File "' not in text
    first, *others = text.splitlines()
    # Of an error in a task of a batch, Spark puts its own sentence in a line before ours.
    if first == "An exception was thrown from the Python worker:":
        first = others[0]
    assert expected.format(**places) in first
    if options is HTTP and use in READS:
        assert gnsqd.stats("orders")["topics"][0]["channels"] == []
