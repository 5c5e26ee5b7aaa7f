"""Logs in an object store while the store fails, the machine goes, or two daemons go on with one of them: nothing that
was acknowledged is lost, and whoever lost the log stops."""

import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from gnsqd.shared.log_store import Claim, LogStore
from kit import object_store as kit
from kit.account import Account, drain
from kit.daemons import Instance, NotStarted, eventually, own_command
from kit.exposition import labels, series
from kit.nsq_client import NSQClient
from kit.object_store import FailingProxy, Fault, ObjectStore
from kit.observers import resident_bytes
from kit.traffic import create, finish, post, publish, take
from nsqadmin_cli.datadir.restoring import restore_log

pytestmark = [pytest.mark.peer, pytest.mark.one_lane]

Machine = Callable[..., Instance]

BODIES = [b"%04d" % number + b"." * 96 for number in range(100)]
STORED = "--durability=store"
LEFT = "has gone on with this log, and what it wrote is not in"


@pytest.fixture
def machine(failing_proxy: FailingProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Makes daemons, each with a data path of its own, and with the log store behind the proxy."""
    for name, value in failing_proxy.environment.items():
        monkeypatch.setenv(name, value)
    with ExitStack() as stack:

        def make(name: str, *flags: str) -> Instance:
            daemon = Instance(own_command(), tmp_path / name, f"--log-store={failing_proxy.url}", *flags)
            stack.callback(daemon.close)
            return daemon

        yield make


def figures(daemon: Instance) -> dict[str, float]:
    found = series(daemon.http("GET", "/metrics")[2])
    return {name: found[f"gnsqd_log_store_{name}", labels()] for name in ("lag_seconds", "lag_bytes")}


def wait_until_stored(daemon: Instance) -> None:
    eventually(lambda: not any(figures(daemon).values()), "the store has all")


def ping(daemon: Instance) -> int:
    return daemon.http("GET", "/ping")[0]


# What is written while the store is away


@pytest.mark.parametrize("begins_again", [True, False], ids=["a topic that is made again", "a daemon that starts"])
def test_what_was_written_while_the_store_was_away_is_sent(
    begins_again: bool, machine: Machine, failing_proxy: FailingProxy
) -> None:
    first = machine("first", "--durability=disk").start()
    create(first, "t", "c")
    publish(first, "t", *BODIES[:10])
    wait_until_stored(first)
    failing_proxy.refuse()
    if begins_again:
        post(first, "/topic/delete?topic=t")
        create(first, "t", "c")
    publish(first, "t", *BODIES[10:50])
    first.kill()
    if begins_again:
        failing_proxy.listen()
    first.start()
    assert ping(first) == 200
    if not begins_again:
        failing_proxy.listen()
    wait_until_stored(first)
    first.kill()
    second = machine("second", "--durability=disk").start()
    assert drain(second, "t") == BODIES[10 if begins_again else 0 : 50]


def test_late_upload_of_a_deleted_topic_does_not_touch_the_one_that_follows(
    machine: Machine, failing_proxy: FailingProxy
) -> None:
    first = machine("first", STORED, "--max-bytes-per-file=1000").start()
    create(first, "t", "c")
    failing_proxy.misbehave(kit.ANSWER_HELD, "PUT", "segments/")
    publish(first, "t", *BODIES[:10])
    publish(first, "t", *BODIES[10:20])
    wait_for_upload(failing_proxy, "t")
    post(first, "/topic/delete?topic=t")
    create(first, "t", "c")
    publish(first, "t", *BODIES[30:40])
    failing_proxy.behave()
    for _ in range(2):
        publish(first, "other", *BODIES[:10])
    wait_for_upload(failing_proxy, "other")  # after the one before is done
    publish(first, "other", *BODIES[:1])
    first.kill()
    assert drain(machine("second", STORED).start(), "t") == BODIES[30:40]


def wait_for_upload(proxy: FailingProxy, topic: str) -> None:
    eventually(lambda: any(key.startswith(f"segments/{topic}.") for _, key in proxy.requests), "an upload")


# A store that fails


def restart(store: ObjectStore) -> None:
    store.kill()
    store.start()


def test_nothing_acknowledged_is_lost_whatever_the_store_does(
    machine: Machine, failing_proxy: FailingProxy, object_store: ObjectStore
) -> None:
    first = machine("first", STORED).start()
    create(first, "t", "c")
    account = Account(first, "t")
    misbehave = failing_proxy.misbehave
    for begin in (
        *(partial(misbehave, fault, "PUT", "wal/", 2) for fault in (kit.INTERNAL_ERROR, kit.SLOW_DOWN, kit.RESET)),
        partial(misbehave, kit.INTERNAL_ERROR, "PUT", "wal/", 5),  # more than the library repeats
        # The server has the object, and what follows is refused, as there is one.
        *(partial(misbehave, fault, "PUT", "wal/", 1) for fault in (kit.ANSWER_LOST, Fault("500 InternalError"))),
        partial(misbehave, kit.ANSWER_LOST, "PUT", "wal/", 5),
        # Another request was under way: nobody knows of which object.
        partial(misbehave, Fault("409 ConditionalRequestConflict", reaches_server=False), "PUT", "wal/", 1),
        partial(misbehave, Fault("409 ConditionalRequestConflict", reaches_server=False), "", "wal/", 2),
        partial(misbehave, Fault(seconds=0.5), times=3),
        partial(restart, object_store),
    ):
        begin()
        assert account.publish("MPUB", 10, 10)
        failing_proxy.behave()
    with ThreadPoolExecutor() as pool:
        object_store.pause()
        answer = pool.submit(account.publish, "PUB", 10)
        eventually(lambda: figures(first)["lag_bytes"] > 0, "something is on its way")
        assert not answer.done()
        object_store.resume()
        assert answer.result()
    first.kill()
    second = account.daemon = machine("second", STORED)
    misbehave(kit.ANSWER_TORN, "LIST", times=1)
    with pytest.raises(NotStarted, match=r"its log may be needed"):
        second.start()
    misbehave(kit.ANSWER_TORN, "GET", "wal/", 2)
    misbehave(Fault("500 InternalError"), "PUT", "wal/", 1)  # takes over, and then it looks as if somebody had
    second.start()
    account.settle()


def test_publishers_wait_for_a_store_that_is_away_and_then_get_an_error(
    machine: Machine, failing_proxy: FailingProxy
) -> None:
    first = machine("first", STORED, "--log-store-timeout=1s").start()
    create(first, "t", "c")
    account = Account(first, "t")
    account.publish("MPUB", *[10] * 20)
    with NSQClient(first.tcp_address) as consumer:
        consumer.subscribe("t", "c", rdy=1)
        finish(consumer, 5)
        failing_proxy.refuse()
        assert not account.publish("PUB", 10)
        assert account.error.startswith("the log store has not confirmed it: s3://bucket: put wal/")
        assert ping(first) == 500
        came = {message.body for message in finish(consumer, 5)}
        assert came < set(account.acknowledged)
        assert not account.publish("MPUB", 10, 10)
        failing_proxy.listen()
        eventually(lambda: ping(first) == 200, "all is well")
    assert account.publish("PUB", 10)
    first.kill()
    # What was finished while the store was away may come again, and what was refused may come.
    second = machine("second", STORED).start()
    delivered = drain(second, "t")
    assert set(account.acknowledged) - came <= {*delivered, *account.acknowledged[:5]}
    assert set(account.acknowledged[:5]) & {*delivered} == set()


def test_memory_stays_bounded_while_the_store_is_away(machine: Machine, failing_proxy: FailingProxy) -> None:
    first = machine("first", "--durability=process").start()
    batch = [bytes(1000)] * 1000
    publish(first, "t", *batch)
    wait_until_stored(first)
    before = resident_bytes(first, "VmHWM")
    failing_proxy.refuse()
    for _ in range(100):
        publish(first, "t", *batch)
    assert figures(first)["lag_bytes"] > 100_000_000
    assert resident_bytes(first, "VmHWM") < before + 40_000_000
    failing_proxy.listen()
    wait_until_stored(first)
    assert resident_bytes(first, "VmHWM") < before + 80_000_000


# Two daemons


def test_data_path_of_an_earlier_time_does_not_go_on_with_the_log(machine: Machine, tmp_path: Path) -> None:
    first = machine("first", STORED).start()
    create(first, "t", "c")
    publish(first, "t", *BODIES[:10])
    first.send_signal(signal.SIGSTOP)
    shutil.copytree(first.data_path, tmp_path / "backup")
    first.send_signal(signal.SIGCONT)
    publish(first, "t", *BODIES[10:20])
    first.kill()
    first.data_path = tmp_path / "backup"
    with pytest.raises(NotStarted, match=LEFT):
        first.start()
    assert drain(machine("second", STORED).start(), "t") == BODIES[:20]


def test_who_is_second_with_the_next_object_does_not_start(
    machine: Machine, failing_proxy: FailingProxy, object_store: ObjectStore
) -> None:
    first, second = machine("first", STORED), machine("second", STORED)
    failing_proxy.misbehave(kit.ANSWER_HELD, "HEAD", "wal/", 1)
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(second.start)
        eventually(lambda: ("HEAD", "wal/0000000000000001") in failing_proxy.requests, "the log is read")
        first.start()
        publish(first, "t", *BODIES[:10])
        failing_proxy.behave()
        with pytest.raises(NotStarted, match=r"exited with 1:(.|\n)* has taken over this log"):
            starting.result()
    publish(first, "t", *BODIES[10:20])
    assert drain(first, "t") == BODIES[:20]
    assert "STORE: " in first.log()
    assert "ERROR" not in first.log()


def test_who_was_second_with_a_copy_of_the_log_does_not_start_later(
    machine: Machine, failing_proxy: FailingProxy
) -> None:
    first, second = machine("first", STORED).start(), machine("second", STORED)
    publish(first, "t", *BODIES[:10])
    restore_log(LogStore(failing_proxy.url), str(second.data_path))
    failing_proxy.misbehave(kit.ANSWER_HELD, "HEAD", "wal/", 1)
    count = len(failing_proxy.requests)
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(second.start)
        eventually(lambda: "HEAD" in dict(failing_proxy.requests[count:]), "the log is read")
        publish(first, "t", *BODIES[10:20])
        failing_proxy.behave()
        with pytest.raises(NotStarted, match=r"exited with 1:(.|\n)* has taken over this log"):
            starting.result()
    with pytest.raises(NotStarted, match=LEFT):
        second.start()


def test_daemon_waits_for_the_store_to_go_on_with_an_interrupted_restore(
    machine: Machine, failing_proxy: FailingProxy
) -> None:
    first = machine("first", "--durability=disk").start()
    create(first, "t", "c")
    wait_until_stored(first)
    first.kill()
    (first.data_path / "nsqd.dat").unlink()
    claim = Claim.load(str(first.data_path))
    claim.restoring = True
    claim.save(str(first.data_path))
    failing_proxy.refuse()
    with pytest.raises(NotStarted, match="its log may be needed"):
        first.start()
    failing_proxy.listen()
    publish(first.start(), "t", *BODIES[:10])
    assert drain(first, "t") == BODIES[:10]


@pytest.mark.parametrize("is_idle", [False, True], ids=["publishes", "idle"])
def test_daemon_that_was_thought_dead_stops(
    is_idle: bool, machine: Machine, failing_proxy: FailingProxy, object_store: ObjectStore
) -> None:
    first = machine("first", STORED, "--max-bytes-per-file=2000").start()
    create(first, "t", "c")
    publish(first, "t", *BODIES[:10])
    with NSQClient(first.tcp_address) as consumer, NSQClient(first.tcp_address) as publisher:
        consumer.subscribe("t", "c", rdy=5)
        held = {consumer.message().body for _ in range(5)}
        first.send_signal(signal.SIGSTOP)
        second = machine("second", STORED, "--max-bytes-per-file=2000").start()
        assert "the data path is empty" in second.log()
        publish(second, "t", *BODIES[10:20])
        objects = object_store.keys()
        first.send_signal(signal.SIGCONT)
        if not is_idle:
            publisher.command(b"PUB t", b"too late")
            assert publisher.error().startswith(b"E_PUB_FAILED PUB failed --log-store=s3://bucket: ")
        assert first.wait() == 1
        assert consumer.recv_until_closed().count(b"too late") == 0
    assert "has taken over this log; what it does not have is in" in first.log()
    assert set(objects) <= {*object_store.keys()}
    with pytest.raises(NotStarted, match=LEFT):
        first.start()
    assert {message.body for message in take(second, "t", "c", 20)} == {*BODIES[:20]} > held
    second.restart()  # goes on with what is its own
    publish(second, "t", *BODIES[20:30])
    assert drain(second, "t") == BODIES[20:30]
