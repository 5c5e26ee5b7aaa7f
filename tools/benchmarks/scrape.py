"""`python tools/benchmarks scrape`: how long a scrape of /metrics takes, and how long a publisher beside it waits.

The daemon has 1,000 topics with 3 channels each. It is scraped alone; then a publisher sends one PUB after the other
and times the answers, alone at first, then while another process scrapes all the time. Two of these three processes
work at a time, so this needs two cores that nobody else needs.
"""

import argparse
import http.client
import json
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cli import add_lane_options, find_lanes, positive, say
from benchmarks.clients import expect_ok
from benchmarks.lanes import DIRECTORY_PREFIX, BenchmarkError, Lane
from kit.daemons import Address, Daemon, open_socket

TOPICS = 1000
CHANNELS = 3
BODY_SIZE = 200
PATIENCE = 60.0  # seconds

# What gnsqd promises.
SCRAPE_SECONDS = 0.250  # alone
WAIT_SECONDS = 0.010  # p99 of PUBs during a scrape

FORMATS = {
    "text": "text/plain;version=0.0.4",
    # What Prometheus 3 sends.
    "openmetrics": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
}

HEADINGS = ("daemon", "format", "page", "scrape", "beside a publisher", "PUB alone", "PUB beside scrapes")


@dataclass(frozen=True)
class Span:
    """When something began and ended, by the clock that all processes of a machine share; `size` in bytes."""

    begin: float
    end: float
    size: int = 0

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True)
class Result:
    """`alone` and `beside` are scrapes, `before` and `during` PUBs; of the latter the ones that met a scrape."""

    alone: list[Span]
    beside: list[Span]
    before: list[Span]
    during: list[Span]


def write_topics(data_path: Path, topics: Sequence[str], channels: Sequence[str]) -> None:
    """The nsqd.dat of a daemon that has them."""
    named = [{"name": name, "paused": False} for name in channels]
    rows = [{"name": name, "paused": False, "channels": named} for name in topics]
    data_path.mkdir()
    (data_path / "nsqd.dat").write_text(json.dumps({"version": "1.3.0", "topics": rows}), encoding="utf-8")


def measure(daemon: Daemon, accept: str, scrapes: int) -> Result:
    with ProcessPoolExecutor(1, get_context("fork")) as process:
        alone = process.submit(scrape, daemon.http_address, accept, scrapes).result()
        before = publish(daemon.tcp_address, process.submit(time.sleep, 1.0))
        scraping = process.submit(scrape, daemon.http_address, accept, scrapes)
        published = publish(daemon.tcp_address, scraping)
    beside = scraping.result()
    during = [one for one in published if any(one.begin < other.end and one.end > other.begin for other in beside)]
    return Result(alone, beside, before, during)


def connect(address: Address) -> http.client.HTTPConnection:
    assert not isinstance(address, str), "a unix socket"
    return http.client.HTTPConnection(*address, timeout=PATIENCE)


def scrape(address: Address, accept: str, count: int) -> list[Span]:
    """One scrape after the other, over one connection."""
    connection = connect(address)
    spans = []
    for _ in range(count):
        begin = time.monotonic()
        connection.request("GET", "/metrics", headers={"Accept": accept})
        response = connection.getresponse()
        page = response.read()
        spans.append(Span(begin, time.monotonic(), len(page)))
        assert response.status == 200, page
    connection.close()
    return spans


def publish(address: Address, until: "Future[Any]") -> list[Span]:
    """PUBs, each after the answer to the one before, until something else is done. What nobody takes is dropped."""
    command = b"PUB published#ephemeral\n" + BODY_SIZE.to_bytes(4) + bytes(BODY_SIZE)
    spans = []
    with open_socket(address, PATIENCE) as connection:
        connection.sendall(b"  V2")
        while not until.done():
            begin = time.monotonic()
            connection.sendall(command)
            expect_ok(connection, "PUB")
            spans.append(Span(begin, time.monotonic()))
    return spans


def percentile(percent: float, spans: Sequence[Span]) -> float:
    ordered = sorted(span.seconds for span in spans)
    return ordered[min(int(percent / 100 * len(ordered)), len(ordered) - 1)]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, 1 with a line on stderr when a daemon fails or takes longer than promised, 130 on Ctrl-C."""
    arguments = parser().parse_args(argv)
    late = False
    try:
        lanes = find_lanes(arguments)[1:]  # nsqd has no /metrics
        with tempfile.TemporaryDirectory(prefix=DIRECTORY_PREFIX) as directory:
            stored = Path(directory) / "data"
            channels = [f"channel{number}" for number in range(CHANNELS)]
            write_topics(stored, [f"topic{number}" for number in range(arguments.topics)], channels)
            print_line(HEADINGS)
            for lane in lanes:
                late |= measure_lane(lane, stored, arguments)
    except (AssertionError, BenchmarkError, OSError) as error:  # the first from tests/kit/daemons.py
        say(f"benchmarks: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    if late:
        limits = f"{milliseconds(SCRAPE_SECONDS)} for a scrape or {milliseconds(WAIT_SECONDS)} for a PUB"
        say(f"benchmarks: more than {limits}")
    return int(late)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python tools/benchmarks scrape",
        description="How long a scrape of /metrics takes, and how long PUBs beside it do: p50, p99, longest.",
    )
    result.add_argument(
        "--topics", type=positive, default=TOPICS, metavar="N", help="with 3 channels each (%(default)s)"
    )
    result.add_argument("--scrapes", type=positive, default=20, metavar="N", help="of each kind (%(default)s)")
    result.add_argument("--flags", nargs="*", default=[], metavar="NAME", help="of gnsqd, without the dashes")
    add_lane_options(result)
    return result


def measure_lane(lane: Lane, stored: Path, arguments: argparse.Namespace) -> bool:
    """Print a line for each format; whether something takes longer than promised."""
    late = False
    with lane.running(*(f"--{flag}" for flag in arguments.flags), stored=stored) as daemon:
        for form, accept in FORMATS.items():
            result = measure(daemon, accept, arguments.scrapes)
            scrapes = [median(span.seconds for span in spans) for spans in (result.alone, result.beside)]
            page = f"{result.alone[-1].size:,} B"
            waits = [spread(spans) for spans in (result.before, result.during)]
            print_line((lane.name, form, page, *map(milliseconds, scrapes), *waits))
            late |= scrapes[0] > SCRAPE_SECONDS or percentile(99, result.during) > WAIT_SECONDS
    return late


def spread(spans: Sequence[Span]) -> str:
    return " / ".join(milliseconds(percentile(percent, spans), ".2f") for percent in (50, 99, 100))


def milliseconds(seconds: float, form: str = ".0f") -> str:
    return f"{seconds * 1000:{form}} ms"


def print_line(cells: Sequence[str]) -> None:
    widths = (16, 12, 12, 8, 20, 30, 30)
    print("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip(), flush=True)
