"""One data path, and whole daemons that hand it over to each other: gnsqd and the real nsqd.

A Daemon on the path changes its command with every hand-over; it keeps the logs of all. Every message has the same id
and timestamp in all channels of a topic, so a consumer of the channel `witness` shows what the others have to deliver.
Where a message cannot get there (it is deferred, or its topic is paused or has no channel), the file that the first
daemon left shows.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from kit.daemons import PEERS, Instance, eventually, own_command
from kit.nsq_client import ReceivedMessage, parse_message
from kit.traffic import publish, take

OURS = own_command()
REAL = [str(PEERS / "nsqd")]
WITNESS = "witness"
HOUR = b"3600000"  # ms

Shape = dict[str, tuple[bool, int, dict[str, tuple[bool, int]]]]


def is_ours(nsqd: Instance) -> bool:
    return nsqd.command == OURS


def start_other(nsqd: Instance, *flags: str) -> None:
    nsqd.command = REAL if is_ours(nsqd) else OURS
    nsqd.restart(*flags)


def hand_over(nsqd: Instance, *flags: str) -> None:
    """Ends the daemon cleanly, checks that it had nothing to complain about, and starts the other one."""
    assert nsqd.terminate() == 0
    assert complaints(nsqd) == []
    assert stray_files(nsqd) == set()
    start_other(nsqd, *flags)


def complaints(nsqd: Instance) -> list[str]:
    """Returns what the last daemon found wrong with a queue, without the real one's lines about files that it has read
    (NSQD-COMPAT 0.1 item 4)."""
    lines: list[str] = re.findall(r"(?:WARNING|ERROR): DISKQUEUE.*", nsqd.log())
    if is_ours(nsqd):
        return lines
    return [line for line in lines if not re.search(r"\.dat - EOF$|jump to next file and saving bad file as", line)]


def stray_files(nsqd: Instance) -> set[str]:
    """Returns temporary and bad files, except the ones that the real nsqd reports as made."""
    logs = [log.read_text() for log in nsqd.logs]
    known = {
        name
        for text in logs
        if "(built w/go" in text
        for name in re.findall(r"saving bad file as \S*/(\S+)$", text, re.MULTILINE)
    }
    return {path.name for path in nsqd.data_path.iterdir() if path.suffix in (".bad", ".tmp")} - known


def started_with(nsqd: Instance, expected: Shape) -> None:
    """Waits until that is there, and all of it on disk: {topic: (paused, depth, {channel: (paused, depth)})}."""
    eventually(lambda: shape(nsqd, "depth") == shape(nsqd, "backend_depth") == expected, f"{expected}")


def shape(nsqd: Instance, depth: str) -> Shape:
    return {
        topic["topic_name"]: (
            topic["paused"],
            topic[depth],
            {channel["channel_name"]: (channel["paused"], channel[depth]) for channel in topic["channels"]},
        )
        for topic in nsqd.stats()["topics"]
    }


def nothing_left(nsqd: Instance) -> None:
    """Waits until no topic and no channel has a message of any kind."""

    def left() -> list[Any]:
        topics = nsqd.stats()["topics"]
        channels = [channel for topic in topics for channel in topic["channels"]]
        kinds = ("depth", "backend_depth", "in_flight_count", "deferred_count")
        return [entry for entry in topics + channels if any(entry.get(kind) for kind in kinds)]

    eventually(lambda: left() == [], "nothing is left")


def queued_and_in_flight(nsqd: Instance, topic: str, channel: str) -> tuple[int, int]:
    """Counts deferred messages as queued."""
    stats = nsqd.channel_stats(topic, channel)
    return stats["depth"] + stats["deferred_count"], stats["in_flight_count"]


# Messages


def witnessed(nsqd: Instance, topic: str, *bodies: bytes) -> list[ReceivedMessage]:
    """Publishes, and returns the messages as their first delivery shows them, which is that to the witness."""
    publish(nsqd, topic, *bodies)
    messages = {message.body: message for message in take(nsqd, topic, WITNESS, len(bodies))}
    return [messages.pop(body) for body in bodies]


def varied(count: int) -> list[bytes]:
    """Bodies of many sizes."""
    return [b"%04d" % number + b"x" * (number * 7 % 50) for number in range(count)]


def again(messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
    """Returns them as they are delivered next."""
    return [message._replace(attempts=message.attempts + 1) for message in messages]


# Files (NSQD-COMPAT 4.3, 4.4)


def saved_topics(nsqd: Instance) -> dict[str, list[str]]:
    """Returns the channels of every topic in nsqd.dat."""
    topics = json.loads((nsqd.data_path / "nsqd.dat").read_bytes())["topics"] or []
    return {topic["name"]: [channel["name"] for channel in topic["channels"] or []] for topic in topics}


def meta(nsqd: Instance, queue: str) -> list[int]:
    """Returns depth, read file and position, write file and position; [] without a meta file."""
    path = nsqd.data_path / f"{queue}.diskqueue.meta.dat"
    return [int(number) for number in re.findall(r"\d+", path.read_text())] if path.exists() else []


def stored(nsqd: Instance, queue: str) -> list[ReceivedMessage]:
    """Returns the messages of a queue of one file, as they are delivered next."""
    _, number, start, write_number, end = meta(nsqd, queue)
    assert number == write_number
    data = (nsqd.data_path / f"{queue}.diskqueue.{number:06d}.dat").read_bytes()
    assert len(data) == end
    records = []
    while start < end:
        size = int.from_bytes(data[start : start + 4])
        records.append(parse_message(data[start + 4 : start + 4 + size]))
        start += 4 + size
    return again(records)
