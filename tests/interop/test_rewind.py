"""A channel that is rewound while a client library is connected: its consumer gets the messages again, unchanged."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from interop.cluster import Program
from kit.daemons import eventually
from kit.lookupds import RunningLookupd, own_lookupd_command
from kit.traffic import DaemonFactory, create, post, publish

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
def consumer_command(request: pytest.FixtureRequest) -> Callable[[RunningLookupd], list[str]]:
    """Returns the command of a consumer of the channel c of the topic t, which it looks up."""

    def command(lookupd: RunningLookupd) -> list[str]:
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


def test_connected_consumer_gets_finished_messages_again(
    consumer_command: Callable[[RunningLookupd], list[str]], gnsqd_factory: DaemonFactory, tmp_path: Path
) -> None:
    with RunningLookupd(own_lookupd_command(), tmp_path / "lookupd") as lookupd:
        retaining = ("--durability=process", "--retention-bytes=1000000")
        nsqd = gnsqd_factory("--broadcast-address=127.0.0.1", lookupd.flag, *retaining)
        create(nsqd, "t", "c")
        eventually(lambda: lookupd.having("t", "c"), "registered")
        with Program(consumer_command(lookupd), tmp_path / "consumer") as consumer:

            def everything_came(times: int, finished: int) -> None:
                expected = Counter(dict.fromkeys(BODIES, times))
                eventually(lambda: Counter(consumer.lines()) == expected, f"all messages, {times} times")
                eventually(
                    lambda: nsqd.channel_stats("t", "c")["clients"][0]["finish_count"] == finished,
                    f"{finished} finished",
                )

            publish(nsqd, "t", *(body.encode() for body in BODIES))
            everything_came(1, len(BODIES))
            (before,) = nsqd.channel_stats("t", "c")["clients"]
            answer = post(nsqd, "/channel/rewind?topic=t&channel=c&to=first")
            assert answer == f'{{"messages":{len(BODIES)}}}'.encode()
            everything_came(2, 2 * len(BODIES))
            after = nsqd.channel_stats("t", "c")
            assert [one["remote_address"] for one in after["clients"]] == [before["remote_address"]]
            counts = ("depth", "in_flight_count", "deferred_count", "requeue_count", "timeout_count")
            assert [after[name] for name in counts] == [0] * len(counts)
