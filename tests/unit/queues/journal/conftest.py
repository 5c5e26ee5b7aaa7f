"""The fixtures around a topic on a journal."""

from unit.storage.conftest import log_stream, open_topic

__all__ = ["log_stream", "open_topic"]
