"""Each block of code in spark.md runs to an action, in the order of the page, against a daemon."""

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from documentation.markdown import DOCS, tokens
from kit.daemons import Instance, free_port, own_command
from kit.spark_sessions import spark_environment
from kit.spark_topics import bodies
from kit.traffic import publish
from spark.environments import zip_recipe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = DOCS / "spark.md"
BLOCKS = [
    (token.info.strip(), token.content)
    for token in tokens(PAGE)
    if token.type == "fence" and token.info.strip() in ("python", "sql")
]
OF_CONNECT = [text for _, text in BLOCKS if ".remote(" in text or "addArtifacts" in text]
# Each action on a frame may be analysed again.
ACTIONS_OF_CONNECT = """
reader = spark.read.format("nsq").option("nsq.nsqd.tcp.addresses", "127.0.0.1:4150")
reader = reader.option("subscribe", "greetings").option("channel", "spark")
frame = reader.load()
peeked = reader.load(peek="true")
print(frame.count(), frame.count(), frame.union(frame).count(), peeked.count(), "rows")
"""
HELLO = "[68 65 6C 6C 6F]"  # as `show` prints a body


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Instance]:
    """Lends a gnsqd with --durability, whose HTTP port is its TCP port + 1, as by default."""
    while (http := free_port()) != (tcp := free_port()) + 1:
        if tcp == http + 1:
            tcp, http = http, tcp
            break
    flags = [f"--tcp-address=127.0.0.1:{tcp}", f"--http-address=127.0.0.1:{http}", "--durability=process"]
    with Instance(own_command(), tmp_path / "mnt" / "a" / "nsqd", *flags) as running:
        yield running


@pytest.fixture
def places(daemon: Instance, tmp_path: Path) -> dict[str, str]:
    """Returns what stands in the page, and what stands for it here."""
    return {
        "127.0.0.1:4150": "{}:{}".format(*daemon.tcp_address),
        "/var/lib/nsqd": str(daemon.data_path),
        "/mnt/": f"{tmp_path}/mnt/",
        "/tmp/": f"{tmp_path}/",
        "9464": str(free_port()),
        "query.awaitTermination()": "query.processAllAvailable()",
        "sc://spark.example.com": "local[2]",
    }


def here(text: str, places: dict[str, str]) -> str:
    return re.sub("|".join(map(re.escape, places)), lambda found: places[found[0]], text)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_each_block_runs_to_an_action(
    daemon: Instance, places: dict[str, str], spark: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    publish(daemon, "orders.new", b"order")
    names: dict[str, Any] = {}
    streams = []  # by the rows that each has read
    printed = []
    try:
        for language, text in BLOCKS:
            if text in OF_CONNECT:
                continue
            publish(daemon, "greetings", b"hello")
            if language == "sql":
                for statement in filter(str.strip, here(text, places).split(";")):
                    spark.sql(statement).show()
            else:
                exec(compile(here(text, places), PAGE.name, "exec"), names)
            for query in spark.streams.active:
                query.processAllAvailable()
                streams.append(sum(progress.numInputRows for progress in query.recentProgress))
                query.stop()
            printed += [table for table in capsys.readouterr().out.split("\n\n") if re.search("[a-z]", table)]
        assert len(streams) == 4
        assert all(streams), streams
        assert [("hello" in table or HELLO in table) for table in printed[:4]] == [True] * 4, printed
        assert re.search(r"\|\w+\|spark\|[1-9]\d*\|", printed[4].replace(" ", "")), printed[4]
        assert len(printed) == 5
        with urllib.request.urlopen(f"http://127.0.0.1:{places['9464']}/metrics") as answer:
            assert b"gnsq_pipeline_lag_messages" in answer.read()
    finally:
        spark.sql("DROP TABLE IF EXISTS queued")
        spark.catalog.dropTempView("left_behind")


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_each_block_of_connect_runs_to_an_action(daemon: Instance, places: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("grpc_status", reason="needs pip install 'pyspark[connect]'")
    pytest.importorskip("pandas", reason="needs pip install 'pyspark[connect]'")
    publish(daemon, "greetings", *bodies(500))
    zip_recipe(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(here("\n".join([*OF_CONNECT, ACTIONS_OF_CONNECT]), places))
    environment = spark_environment() | {"SPARK_TESTING": "1"}  # the server takes any free port
    result = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert len(OF_CONNECT) == 2
    assert "500 500 1000 500 rows\n" in result.stdout, result.stdout + result.stderr
