"""Fixtures that start servers for a test: fake nsqlookupds, and HTTP servers that answer with given bytes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from kit.auth_server import AuthServer
from unit.cluster.fake_lookupd import FakeLookupd


@pytest.fixture
def lookupd() -> Iterator[Callable[..., FakeLookupd]]:
    """Starts fake nsqlookupds."""
    with ExitStack() as stack:
        yield lambda *args: stack.enter_context(closing(FakeLookupd(*args)))


@pytest.fixture
def http() -> Iterator[Callable[[bytes], AuthServer]]:
    with ExitStack() as stack:
        yield lambda answer: stack.enter_context(AuthServer(answer))
