"""Circles of objects: which collections find them."""

import gc
import sys
import weakref
from time import monotonic
from typing import Any

import pytest

from gnsqd.observe import memory


class CircleMember:
    pass


def dropped_circle() -> "weakref.ref[CircleMember]":
    node: Any = CircleMember()
    node.self = node
    gc.collect()
    return weakref.ref(node)


@pytest.mark.parametrize(
    "blocks, seconds, gone",
    [(memory._QUICK - 1, 0, True), (memory._QUICK, 0, False), (memory._QUICK, 3601, True)],
    ids=["small heap", "large heap", "large heap, after an hour"],
)
def test_old_garbage_is_collected_while_that_is_quick_or_once_an_hour(
    monkeypatch: pytest.MonkeyPatch, blocks: int, seconds: int, gone: bool
) -> None:
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: blocks)
    monkeypatch.setattr(memory, "_last_full", monotonic() - seconds)
    circle = dropped_circle()
    memory.collect()
    assert (circle() is None) is gone
    again = dropped_circle()
    memory.collect()
    assert (again() is None) is (blocks < memory._QUICK)


def test_only_the_young_are_collected_by_themselves_after_the_start() -> None:
    thresholds = gc.get_threshold()
    gc.unfreeze()
    try:
        memory.freeze()
        assert gc.get_freeze_count() > 0
        before = [generation["collections"] for generation in gc.get_stats()]
        kept: list[list[None]] = [[] for _ in range(30 * memory._YOUNG)]
        young, middle, old = (generation["collections"] for generation in gc.get_stats())
        del kept
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
    assert young - before[0] >= 29
    assert [middle, old] == before[1:]
