"""Reports of a run: a line on stderr for each batch, and a summary in a file for schedulers."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import click

from gnsq_pipeline.errors import INTERRUPTED, PipelineError
from gnsqd.shared.errors import reason_of
from pyspark_nsq.progress import Progress

_IDLE_LINE = 60.0  # seconds between two lines about batches without rows


class BatchLines:
    """A line on stderr for each batch with rows, and once a minute for batches without."""

    def __init__(self) -> None:
        self._written = time.monotonic()

    def add(self, progress: Progress) -> None:
        if not progress.rows and time.monotonic() - self._written < _IDLE_LINE:
            return
        self._written = time.monotonic()
        lag = "" if progress.lag is None else f"  lag {progress.lag:,}"
        late = f"  late {progress.late_rows:,}" if progress.late_rows else ""
        speed = f"{progress.seconds:.1f} s  {progress.rows_per_second:,.0f} rows/s"
        click.echo(f"{progress.when}  batch {progress.batch}  {progress.rows:,} rows  {speed}{lag}{late}", err=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass
class Summary:
    """The sums of a run, and how it ended; the fields are those of its JSON."""

    pipeline: str
    topics: tuple[str, ...] = ()
    channel: str | None = None
    began: str = field(default_factory=_now)
    ended: str = ""
    finished: bool = False  # the query ended by itself, and without an error
    stopped_by: str | None = None  # the signal, if it stopped an unfinished run
    exit_code: int = 0
    error: str | None = None
    rows: int = 0
    batches: int = 0
    late_rows: int = 0
    seconds: float = 0.0
    lag: int | None = None  # after the last batch; None if unknown

    def add(self, progress: Progress) -> None:
        self.batches += bool(progress.rows)
        self.rows += progress.rows
        self.late_rows += progress.late_rows
        self.seconds += progress.seconds
        self.lag = progress.lag

    def __str__(self) -> str:
        rate = f", {self.rows / self.seconds:,.0f} rows/s" if self.rows and self.seconds else ""
        return f"{self.rows:,} rows in {self.batches:,} batches, {self.seconds:.1f} s{rate}"


@contextmanager
def summarised(path: str | None, summary: Summary) -> Iterator[Summary]:
    """Writes the summary of what the block runs to `path` ("-": standard output; None: nowhere), however it ends.

    A file that is there is removed first, so there is none after a killed run. Raises PipelineError if the summary
    cannot be written.
    """
    if path is not None and path != "-":
        _write(path, "")
        Path(path).unlink()
    try:
        yield summary
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            summary.exit_code = INTERRUPTED
        else:
            summary.exit_code, summary.error = getattr(error, "exit_code", PipelineError.exit_code), str(error)
        raise
    finally:
        if path is not None:
            ended = replace(summary, ended=_now(), seconds=round(summary.seconds, 3))
            _write(path, json.dumps(asdict(ended)) + "\n")


def _write(path: str, text: str) -> None:
    try:
        with click.open_file(path, "w", "utf-8", atomic=True) as file:
            file.write(text)
    except OSError as error:
        raise PipelineError(f"--summary {path}: {reason_of(error)}") from None
