"""The rows of a partition in a task, as Spark asks for them and breaks off."""

import os
import select
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_nsq.errors import plain_errors

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition


def read_rows(
    partition: "InputPartition | None", read: Callable[[Any], Iterator[pa.RecordBatch]] = lambda task: task.read()
) -> Generator[pa.RecordBatch, None, None]:
    """Yields the rows that `read` makes of `partition.value`; nothing for what Spark makes of no partitions, 4.1 None.

    Spark drops the iterator before its end when it has enough rows (show, limit).
    """
    if partition is None or partition.value is None:
        return
    try:
        with plain_errors():
            yield from read(partition.value)
    except GeneratorExit:
        mute_broken_sockets()
        raise


def mute_broken_sockets() -> None:
    """Lets writes to sockets of this process whose other end is closed go nowhere.

    When Spark has rows enough it closes its connection to the Python worker, and the worker, which ends then, would
    print a traceback (BrokenPipeError) for the rows that it still holds.
    """
    sink = os.open(os.devnull, os.O_RDWR)
    with suppress(OSError):  # a system without /dev/fd: the traceback stays
        for descriptor in map(int, os.listdir("/dev/fd")):
            with suppress(OSError):
                poll = select.poll()
                poll.register(descriptor, 0)  # only what cannot be left out: POLLERR, POLLHUP
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode) and poll.poll(0):
                    os.dup2(sink, descriptor)
    os.close(sink)
