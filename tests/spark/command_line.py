"""Command lines of gnsq-pipeline, run in this process or named for one of its own."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gnsq_pipeline.cli import main
from kit.daemons import Instance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Ended:
    """A run of the command line."""

    status: int
    stdout: str
    stderr: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.splitlines()]


Run = Callable[..., Ended]


def runner(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line in this process, with the tests' session, which is as silent as one of its own."""

    def called(*words: str | Path) -> Ended:
        capfd.readouterr()
        monkeypatch.setattr("sys.argv", ["gnsq-pipeline", *map(str, words)])
        spark.sparkContext.setLogLevel("OFF")
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            spark.sparkContext.setLogLevel("ERROR")
        out, err = capfd.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0, out, err)

    return called


def destination(daemon: Instance) -> list[str]:
    return ["--nsqd-tcp-address", "{}:{}".format(*daemon.tcp_address)]


def sources(*daemons: Instance) -> list[str]:
    words = []
    for daemon in daemons:
        words += [*destination(daemon), "--nsqd-http-address", "{}:{}".format(*daemon.http_address)]
    return words
