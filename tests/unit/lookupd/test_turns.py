"""Others have their turn while an nsqd with many registrations is listed, or leaves."""

from collections.abc import Callable

import pytest
from gevent import spawn

from gnsqd.hub.cooperative import Turns, yield_turn
from gnsqd.log import Level, Logger
from gnsqd.lookupd.api import LOOKUPD_ROUTES, LookupdAPI
from gnsqd.lookupd.registration_db import PeerInfo, RegistrationDB
from gnsqd.observe.memory import MemoryStats
from gnsqd.options import LookupdOptions
from gnsqd.web.debug import Debug
from gnsqd.web.http11 import RequestReader
from gnsqd.web.routes import Router

MANY = 50_000
LEAST = 5  # turns for others: in one of half a millisecond no machine handles ten thousand registrations

LOG = Logger("", Level.FATAL)


def turns_during(action: Callable[[], object]) -> int:
    count = 0

    def other() -> None:
        nonlocal count
        while True:
            yield_turn()
            count += 1

    beside = spawn(other)
    yield_turn()
    count = 0
    action()
    beside.kill()
    return count


def registered(kind: str) -> tuple[RegistrationDB, PeerInfo]:
    """Registers an nsqd with many topics, or with many channels of one topic."""
    db, peer = RegistrationDB(0, LOG), PeerInfo("x", broadcast_address="b", http_port=1)
    db.connect(peer)
    for number in range(MANY):
        db.register(peer, *((f"t{number}", "") if kind == "topics" else ("t", f"c{number}")))
    return db, peer


@pytest.mark.parametrize("kind", ["topics", "channels"])
def test_nsqd_disconnects(kind: str) -> None:
    db, peer = registered(kind)
    assert turns_during(lambda: list(Turns().over(db.disconnect(peer)))) >= LEAST
    assert (peer.topics, peer.channels) == ({}, {})


def test_nsqd_unregisters_a_topic_with_its_channels() -> None:
    db, peer = registered("channels")
    assert turns_during(lambda: db.unregister(peer, "t", "")) >= LEAST
    assert (peer.topics, peer.channels) == ({}, {})


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("topics", "GET /nodes"),
        ("topics", "GET /lookup?topic=*"),
        ("topics", "POST /topic/tombstone?topic=*&node=b:1"),
        ("topics", "POST /topic/delete?topic=*"),
        ("channels", "POST /topic/delete?topic=t"),
    ],
)
def test_request_is_answered(kind: str, line: str) -> None:
    (db, _), options = registered(kind), LookupdOptions()
    debug = Debug(dict, MemoryStats(), {})
    router = Router(LookupdAPI(options, db, LOG, debug), options, LOG, LOOKUPD_ROUTES)
    (request,) = RequestReader(lambda request: 0, {}).feed(f"{line} HTTP/1.0\r\n\r\n".encode())
    assert turns_during(lambda: router.respond(request, "asker")) >= LEAST
