"""The object store and its failing proxy, as other tests rely on them: one put creates an object, and outages end."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError
from obstore.store import S3Store

from kit import object_store as kit
from kit.daemons import eventually
from kit.object_store import FailingProxy, Fault, ObjectStore

pytestmark = [pytest.mark.peer, pytest.mark.one_lane]

Change = Callable[[ObjectStore, FailingProxy], None]


def put(client: S3Store, body: bytes) -> None:
    obstore.put(client, "wal/1", body, mode="create")


@pytest.mark.parametrize(
    "fault, retries, error",
    [
        (Fault(), 0, None),
        (kit.INTERNAL_ERROR, 1, None),
        (kit.SLOW_DOWN, 1, None),
        (kit.INTERNAL_ERROR, 0, GenericError),
        (kit.RESET, 0, GenericError),
        (kit.ANSWER_LOST, 0, GenericError),
        (kit.ANSWER_TORN, 0, GenericError),
        # The client repeats the put after this answer, and the store refuses it because of the first.
        (Fault("500 InternalError"), 1, AlreadyExistsError),
    ],
)
def test_only_one_put_creates_the_object(
    fault: Fault, retries: int, error: type[BaseError] | None, failing_proxy: FailingProxy, object_store: ObjectStore
) -> None:
    is_stored = fault.reaches_server or retries > 0
    failing_proxy.misbehave(fault, "PUT", "wal/", times=1)
    with pytest.raises(error) if error else nullcontext():
        put(failing_proxy.connect(retries), b"first")
    assert failing_proxy.requests == [("PUT", "wal/1")] * (1 + retries)
    assert object_store.keys() == ["wal/1"] * is_stored
    with pytest.raises(AlreadyExistsError) if is_stored else nullcontext():
        put(object_store.connect(), b"second")
    assert (object_store.objects / "wal/1").read_bytes() == (b"first" if is_stored else b"second")


def test_list_that_is_cut_off_is_an_error(failing_proxy: FailingProxy, object_store: ObjectStore) -> None:
    client = failing_proxy.connect()
    failing_proxy.misbehave(kit.ANSWER_TORN, "LIST", "wal/")
    for key in ("wal/1", "wal/2", "other"):
        obstore.put(client, key, b"")
    assert len(obstore.list(client).collect()) == 3
    with pytest.raises(GenericError):
        obstore.list(client, "wal/").collect()
    failing_proxy.behave()
    listed = [entry["path"] for entry in obstore.list(client, "wal/").collect()]
    assert listed == ["wal/1", "wal/2"]
    obstore.delete(client, listed)
    assert object_store.keys() == ["other"]
    assert failing_proxy.requests[-3:] == [("LIST", "wal/"), ("LIST", "wal/"), ("DELETE", "")]


@pytest.mark.parametrize(
    "begin, end, is_answered",
    [
        (lambda store, proxy: proxy.misbehave(kit.ANSWER_HELD), lambda store, proxy: proxy.behave(), True),
        (lambda store, proxy: store.pause(), lambda store, proxy: store.resume(), True),
        (lambda store, proxy: store.kill(), lambda store, proxy: store.start(), False),
        (lambda store, proxy: proxy.refuse(), lambda store, proxy: proxy.listen(), False),
    ],
    ids=["answers are held", "server is stopped", "server is killed", "connections are refused"],
)
def test_outage_ends(
    begin: Change, end: Change, is_answered: bool, failing_proxy: FailingProxy, object_store: ObjectStore
) -> None:
    client = failing_proxy.connect()
    obstore.list(client).collect()  # on a connection that stays open
    begin(object_store, failing_proxy)
    with ThreadPoolExecutor() as executor:
        answer = executor.submit(put, client, b"")
        try:
            if is_answered:
                eventually(lambda: len(failing_proxy.requests) == 2, "a request")
                assert not answer.done()
            else:
                assert isinstance(answer.exception(), GenericError)
        finally:
            end(object_store, failing_proxy)
    with pytest.raises(AlreadyExistsError) if is_answered else nullcontext():
        put(client, b"")
    assert object_store.keys() == ["wal/1"]
