"""Which disk queues have files: known from one listing of the data path, so that a queue which is opened lists nothing.

The lock on the data path keeps other daemons out. So a queue that was not in the listing and has not been opened since
has no files, and what the listing has of others is right until they are opened.
"""

import re
from collections.abc import Iterable

from gnsqd.storage.disk.record import data_file_number, meta_file_name
from gnsqd.storage.files import list_names

_OF_QUEUE = re.compile(rf"(.+?)(?:({re.escape(meta_file_name(''))})|\.diskqueue\.[0-9]+\.dat)", re.DOTALL)


class DataFiles:
    """The queues that have a meta or data files in `data_path`, whose files are `names`; no queue is open."""

    def __init__(self, data_path: str, names: Iterable[str]) -> None:
        self.data_path = data_path
        self._numbers: dict[str, list[int] | None] = {}  # of data files; None: only a listing would say
        for name in names:
            if match := _OF_QUEUE.fullmatch(name):
                queue, is_meta = match.groups()
                number = None if is_meta else data_file_number(queue, name)
                if is_meta or number is not None:
                    numbers = self._numbers.setdefault(queue, [])
                    if number is not None and numbers is not None:
                        numbers.append(number)

    def __contains__(self, queue: str) -> bool:
        """Whether the queue may have files."""
        return queue in self._numbers

    def numbers(self, queue: str) -> list[int]:
        """The numbers of all data files of a queue, ascending; StorageError."""
        numbers = self._numbers.get(queue, [])
        if numbers is not None:
            return sorted(numbers)
        found = (data_file_number(queue, name) for name in list_names(self.data_path))
        return sorted(number for number in found if number is not None)

    def note_opened(self, queue: str) -> None:
        """Its files change from now on."""
        self._numbers[queue] = None

    def note_deleted(self, queue: str) -> None:
        """All its files are gone."""
        self._numbers.pop(queue, None)
