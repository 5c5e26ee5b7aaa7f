"""Limits of what the daemons of a cluster may answer, in bytes: for one of them, and for all answers of one look.

One half of what a look may take is divided among its peers, so that huge answers of some leave space for those of the
others; the second half is for whichever needs more than its share, and an answer that fails gives its part back.
"""

import threading
from contextvars import ContextVar

LARGEST_ANSWER = 64 << 20  # some hundred thousand channels
LARGEST_LOOK = 256 << 20  # ten nodes of 30,000 channels each, with 200,000 clients


class TooLarge(Exception):
    """The text is the reason of a NodeError."""


class LookBudget:
    """The bytes that all answers of one look may take together: the share of each peer, and the rest for all."""

    def __init__(self, peers: int = 1) -> None:
        self.share = LARGEST_LOOK // 2 // max(1, peers)
        self._left = LARGEST_LOOK // 2
        self._lock = threading.Lock()

    def borrow(self, size: int) -> None:
        """Takes bytes of the rest, or gives them back if `size` is negative; TooLarge."""
        with self._lock:
            if size > max(0, self._left):
                raise TooLarge(f"answered more than is left of {LARGEST_LOOK >> 20} MiB for the answers of all nodes")
            self._left -= size


class Allowance:
    """The bytes that one peer has answered in one look."""

    def __init__(self, budget: LookBudget) -> None:
        self._budget = budget
        self._taken = self._borrowed = 0

    def take(self, size: int) -> None:
        """Counts `size` bytes more; TooLarge."""
        self._taken += size
        if self._taken > LARGEST_ANSWER:
            raise TooLarge(f"answered more than {LARGEST_ANSWER >> 20} MiB")
        if (missing := self._taken - self._budget.share - self._borrowed) > 0:
            self._budget.borrow(missing)
            self._borrowed += missing

    def release(self) -> None:
        """Gives back everything: the answer is dropped."""
        self._budget.borrow(-self._borrowed)
        self._taken = self._borrowed = 0


ALLOWANCE: ContextVar[Allowance | None] = ContextVar("ALLOWANCE", default=None)  # of the thread that asks a peer


def present_allowance() -> Allowance:
    """Returns that of the peer that this thread asks; a new one if it is not limited by others."""
    return ALLOWANCE.get() or Allowance(LookBudget())
