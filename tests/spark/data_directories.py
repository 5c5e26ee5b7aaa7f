"""Data directories for tests of `pyspark_nsq_diskqueue`, and what is read from them."""

import os
import struct
from pathlib import Path
from typing import Any

from gnsqd.shared.disk_format import Meta, data_file_name, frame_records, meta_file_name
from pyspark_nsq_diskqueue.planning import plan
from pyspark_nsq_diskqueue.reading import ARROW_SCHEMA, read_task

MAX_MSG_SIZE = 1 << 20
QUEUE = "orders:billing"
RECORD = 36  # bytes in the file of a message that `payload` makes

Rows = list[dict[str, Any]]


def read(*paths: Path | str, corruption: str = "fail", max_msg_size: int = MAX_MSG_SIZE, **options: Any) -> Rows:
    """Returns all rows of all tasks."""
    rows: Rows = []
    for task in plan([os.fspath(path) for path in paths], **options):
        for batch in read_task(task, corruption, max_msg_size):
            assert batch.schema.equals(ARROW_SCHEMA)
            rows += batch.to_pylist()
    return rows


def values(rows: Rows) -> list[bytes | None]:
    return [row["value"] for row in rows]


def payload(number: int, body: bytes = b"", attempts: int = 1) -> bytes:
    head = struct.pack(">qH16s", 1_795_228_294_000_000_000 + number, attempts, b"%016x" % number)
    return head + (body or b"body %d" % number)


def write_file(directory: Path, number: int, *payloads: bytes, queue: str = QUEUE, torn: bytes = b"") -> int:
    """Returns the size of the file."""
    data = frame_records(payloads) + torn
    (directory / data_file_name(queue, number)).write_bytes(data)
    return len(data)


def write_meta(directory: Path, *numbers: int, queue: str = QUEUE) -> None:
    (directory / meta_file_name(queue)).write_bytes(Meta(*numbers).format())
