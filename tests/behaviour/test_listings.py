"""Listings of the data path: with thousands of queues one takes long, and nothing else is served then."""

from pathlib import Path

import pytest

from kit.daemons import Instance, interpreter, own_command
from kit.traffic import create, post, take

PROGRAM = """
import os, runpy, sys
noted = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
data_path = [flag.partition("=")[2] for flag in sys.argv if flag.startswith("--data-path=")][0]
def note(event, arguments):
    if event in ("os.listdir", "os.scandir") and arguments[0] == data_path:
        os.write(noted, b"x")
sys.addaudithook(note)
runpy.run_module("gnsqd", run_name="__main__", alter_sys=True)
"""
TOPICS = [f"t{number}" for number in range(20)]


@pytest.mark.parametrize("flag", ["--mem-queue-size=0", "--durability=process"])
def test_data_path_is_listed_at_the_start_and_not_for_each_queue(tmp_path: Path, flag: str) -> None:
    noted = tmp_path / "noted"
    command = [*interpreter(own_command()), "-P", "-c", PROGRAM, str(noted)]
    with Instance(command, tmp_path / "data", flag) as daemon:
        for topic in TOPICS:
            create(daemon, topic, "c")
            post(daemon, f"/channel/delete?topic={topic}&channel=c")
            post(daemon, f"/channel/create?topic={topic}&channel=c")
            post(daemon, f"/pub?topic={topic}", b"kept")
        listings = noted.stat().st_size
        assert listings <= 2  # the second for metadata of an nsqd before v1.0, as there was no nsqd.dat
        daemon.kill()
        with daemon.start():
            assert noted.stat().st_size == listings + 1
            for topic in TOPICS:
                assert [message.body for message in take(daemon, topic, "c", 1)] == [b"kept"]
            assert noted.stat().st_size == listings + 1
