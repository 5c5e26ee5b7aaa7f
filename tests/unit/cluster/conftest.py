"""Fixtures around the fake nsqlookupd."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from unit.cluster.fake_lookupd import FakeHTTP, FakeLookupd


@pytest.fixture
def lookupd() -> Iterator[Callable[..., FakeLookupd]]:
    """Start a fake nsqlookupd; arguments as its class."""
    started: list[FakeLookupd] = []

    def start(*args: Any) -> FakeLookupd:
        started.append(FakeLookupd(*args))
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.fixture
def http() -> Iterator[Callable[..., FakeHTTP]]:
    """Start a fake HTTP server; arguments as its class."""
    started: list[FakeHTTP] = []

    def start(*args: Any) -> FakeHTTP:
        started.append(FakeHTTP(*args))
        return started[-1]

    yield start
    for each in started:
        each.stop()
