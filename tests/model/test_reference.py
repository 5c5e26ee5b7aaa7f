"""The reference accepts what nsqd may do to a message that times out while its consumer answers."""

import pytest

from model.reference import Broken, Came, Channel, Record


class Silent:
    """A consumer that has had no fence."""

    fences = 0
    read_at = 0.0

    def sync(self) -> None:
        self.fences += 1


def came(attempts: int, at: float) -> Came:
    return Came(b"id", attempts, b"x", at, fence=0, since=10.0, unseen=0)


def test_an_answer_may_reach_the_delivery_after_the_one_that_it_was_sent_for() -> None:
    channel, consumer, record = Channel(timeout=0.5), Silent(), Record(b"x", 0.0)
    assert channel.deliver(record, consumer, came(1, 10.0))
    channel.answer(record, 10.5, delay=0.0)  # nsqd gets it after a timeout, with the second delivery sent
    assert channel.deliver(record, consumer, came(2, 10.505))
    channel.answer(record, 10.506, delay=0.02)
    assert not channel.deliver(record, consumer, came(3, 10.507))  # so it requeued the second


def test_a_delivery_before_its_time_is_broken() -> None:
    channel, consumer, record = Channel(timeout=0.5), Silent(), Record(b"x", 0.0)
    assert channel.deliver(record, consumer, came(1, 10.0))
    channel.answer(record, 10.1, delay=0.02)
    with pytest.raises(Broken, match="early"):
        channel.deliver(record, consumer, came(2, 10.105))
