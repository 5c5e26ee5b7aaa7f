"""A client's socket: deadlines (NSQD-COMPAT 2.1)."""

import socket
from time import monotonic

import pytest
from gevent import sleep

from gnsqd.wire.connection import Connection


def test_read_deadline_ends_a_wait() -> None:
    ours, theirs = socket.socketpair()
    connection = Connection(ours, "peer")
    connection.read_deadline = monotonic() + 0.05
    with pytest.raises(TimeoutError, match="i/o timeout$"):
        connection.receive()
    connection.close()
    theirs.close()


def test_read_deadline_that_passes_while_nobody_reads_counts_no_more_once_it_is_moved() -> None:
    ours, theirs = socket.socketpair()
    connection = Connection(ours, "peer")
    connection.read_deadline = monotonic() + 0.05
    theirs.send(b"one")
    assert connection.receive() == b"one"
    sleep(0.1)  # a batch that waits for a slow disk
    connection.read_deadline = monotonic() + 30
    theirs.send(b"two")
    assert connection.receive() == b"two"
    connection.close()
    theirs.close()
