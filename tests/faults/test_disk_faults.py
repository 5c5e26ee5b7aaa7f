"""Every file operation of gnsqd fails once, at each step of what the disk queues and nsqd.dat need."""

import contextlib
import json
import re
import signal
from collections.abc import Callable

import pytest

from faults.test_every_byte import BODIES, SIZE, record
from kit.account import Account, drain, next_body
from kit.daemons import Instance, NotStarted, eventually
from kit.faulty_gnsqd import Faults, Rule
from kit.http_api import ask, message
from kit.nsq_client import NSQClient
from kit.traffic import DaemonFactory, create


@pytest.fixture
def daemon_command(faults: Faults) -> list[str]:
    return faults.command


def errors(nsqd: Instance) -> list[str]:
    """Returns the ERROR lines so far, except those about depths of stale meta files. In them, `$D` is the data path
    and `$F` a file that is to become nsqd.dat."""
    return [shorten(nsqd, line) for line in re.findall(r"ERROR: (?!DISKQUEUE.* negative depth)(.*)", nsqd.log())]


def shorten(nsqd: Instance, line: str) -> str:
    return re.sub(r"\$D/nsqd\.dat\.\d+\.tmp", "$F", line.replace(str(nsqd.data_path), "$D"))


def left_over(nsqd: Instance) -> list[str]:
    """Returns the files that nobody will read, after a clean exit."""
    if nsqd.running:
        assert nsqd.terminate() == 0
    return sorted(path.name for path in nsqd.data_path.iterdir() if path.suffix in (".bad", ".tmp"))


# Writing

DATA, FIRST, SECOND, META = ".diskqueue.0*.dat", ".diskqueue.000000.dat", ".diskqueue.000001.dat", ".*.meta.dat.*.tmp"

# What fails, by the name of the topic that it fails for: what of the file name follows, and what of the rule.
REFUSING: dict[str, list[tuple[str, Rule]]] = {
    "open": [(FIRST, {"call": "create", "error": "EIO"})],
    "write": [(DATA, {"call": "pwrite", "error": "EIO"})],
    "quota": [(DATA, {"call": "pwrite", "error": "EDQUOT", "after": 700})],
    "torn": [(DATA, {"call": "pwrite", "error": "ENOSPC", "after": 250})],
    "torn-for-good": [
        (DATA, {"call": "pwrite", "error": "ENOSPC", "after": 250}),
        (DATA, {"call": "ftruncate", "error": "EIO"}),
    ],
    "roll": [(SECOND, {"call": "create", "error": "EMFILE"})],
}
HARMLESS: dict[str, list[tuple[str, Rule]]] = {
    "meta-open": [(META, {"call": "create", "error": "EACCES"})],
    "meta-write": [(META, {"call": "write", "error": "ENOSPC"})],
    "meta-torn": [(META, {"call": "write", "error": "ENOSPC", "after": 3})],
    "meta-fsync": [(META, {"call": "fsync", "error": "EIO"})],
    "meta-rename": [(META, {"call": "rename", "error": "EIO"})],
    "fsync": [(DATA, {"call": "fsync", "error": "EIO"})],
    "fsync-open": [(DATA, {"call": "open", "error": "EMFILE"})],
}


def go_on(nsqd: Instance) -> None:
    pass


def restart(nsqd: Instance) -> None:
    assert nsqd.terminate() == 1  # nothing was in memory, but some queues can't be synced
    assert re.search(r"NSQ: \d queues could not be synced to disk and may lose messages or repeat them", nsqd.log())


@pytest.mark.parametrize("then", [go_on, restart, Instance.kill])
def test_step_of_writing_fails(nsqd_factory: DaemonFactory, faults: Faults, then: Callable[[Instance], None]) -> None:
    """Lets all steps fail at a time, each for a topic of its own, some of whose messages were written before."""
    nsqd = nsqd_factory("--mem-queue-size=0", "--max-bytes-per-file=1000", "--sync-every=4", "--sync-timeout=100ms")
    steps = REFUSING | HARMLESS
    accounts = {topic: Account(nsqd, topic) for topic in steps}

    def publish(sizes: list[int]) -> None:
        for account in accounts.values():
            account.publish("PUB", *sizes)
            account.publish("MPUB", *sizes)
            account.publish("/mpub", *sizes)

    for topic, account in accounts.items():
        assert topic == "open" or account.publish("PUB", 100)
    rules = [Rule(name=topic + end, **rule) for topic, failing in steps.items() for end, rule in failing]
    faults.set(*rules)
    publish([10, 200, 90, 300])
    for topic, account in accounts.items():
        assert bool(account.refused) == (topic in REFUSING), topic
    # Each step did fail; the steps of syncing fail after a while.
    expected = {(rule["call"], topic) for topic, failing in steps.items() for _, rule in failing}
    eventually(lambda: {(hit.split()[0], re.split("[ .]", hit)[1]) for hit in faults.hits()} == expected)
    then(nsqd)
    faults.set()
    if not nsqd.running:
        for account in accounts.values():
            account.disconnect()
        nsqd.start()
    publish([10, 200, 90, 300])
    for account in accounts.values():
        account.settle()
    # Where the end of a file could not be corrected before the daemon ended, it is set aside.
    torn = [] if then is go_on else ["torn-for-good"]
    assert [name.split(".")[0] for name in left_over(nsqd)] == torn
    if then is not go_on:
        assert len(errors(nsqd)) == len(torn)
    for topic in steps:
        assert (nsqd.data_path / f"{topic}.diskqueue.meta.dat").read_text().startswith("0\n")


# Reading


def roll_files(account: Account) -> None:
    """Fills three files of two messages each, and one more, of queue `t` with 1000 bytes a file."""
    for _ in range(7):
        assert account.publish("PUB", 400)


@pytest.mark.parametrize("renamed", [True, False])
def test_unreadable_file_is_set_aside_or_skipped(nsqd_factory: DaemonFactory, faults: Faults, renamed: bool) -> None:
    nsqd = nsqd_factory("--mem-queue-size=0", "--max-bytes-per-file=1000")
    account = Account(nsqd, "t")
    roll_files(account)
    name = "t.diskqueue.000001.dat"
    content = (nsqd.data_path / name).read_bytes()
    rules: list[Rule] = [{"call": "pread", "name": name, "error": "EIO"}]
    if not renamed:
        rules.append({"call": "rename", "name": name, "error": "EROFS"})
    faults.set(*rules)
    assert drain(nsqd, "t") == account.acknowledged[:2] + account.acknowledged[4:]
    failure = f"DISKQUEUE(t) failed to rename bad diskqueue file $D/{name} to $D/{name}.bad"
    assert errors(nsqd) == [
        f"DISKQUEUE(t) reading at 0 of $D/{name} - read $D/{name}: input/output error",
        *([] if renamed else [failure]),
        "DISKQUEUE(t) positive depth at tail (2), data loss, resetting 0...",
    ]
    faults.set()
    nsqd.restart()
    assert drain(nsqd, "t") == []
    assert left_over(nsqd) == [f"{name}.bad"] * renamed
    if renamed:
        assert (nsqd.data_path / f"{name}.bad").read_bytes() == content


def test_file_that_was_read_is_never_set_aside(nsqd_factory: DaemonFactory) -> None:
    # The real nsqd does so when the reader had caught up with the writer (NSQD-COMPAT 0.1 item 4).
    nsqd = nsqd_factory("--max-bytes-per-file=100", "--mem-queue-size=0")
    with NSQClient(nsqd.tcp_address) as publisher, NSQClient(nsqd.tcp_address) as consumer:
        assert consumer.identify(output_buffer_size=-1).data == b"OK"
        consumer.subscribe("t", "c", rdy=1)
        for number in range(20):
            publisher.publish("t", b"%d" % number)
            assert next_body(consumer) == b"%d" % number
    assert not re.findall("WARNING|ERROR", nsqd.log())
    assert nsqd.terminate() == 0
    files = sorted(path.name for path in nsqd.data_path.glob("*.diskqueue.0*"))
    assert files == ["t.diskqueue.000006.dat", "t:c.diskqueue.000006.dat"]


def test_read_file_that_cannot_be_removed_does_not_come_back(nsqd_factory: DaemonFactory, faults: Faults) -> None:
    nsqd = nsqd_factory("--mem-queue-size=0", "--max-bytes-per-file=1000")
    account = Account(nsqd, "t")
    roll_files(account)
    faults.set({"call": "unlink", "name": "t.diskqueue.00000[01].dat", "error": "EACCES"})
    account.settle()
    assert errors(nsqd) == [
        f"DISKQUEUE(t) failed to Remove($D/t.diskqueue.00000{number}.dat) - "
        f"remove $D/t.diskqueue.00000{number}.dat: permission denied"
        for number in range(2)
    ]
    nsqd.restart()
    assert drain(nsqd, "t") == []
    assert account.publish("PUB", 10)
    assert drain(nsqd, "t") == account.acknowledged[-1:]
    assert left_over(nsqd) == []


# Killed at a step

KILLED_AT: dict[str, Rule] = {
    "create-data": {"call": "create", "name": "t.diskqueue.000002.dat"},
    "write-data": {"call": "pwrite", "name": "t.diskqueue.000002.dat", "after": 500},
    "write-meta": {"call": "write", "name": "t.diskqueue.meta.dat.*.tmp", "after": 34},
    "rename-meta": {"call": "rename", "name": "t.diskqueue.meta.dat.*.tmp", "after": 3},
    "sync-data": {"call": "fsync", "name": "t.diskqueue.0*.dat", "after": 2},
    "remove-data": {"call": "unlink", "name": "t.diskqueue.000001.dat"},
}


@pytest.mark.parametrize("step", KILLED_AT)
def test_killed_at_a_step(nsqd_factory: DaemonFactory, faults: Faults, step: str) -> None:
    nsqd = nsqd_factory("--mem-queue-size=0", "--max-bytes-per-file=1000", "--sync-every=3", "--sync-timeout=50ms")
    account = Account(nsqd, "t")
    faults.set(Rule(kill=True, **KILLED_AT[step]))
    if step == "remove-data":
        roll_files(account)
        with contextlib.suppress(ConnectionError):  # the channel takes all, and the topic's files go
            nsqd.http("POST", "/channel/create?topic=t&channel=c")
    else:
        while account.publish("MPUB", 100, 400, 150):
            assert len(account.acknowledged) < 100
    assert nsqd.wait() == -signal.SIGKILL
    assert len(faults.hits()) == 1
    account.disconnect()
    faults.set()
    nsqd.start()
    assert account.publish("MPUB", 10, 10)
    account.settle(twice=step == "remove-data")
    torn = step == "write-data"
    assert left_over(nsqd) == ["t.diskqueue.000002.dat.bad"] * torn
    assert len(errors(nsqd)) == torn


# nsqd.dat


def listed(nsqd: Instance) -> set[str]:
    """Returns what nsqd.dat lists: topics, and `topic:channel`."""
    topics = json.loads((nsqd.data_path / "nsqd.dat").read_bytes())["topics"] or []
    channels = [f"{topic['name']}:{channel['name']}" for topic in topics for channel in topic["channels"] or []]
    return {topic["name"] for topic in topics}.union(channels)


# What fails, and the end of the line about it.
METADATA: list[tuple[Rule, str]] = [
    ({"call": "create", "error": "EMFILE"}, "open $F: too many open files"),
    ({"call": "write", "error": "ENOSPC", "after": 20}, "write $F: no space left on device"),
    ({"call": "fsync", "error": "EIO"}, "sync $F: input/output error"),
    ({"call": "rename", "error": "EIO"}, "rename $F $D/nsqd.dat: input/output error"),
]


def test_metadata_cannot_be_written(nsqd_factory: DaemonFactory, faults: Faults) -> None:
    nsqd = nsqd_factory("--mem-queue-size=0")
    account = Account(nsqd, "old")
    assert account.publish("PUB", 10)
    create(nsqd, "gone")
    eventually(lambda: listed(nsqd) == {"old", "gone"})
    # Creating and deleting go on; nsqd.dat stays as it was.
    for rule, text in METADATA:
        error = f"failed to persist metadata - {text}"
        faults.set(Rule(name="nsqd.dat.*.tmp", **rule))
        new = Account(nsqd, f"new-{rule['call']}")
        assert new.publish("PUB", 10)
        eventually(lambda: error in errors(nsqd))  # noqa: B023
        assert ask(nsqd, "POST /topic/delete?topic=gone")[0] in (200, 404)
        eventually(lambda: not list(nsqd.data_path.glob("*.tmp")), "no temporary file")
        assert listed(nsqd) == {"old", "gone"}
    # So does the exit, which keeps all messages.
    new.disconnect()
    account.disconnect()
    nsqd.terminate()
    assert errors(nsqd)[-1] == error
    # So does a start.
    path = nsqd.data_path / "nsqd.dat"
    path.write_bytes(path.read_bytes().replace(b"1.3.0", b"1.2.1"))
    for rule, text in METADATA:
        faults.set(Rule(name="nsqd.dat.*.tmp", **rule))
        nsqd.restart()
        assert errors(nsqd) == [f"failed to persist metadata - {text}"]
    assert listed(nsqd) == {"old", "gone"}
    faults.set()
    eventually(lambda: b"1.3.0" in path.read_bytes(), "it is tried again")  # the real nsqd waits for a change
    new.settle()
    account.settle()
    eventually(lambda: listed(nsqd) >= {new.topic, "old", "old:c"})
    assert left_over(nsqd) == []


# Opening


@pytest.mark.parametrize(
    "call, path, error, text",
    [
        ("open", "t.diskqueue.meta.dat", "EMFILE", "open $D/t.diskqueue.meta.dat: too many open files"),
        ("stat", "t.diskqueue.000000.dat", "EIO", "stat $D/t.diskqueue.000000.dat: input/output error"),
        ("listdir", "", "EIO", "open $D: input/output error"),
        ("open", "t.journal.000000.dat", "EMFILE", "read $D/t.journal.000000.dat: too many open files"),
    ],
)
def test_queue_that_cannot_be_opened_stops_the_start(
    nsqd_factory: DaemonFactory, faults: Faults, call: str, path: str, error: str, text: str
) -> None:
    # The real nsqd would begin an empty one over what is there.
    nsqd = nsqd_factory("--mem-queue-size=0", f"--durability={'process' if 'journal' in path else 'none'}")
    account = Account(nsqd, "t")
    assert account.publish("PUB", 10, 10)
    nsqd.terminate()
    if call == "listdir":
        (nsqd.data_path / "t.diskqueue.meta.dat").unlink()
    files = {path.name: path.read_bytes() for path in nsqd.data_path.iterdir()}
    faults.set({"call": call, "name": (nsqd.data_path / path).name, "error": error})
    with pytest.raises(NotStarted, match="exited with 1:"):
        nsqd.start()
    assert shorten(nsqd, nsqd.log()).rstrip("\n").endswith(f" FATAL: failed to load metadata - {text}")
    assert {path.name: path.read_bytes() for path in nsqd.data_path.iterdir()} == files
    faults.set()
    nsqd.start()
    account.settle()


def test_queue_that_cannot_be_opened_is_not_begun_again(nsqd_factory: DaemonFactory, faults: Faults) -> None:
    # Whoever asks for its topic or channel gets an error until it can be opened; then what was in it is there.
    nsqd = nsqd_factory("--mem-queue-size=0")
    create(nsqd, "u")
    accounts = {"t": Account(nsqd, "t"), "u:c": Account(nsqd, "u")}
    for queue, account in accounts.items():
        account.acknowledged = [BODIES[0]]
        (nsqd.data_path / f"{queue}.diskqueue.000000.dat").write_bytes(record(0))
        (nsqd.data_path / f"{queue}.diskqueue.meta.dat").write_text(f"1\n0,0\n0,{SIZE}\n")
    faults.set({"call": "open", "name": "*.diskqueue.meta.dat", "error": "EMFILE"})
    for verb in ("PUB", "MPUB", "DPUB"):
        assert not accounts["t"].publish(verb, 10)
        assert accounts["t"].error == f"open {nsqd.data_path}/t.diskqueue.meta.dat: too many open files"
    with NSQClient(nsqd.tcp_address) as client:
        client.command(b"SUB u c")
        text = f"open {nsqd.data_path}/u:c.diskqueue.meta.dat: too many open files"
        assert client.error().decode() == f"E_SUB_FAILED SUB failed {text}"
        assert client.recv_until_closed() == b""
    for what in ("/pub?topic=t", "/mpub?topic=t", "/topic/create?topic=t", "/channel/create?topic=u&channel=c"):
        assert ask(nsqd, f"POST {what}", b"refused") == (500, message("INTERNAL_ERROR"))
    assert [(topic["topic_name"], topic["channels"]) for topic in nsqd.stats()["topics"]] == [("u", [])]
    faults.set()
    assert accounts["t"].publish("PUB", 10)
    for account in accounts.values():
        account.settle()
