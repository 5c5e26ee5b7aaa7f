"""A channel that is rewound while a client library is connected: its consumer gets the messages again, unchanged."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import DaemonFactory
from interop.cluster import Program, post
from kit.daemons import Daemon, eventually
from kit.http_api import ask
from kit.lookupds import Lookupd, own_lookupd_command

HERE = Path(__file__).parent
BODIES = [f"{number:03}" for number in range(120)]  # more than a consumer here has in flight


@pytest.fixture(
    params=[
        "pynsq",
        "gnsq",
        pytest.param("go-nsq", marks=pytest.mark.peer),
        pytest.param("nsqjs", marks=pytest.mark.peer),
    ]
)
def consumer_command(request: pytest.FixtureRequest) -> Callable[[Lookupd], list[str]]:
    """The command of a consumer of the channel c of the topic t, which it looks up."""

    def command(lookupd: Lookupd) -> list[str]:
        match request.param:
            case "go-nsq":
                tail = request.getfixturevalue("peer_binary")("nsq_tail")
                flags = ["--consumer-opt=lookupd_poll_interval,200ms", "--consumer-opt=max_in_flight,50"]
                return [str(tail), "--topic=t", "--channel=c", f"--lookupd-http-address={lookupd.http_address}", *flags]
            case "nsqjs":
                argv = ["node", str(request.getfixturevalue("nsqjs") / "consumer.js")]
            case name:
                argv = [sys.executable, str(HERE / f"{name}_consumer.py")]
        return [*argv, "t", "c", lookupd.http_address]

    return command


def channel(nsqd: Daemon) -> dict[str, Any]:
    return dict(nsqd.channel_stats("t", "c"))


def test_connected_consumer_gets_finished_messages_again(
    consumer_command: Callable[[Lookupd], list[str]], gnsqd_factory: DaemonFactory, tmp_path: Path
) -> None:
    with Lookupd(own_lookupd_command(), tmp_path / "lookupd") as lookupd:
        retaining = ("--durability=process", "--retention-bytes=1000000")
        nsqd = gnsqd_factory("--broadcast-address=127.0.0.1", lookupd.flag, *retaining)
        post(nsqd, "/topic/create?topic=t")
        post(nsqd, "/channel/create?topic=t&channel=c")
        eventually(lambda: lookupd.having("t", "c"), "registered")
        with Program(consumer_command(lookupd), tmp_path / "consumer") as consumer:

            def everything_came(times: int, finished: int) -> None:
                expected = Counter(dict.fromkeys(BODIES, times))
                eventually(lambda: Counter(consumer.lines()) == expected, f"all messages, {times} times")
                eventually(lambda: channel(nsqd)["clients"][0]["finish_count"] == finished, f"{finished} finished")

            post(nsqd, "/mpub?topic=t", "\n".join(BODIES[1:]).encode())
            post(nsqd, "/pub?topic=t", BODIES[0].encode())
            everything_came(1, len(BODIES))
            (before,) = channel(nsqd)["clients"]
            answer = ask(nsqd, "POST /channel/rewind?topic=t&channel=c&to=first")
            assert answer == (200, f'{{"messages":{len(BODIES)}}}')
            everything_came(2, 2 * len(BODIES))
            after = channel(nsqd)
            assert [one["remote_address"] for one in after["clients"]] == [before["remote_address"]]
            counts = ("depth", "in_flight_count", "deferred_count", "requeue_count", "timeout_count")
            assert [after[name] for name in counts] == [0] * len(counts)
