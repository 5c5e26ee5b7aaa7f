"""How a run ended, as one JSON object in a file, for schedulers.

It is written whatever the end was, unless the process was killed: an old file is removed at the start.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from gnsq_pipeline.errors import ExitCode, PipelineError
from gnsq_pipeline.progress import Progress, Totals
from gnsq_pipeline.running import Stop

STDOUT = "-"


class Summary:
    """The sums of a run, which it observes batch by batch; `lag` is what the last batch left, None if unknown."""

    def __init__(self, pipeline: str, topics: tuple[str, ...], channel: str | None) -> None:
        self._about = {"pipeline": pipeline, "topics": list(topics), "channel": channel}
        self._began = time.time()
        self._totals = Totals()
        self._finished = False
        self._stopped_by: str | None = None

    def add(self, progress: Progress) -> None:
        self._totals.add(progress)

    def tick(self) -> None:
        pass

    def ended(self, finished: bool, stop: Stop) -> None:
        """`finished`: everything was read, so a signal came too late to stop anything."""
        self._finished = finished
        self._stopped_by = stop.signal.name if stop.signal and not finished else None

    def to_json(self, exit_code: int, error: str | None) -> dict[str, object]:
        totals = self._totals
        return {
            **self._about,
            "began": _moment(self._began),
            "ended": _moment(time.time()),
            "finished": self._finished,
            "stopped_by": self._stopped_by,
            "exit_code": exit_code,
            "error": error,
            "rows": totals.rows,
            "batches": totals.batches,
            "late_rows": totals.late_rows,
            "seconds": round(totals.seconds, 3),
            "lag": totals.latest.lag if totals.latest else None,
        }


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextmanager
def summarised(path: str | None, pipeline: str, topics: tuple[str, ...], channel: str | None) -> Iterator[Summary]:
    """Write a summary of what the block runs to `path` ("-": standard output; None: nowhere). PipelineError when it
    cannot be written."""
    summary = Summary(pipeline, topics, channel)
    if path not in (None, STDOUT):
        _replace(path, None)
    code, message = int(ExitCode.OK), None
    try:
        yield summary
    except PipelineError as error:
        code, message = int(error.exit_code), str(error)
        raise
    except KeyboardInterrupt:
        code = int(ExitCode.INTERRUPTED)
        raise
    except Exception as error:
        code, message = int(ExitCode.FAILED), str(error)
        raise
    finally:
        text = json.dumps(summary.to_json(code, message)) + "\n"
        if path == STDOUT:
            sys.stdout.write(text)
        elif path is not None:
            _replace(path, text)


def _replace(path: str | None, text: str | None) -> None:
    """Write the whole file at once; without a text, remove it and see that it can be written later."""
    assert path is not None
    temporary = Path(f"{path}.tmp")
    try:
        temporary.write_text(text or "", "utf-8")
        if text is None:
            temporary.unlink()
            Path(path).unlink(missing_ok=True)
        else:
            os.replace(temporary, path)
    except OSError as error:
        raise PipelineError(f"--summary {path}: {error.strerror or error}") from None
