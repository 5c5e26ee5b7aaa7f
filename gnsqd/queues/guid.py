"""Message ids (NSQD-COMPAT section 2.7).

An id is 64 bits: 42 of a clock that ticks every 2**20 ns, 10 of the node id, 12 of a sequence within the tick, written
as 16 lower-case hex characters, of which a tick formats the first thirteen only once. The clock follows the wall clock
but never goes back, and advances when the ids of a tick are used up. So ids are unique, and nobody waits for one.
"""

NODE_ID_BITS = 10
SEQUENCE_BITS = 12
_EPOCH = 1288834974288

_SEQUENCE_END = 1 << SEQUENCE_BITS
_SUFFIXES = [b"%03x" % sequence for sequence in range(_SEQUENCE_END)]


def time_of(id: str) -> int:
    """Returns the beginning of an id's tick, wall clock in ns; raises ValueError if it is not 16 hex characters."""
    if len(id) != 16:
        raise ValueError("not an id")
    return ((int(id, 16) >> (NODE_ID_BITS + SEQUENCE_BITS)) + _EPOCH) << 20


class GuidFactory:
    """Owns the daemon's id sequence; `node_id` is 0..1023. `prefix` has the characters that the ids of a tick share."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._tick = -1
        self._sequence = _SEQUENCE_END
        self.prefix = b""

    def next_suffixes(self, now: int, count: int) -> list[bytes]:
        """Returns the parts after `prefix` of the next ids, in order: `count` of them, or fewer but at least one if
        the tick ends. `now` is the wall clock in ns."""
        bits = NODE_ID_BITS  # compiled, a number of C
        tick = (now >> 20) - _EPOCH
        if tick > self._tick or self._sequence >= _SEQUENCE_END:
            self._tick = max(tick, self._tick + 1)
            self._sequence = 0
            self.prefix = b"%013x" % (self._tick << bits | self._node_id)
        suffixes = _SUFFIXES[self._sequence : self._sequence + count]
        self._sequence += len(suffixes)
        return suffixes
