"""`gnsqadmin peek`: queued messages are shown and stay, from running nodes and from their files."""

from datetime import datetime

from cli.gnsqadmin import document, failure, ok
from cli.nodes import address, at, fill
from kit.daemons import Daemon
from kit.traffic import DaemonFactory, create, publish, wait_for
from nsqadmin_cli.message import pretty_lines

PEEK = ("peek", "t", "c")


def put(nsqd: Daemon, *bodies: bytes) -> None:
    create(nsqd, "t", "c")
    for body in bodies:
        publish(nsqd, "t", body)
    wait_for(nsqd, "t", "c", depth=len(bodies))


def nanoseconds(iso_time: str) -> int:
    """Nanoseconds since 1970; `datetime` alone drops what is below a microsecond."""
    second, _, fraction = iso_time.removesuffix("Z").partition(".")
    return round(datetime.fromisoformat(f"{second}Z").timestamp()) * 10**9 + int(fraction.ljust(9, "0"))


def test_messages_are_shown_and_stay(gnsqd: Daemon) -> None:
    put(gnsqd, b"first", b"\x1b[31m\xff", b"x" * 100_000)
    first, row, *rows = ok(*PEEK, "-n", "2", *at(gnsqd)).splitlines()
    assert first == f"t c at {address(gnsqd)}: 3 messages queued, 2 shown"
    assert (" ago  in memory  " in row, row[-5:], rows[::2]) == (True, "  5 B", ["  first", r"  \x1b[31m\xff"])
    out = ok(*PEEK, *at(gnsqd))
    assert ("  the beginning of 100 kB  " in out, len(out) < 3000) == (True, True)
    assert gnsqd.channel_stats("t", "c")["depth"] == 3
    publish(gnsqd, "alone", b"waits")  # in a topic without channels
    assert "waits\n" in ok("peek", "alone", *at(gnsqd))
    create(gnsqd, "empty")
    assert ok("peek", "empty", *at(gnsqd)) == f"empty at {address(gnsqd)}: no messages\n"


def test_json_has_the_messages_of_all_nodes(gnsqd_factory: DaemonFactory) -> None:
    nodes = [gnsqd_factory("--mem-queue-size=1"), gnsqd_factory(), gnsqd_factory()]
    put(nodes[0], b"a", b"\xff")
    put(nodes[1])
    found = document(*PEEK, *at(*nodes))
    assert found["nodes"] == [
        {"address": address(nodes[0]), "error": None, "depth": 2, "backend_depth": 1},
        {"address": address(nodes[1]), "error": None, "depth": 0, "backend_depth": 0},
    ]
    shown = [(one["body"], one["body_base64"], one["on_disk"], one["size"]) for one in found["messages"]]
    assert shown == [("a", None, False, 1), (None, "/w==", True, 1)]
    csv = ok(*PEEK, "-o", "csv", *at(*nodes)).splitlines()
    assert [line.rpartition(",")[2] for line in csv] == ["body", "a", r"\xff"]
    times = [nanoseconds(line.partition(",")[0]) for line in csv[1:]]
    assert times == [one["timestamp"] for one in found["messages"]]


def test_files_are_shown_while_the_daemon_runs_and_after_it(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory("--mem-queue-size=0", "--max-bytes-per-file=100", "--sync-every=1")
    fill(nsqd, "t", "c", count=9)
    files = ("--data-path", str(nsqd.data_path))
    for _ in ("running", "ended"):
        found = document(*PEEK, *files)
        assert sorted(one["body"] for one in found["messages"]) == [str(number) for number in range(9)]
        assert found["nodes"][0]["depth"] == 9
        if nsqd.running:
            nsqd.terminate()
    assert "00000000  3" in ok(*PEEK, "-n1", "--hex", *files)
    assert failure("peek", "t", "x", *files, code=4) == f"{nsqd.data_path} does not have the channel x of t"


def test_json_bodies_are_indented_and_not_changed() -> None:
    body = '{"price": 1.10, "tags": [], "of": {"a, b": [1, "\\"{"]}}'
    assert "\n".join(pretty_lines(body)) == (
        '{\n  "price": 1.10,\n  "tags": [],\n  "of": {\n    "a, b": [\n      1,\n      "\\"{"\n    ]\n  }\n}'
    )
    for text in ("plain", "12", "{]", "[1"):
        assert pretty_lines(text) == [text]
