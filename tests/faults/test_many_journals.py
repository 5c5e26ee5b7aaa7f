"""Hundreds of journals under a low limit of open files: publishing, a kill, a clean exit, the start behind it."""

from pathlib import Path

from kit.daemons import Instance, eventually, own_command
from kit.nsq_client import NSQClient
from kit.observers import open_files

TOPICS = 300
DESCRIPTORS = 200
IDLE = 20  # that a daemon has open without any topic, generously


def opened(nsqd: Instance, pattern: str = "") -> int:
    return sum(pattern in file for file in open_files(nsqd.pid))


def publish_to_all(nsqd: Instance, body: bytes) -> None:
    with NSQClient(nsqd.tcp_address) as client:
        client.identify(heartbeat_interval=-1)
        for number in range(TOPICS):
            client.publish(f"t{number}", body)


def depths(nsqd: Instance) -> list[int]:
    return [topic["depth"] for topic in nsqd.stats()["topics"]]


def test_topics_are_not_bounded_by_descriptors(directory: Path) -> None:
    limited = ["sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "sh", *own_command()]
    with Instance(limited, directory / "data", "--durability=disk") as nsqd:
        publish_to_all(nsqd, b"first")
        publish_to_all(nsqd, b"second")
        assert opened(nsqd, ".journal.") == DESCRIPTORS // 4
        eventually(lambda: opened(nsqd) <= IDLE + DESCRIPTORS // 4)
        nsqd.kill()
        nsqd.start()
        assert depths(nsqd) == [2] * TOPICS
        publish_to_all(nsqd, b"third")
        nsqd.restart("--durability=process")
        assert depths(nsqd) == [3] * TOPICS
        assert opened(nsqd) <= IDLE + DESCRIPTORS // 4
        assert nsqd.terminate() == 0
        assert "ERROR" not in nsqd.log()
        nsqd.restart("--durability=none")
        assert depths(nsqd) == [3] * TOPICS
        assert not list(nsqd.data_path.glob("*.journal.*"))
