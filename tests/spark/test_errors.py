"""A mistake is one line: the first line of the error that Spark raises has our sentence, and there is no traceback."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.daemons import Daemon, free_port
from spark.topics import daemon_options, name, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Options = dict[str, str]


def http(nsqd: Daemon) -> str:
    return "{}:{}".format(*nsqd.http_address)


def read(spark: "SparkSession", options: Options, directory: Path) -> None:
    spark.read.format("nsq").options(**options).load().collect()


def read_stream(spark: "SparkSession", options: Options, directory: Path) -> None:
    frame = spark.readStream.format("nsq").options(**options).load()
    frame.writeStream.format("noop").option("checkpointLocation", str(directory / "c")).start().awaitTermination()


def write(spark: "SparkSession", options: Options, directory: Path) -> None:
    spark.sql("SELECT 'x' AS value").write.format("nsq").options(**options).mode("append").save()


def write_stream(spark: "SparkSession", options: Options, directory: Path) -> None:
    (directory / "lines").mkdir()
    (directory / "lines" / "one.txt").write_text("line")
    frame = spark.readStream.format("text").load(str(directory / "lines"))
    writer = frame.writeStream.format("nsq").options(**options).trigger(availableNow=True)
    writer.option("checkpointLocation", str(directory / "c")).start().awaitTermination()


READS = pytest.mark.parametrize("use", [read, read_stream])
WRITES = pytest.mark.parametrize("use", [write, write_stream])
Use = Callable[["SparkSession", Options, Path], None]
Report = Callable[[Use, Options], str]


@pytest.fixture
def report(spark: "SparkSession", tmp_path: Path) -> Report:
    """The first line of the error of a use with these options; no line of the error is of a traceback."""

    def called(use: Use, options: Options) -> str:
        with pytest.raises(Exception) as error:
            use(spark, options, tmp_path)
        text = str(error.value)
        assert "Traceback" not in text
        assert 'File "' not in text
        first = text.splitlines()[0]
        # Of an error in a task of a batch, Spark puts its own sentence in a line before ours.
        return text.splitlines()[1] if first == "An exception was thrown from the Python worker:" else first

    return called


@pytest.fixture
def reader_options(gnsqd: Daemon, tmp_path: Path) -> Options:
    publish(gnsqd, "orders", [b"x"])
    given = {"subscribe": "orders", "channel": "c", "spoolLocation": str(tmp_path / "spool"), "idleTimeoutMs": "100"}
    return daemon_options(gnsqd) | given


@READS
def test_a_wrong_option(report: Report, use: Use, reader_options: Options) -> None:
    assert "OptionError: unknown option 'chanel': did you mean" in report(use, reader_options | {"chanel": "c"})


@READS
def test_an_option_that_is_missing(report: Report, use: Use, reader_options: Options) -> None:
    del reader_options["spoolLocation"]
    assert "OptionError: option 'spoolLocation' is required" in report(use, reader_options)


def test_an_unknown_topic(report: Report, reader_options: Options) -> None:
    assert "DiscoveryError: no nsqd has the topic 'ordres'" in report(read, reader_options | {"subscribe": "ordres"})


@READS
def test_an_nsqd_that_does_not_answer(report: Report, use: Use, reader_options: Options) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    options = reader_options | {"nsq.nsqd.tcp.addresses": nobody, "nsq.nsqd.http.addresses": nobody}
    assert f"does not answer at HTTP address {nobody}: connection refused" in report(use, options)


@READS
def test_an_http_port_that_is_given_as_tcp(report: Report, use: Use, reader_options: Options, gnsqd: Daemon) -> None:
    options = reader_options | {"nsq.nsqd.tcp.addresses": http(gnsqd)}
    assert f"ConnectionLost: nsqd {http(gnsqd)} answers HTTP: expected its TCP port" in report(use, options)
    assert gnsqd.stats("orders")["topics"][0]["channels"] == []


@READS
def test_a_spool_that_cannot_be_written(report: Report, use: Use, reader_options: Options, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = str(tmp_path / "file" / "spool")
    assert f"SpoolError: cannot make the spool at {place}: Not a directory" in report(
        use, reader_options | {"spoolLocation": place}
    )


@WRITES
def test_a_writer_without_an_nsqd(report: Report, use: Use) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    options = {"nsq.nsqd.tcp.addresses": nobody, "topic": "t", "retryTimeoutMs": "0"}
    assert f"cannot connect to nsqd {nobody}: connection refused" in report(use, options)


@WRITES
def test_a_writer_with_an_http_port(report: Report, use: Use, gnsqd: Daemon) -> None:
    options = {"nsq.nsqd.tcp.addresses": http(gnsqd), "topic": "t", "retryTimeoutMs": "0"}
    assert f"nsqd {http(gnsqd)} answers HTTP: expected its TCP port" in report(use, options)


def test_a_row_that_nsq_does_not_take(report: Report, spark: "SparkSession", gnsqd: Daemon) -> None:
    def write_null(spark: "SparkSession", options: Options, directory: Path) -> None:
        spark.sql("SELECT CAST(NULL AS STRING) AS value").write.format("nsq").options(**options).mode("append").save()

    options = {"nsq.nsqd.tcp.addresses": name(gnsqd), "topic": "t"}
    assert "WriteError: the column value is NULL in a row" in report(write_null, options)


def test_a_data_directory_that_is_not_there(report: Report) -> None:
    def load(spark: "SparkSession", options: Options, directory: Path) -> None:
        spark.read.format("nsq_diskqueue").load(str(directory / "missing")).collect()

    assert "DataDirectoryError: " in report(load, {})


def test_damage_in_a_task(report: Report) -> None:
    damaged = Path(__file__).parents[1] / "golden" / "corrupt_size" / "data"

    def load(spark: "SparkSession", options: Options, directory: Path) -> None:
        spark.read.format("nsq_diskqueue").load(str(damaged)).collect()

    assert "CorruptionError: " in report(load, {})


def test_a_continuous_trigger_is_refused_plainly(spark: "SparkSession", reader_options: Options) -> None:
    writer = spark.readStream.format("nsq").options(**reader_options).load().writeStream.format("console")
    with pytest.raises(Exception, match="Data source nsq does not support continuous processing"):
        writer.trigger(continuous="1 second").start()


def test_real_time_mode_is_refused_plainly(spark: "SparkSession", reader_options: Options, tmp_path: Path) -> None:
    writer = spark.readStream.format("nsq").options(**reader_options).load().writeStream.format("console")
    writer = writer.outputMode("update").option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(Exception, match="is not supported in Real-time Mode"):
        writer.trigger(realTime="5 seconds").start().awaitTermination()  # type: ignore[call-overload]
