"""The fixtures around `Fakes`."""

from unit.broker.conftest import consumers, fakes, syncer

__all__ = ["consumers", "fakes", "syncer"]
