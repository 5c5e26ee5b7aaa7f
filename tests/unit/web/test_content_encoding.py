"""Compressed bodies that wait for others, which no client can see for sure."""

import gzip
from random import Random
from typing import Any

import gevent
import pytest

from gnsqd.web import content_encoding
from gnsqd.web.content_encoding import SMALL, decode
from gnsqd.web.http11 import Request

NOISE = Random(1).randbytes(SMALL.input)  # large when it is compressed


def request(*members: bytes) -> Request:
    made = Request()
    made.headers = {b"content-encoding": b"gzip"}
    made.body = b"".join(map(gzip.compress, members))
    made.limit = 1_000_000
    return made


@pytest.mark.parametrize(
    ("members", "waits"),
    [
        ([NOISE[:-1000]], False),
        ([NOISE], True),
        ([bytes(SMALL.output)], False),
        ([bytes(2 * SMALL.output)], True),
        ([b"x"] * SMALL.members, False),
        ([b"x"] * (SMALL.members + 1), True),
    ],
)
def test_only_large_bodies_wait_for_each_other(members: list[bytes], waits: bool) -> None:
    given = request(*members)
    with content_encoding._DECODING:
        decoding: Any = gevent.spawn(decode, given, ["gzip"])
        decoding.join(0.5 if waits else None)
        assert decoding.ready() is not waits
    decoding.get()
    assert given.body == b"".join(members)
