"""The edges of a drain; behaviour/test_drain has how it looks from outside."""

import pytest
from gevent import sleep, spawn

from gnsqd.broker import drain as drain_module
from gnsqd.broker.drain import SHOWN, Drain
from gnsqd.broker.topic import Draining
from unit.broker.fakes import MAX_PUT, MINUTE, Build, Fakes, eventually, settle, take_all


class CountedDrain(Drain):
    """A drain of these fakes that counts how often it has finished."""

    def __init__(self, around: Fakes, timeout: int = MINUTE) -> None:
        self.finished = 0
        super().__init__(around.registry, timeout, around.logger, around.spawn, self._note)

    def _note(self) -> None:
        self.finished += 1


def fill(around: Fakes, count: int, prefix: str = "t") -> None:
    """Creates topics without channels, the nth with n messages."""
    for number in range(1, count + 1):
        around.registry.get_topic(f"{prefix}{number}").publish([b"x"] * number)


def test_publish_that_is_under_way_is_completed(fakes: Build) -> None:
    around = fakes(mem_queue_size=MAX_PUT * 3)
    topic = around.registry.get_topic("t")
    publishing = spawn(topic.publish, [b"x"] * MAX_PUT * 3)
    while not topic.depth:
        settle_once()
    assert topic.depth < MAX_PUT * 3
    CountedDrain(around).start()
    publishing.get(timeout=10)
    assert topic.message_count == MAX_PUT * 3


def settle_once() -> None:
    spawn(lambda: None).join()


def test_reports_name_only_the_fullest_queues(fakes: Build) -> None:
    around = fakes()
    fill(around, SHOWN + 2)
    drain = CountedDrain(around, timeout=0)
    drain.start()
    settle()
    assert drain.finished == 1
    count, fullest = sum(range(SHOWN + 3)), ", ".join(f"t{n} {n} (no channel)" for n in range(SHOWN + 2, 2, -1))
    assert f"timed out with {count} messages in {SHOWN + 2} queues: {fullest}, and 2 more\n" in around.log.getvalue()
    state = drain.state()
    assert (state["messages"], len(state["holding"])) == (count, SHOWN)  # type: ignore[arg-type]


def test_waiting_is_reported_only_now_and_then(fakes: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    around = fakes()
    fill(around, 1)
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        sleep(0)

    monkeypatch.setattr(drain_module, "sleep", nap)
    drain = CountedDrain(around)
    drain.start()
    eventually(lambda: len(naps) > 10)
    assert around.log.getvalue().count("DRAIN: waiting") == 1
    drain.cancel()
    monkeypatch.setattr(drain_module, "REPORT_SECONDS", 0.0)
    drain.start()
    eventually(lambda: around.log.getvalue().count("DRAIN: waiting") > 3)
    drain.cancel()


def test_drain_that_is_cancelled_while_it_looks_does_not_finish(fakes: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    around = fakes()
    around.registry.get_topic("t0")
    drain = CountedDrain(around)
    monkeypatch.setattr("gnsqd.hub.cooperative.TURN_SECONDS", 0)
    monkeypatch.setattr("gnsqd.hub.cooperative.yield_turn", drain.cancel)
    drain.start()
    settle()
    assert drain.finished == 0
    assert not around.registry.draining
    around.registry.get_topic("t0").publish([b"x"])


def test_dead_letter_that_moves_to_a_new_topic_meanwhile_is_found(
    fakes: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = fakes()
    for name in ("empty", "t"):
        around.registry.get_topic(name).start()
    channel = around.registry.get_topic("t").get_channel("c")
    channel.put_messages(around.messages(b"dead"))

    def move() -> None:
        for message in take_all(channel):
            channel.finish(99, message.id)
            around.registry.get_topic("t.c.dead").publish([message.body])

    monkeypatch.setattr("gnsqd.hub.cooperative.TURN_SECONDS", 0)
    monkeypatch.setattr("gnsqd.hub.cooperative.yield_turn", move)
    state = CountedDrain(around).state()
    assert (channel.depth, state["messages"]) == (0, 1)


def test_drain_that_is_stopped_says_no_more_and_still_refuses(fakes: Build) -> None:
    around = fakes()
    fill(around, 1)
    drain = CountedDrain(around)
    drain.start()
    drain.stop()
    settle()
    assert "DRAIN: waiting" not in around.log.getvalue()
    with pytest.raises(Draining):
        around.registry.get_topic("t1").publish([b"x"])
