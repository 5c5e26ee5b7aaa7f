"""Message ids (NSQD-COMPAT section 2.7).

An id is 64 bits: 42 of a clock that ticks every 2**20 ns, 10 of the node id, 12 of a sequence within the tick, written
as 16 lower-case hex characters. The clock follows the wall clock but never goes back, and advances when a tick has not
as many ids left as are needed at once. So ids are unique, and nobody waits for one.
"""

NODE_ID_BITS = 10
SEQUENCE_BITS = 12
_EPOCH = 1288834974288


def time_of(id: str) -> int:
    """Returns the beginning of an id's tick, wall clock in ns; raises ValueError if it is not 16 hex characters."""
    if len(id) != 16:
        raise ValueError("not an id")
    return ((int(id, 16) >> (NODE_ID_BITS + SEQUENCE_BITS)) + _EPOCH) << 20


class GuidFactory:
    """Owns the daemon's id sequence; `node_id` is 0..1023."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._tick = -1
        self._sequence = 0

    def reserve(self, now: int, count: int) -> int:
        """Returns the first of the next `count` ids, at most 4096, which are consecutive numbers of one tick. `now` is
        the wall clock in ns."""
        tick = (now >> 20) - _EPOCH
        if tick > self._tick or self._sequence + count > 1 << SEQUENCE_BITS:
            self._tick = max(tick, self._tick + 1)
            self._sequence = 0
        first = (self._tick << NODE_ID_BITS | self._node_id) << SEQUENCE_BITS | self._sequence
        self._sequence += count
        return first
