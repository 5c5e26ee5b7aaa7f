"""Which files are the archive: a log of versions, each the whole list, of which the newest counts.

A version is one file, `_spark_metadata/<number>.compact`, created whole or not at all, so there is no state between
two versions: writers that collide try again on top of the other's version, and a crash leaves the last version. The
format is the log of Spark's own file sink ("v1", then one JSON object a line; a version that ends in `.compact` needs
no older one), so `spark.read.parquet(root)` sees exactly one version too. The fields `file` and `batches` are ours;
Spark ignores them.

    path, size, isDir, modificationTime, blockReplication, blockSize, action    what Spark needs
    file       the path relative to the root, by which a moved archive is noticed
    batches    {stream id: number of its last batch with rows in this file}, by which a replayed batch is noticed
"""

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from gnsq_pipeline.errors import PipelineError
from gnsq_pipeline.files import Files

DIRECTORY = "_spark_metadata"
_HEADER = "v1"
_SUFFIX = ".compact"
_KEPT = 10  # versions; Spark takes the distance of the last two as a period, so two are the least
_BLOCK_SIZE = 128 * 1024 * 1024


class Entry(NamedTuple):
    """One Parquet file of the archive."""

    file: str  # relative to the root
    size: int
    modified_ms: int
    batches: dict[str, int]

    @property
    def directory(self) -> str:
        return self.file.rpartition("/")[0]


class Version(NamedTuple):
    """What the archive is at one time; number -1 is the archive before its first file."""

    number: int
    entries: tuple[Entry, ...]
    moved_from: str | None = None  # the path of a first file that isn't where this log is

    def last_batch(self, stream: str) -> int:
        """The last batch of `stream` that is in the archive, -1 for none."""
        return max((entry.batches.get(stream, -1) for entry in self.entries), default=-1)


def _place(uri: str) -> tuple[str, str, str]:
    """What a URI names, however much of it is percent-encoded."""
    parts = urlsplit(uri)
    return parts.scheme, parts.netloc, unquote(parts.path)


class FileLog:
    """The log of the archive in `files`."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def _numbers(self) -> list[int]:
        numbers = []
        for status in self._files.walk(DIRECTORY):
            name = status.path.rpartition("/")[2]
            if name.isdigit():
                raise PipelineError(
                    f"{self._files.location('')} was written by Spark's own file sink: archive to another directory"
                )
            if name.endswith(_SUFFIX) and (number := name.removesuffix(_SUFFIX)).isdigit():
                numbers.append(int(number))
        return sorted(numbers)

    def latest(self) -> Version:
        """The newest version; PipelineError when it can't be read."""
        while numbers := self._numbers():
            try:
                return self._read(numbers[-1])
            except FileNotFoundError:  # removed by a writer that went on meanwhile
                continue
        return Version(-1, ())

    def _read(self, number: int) -> Version:
        name = f"{DIRECTORY}/{number}{_SUFFIX}"
        header, *lines = self._files.read(name).split("\n")
        entries = []
        moved_from = None
        try:
            if header != _HEADER:
                raise ValueError(f"header {header!r}")
            for line in lines:
                fields = json.loads(line)
                entry = Entry(fields["file"], fields["size"], fields["modificationTime"], fields["batches"])
                if _place(fields["path"]) != _place(self._files.uri(entry.file)):
                    moved_from = fields["path"]
                entries.append(entry)
        except (ValueError, TypeError, KeyError) as error:
            raise PipelineError(f"{self._files.location(name)} is damaged: {error!r}") from None
        return Version(number, tuple(entries), moved_from)

    def commit(self, change: Callable[[Version], Sequence[Entry] | None]) -> Version:
        """Make `change(latest)` the newest version, or leave the latest when that is None; the version it is now.

        `change` is called again when another writer was faster.
        """
        while True:
            latest = self.latest()
            entries = change(latest)
            if entries is None:
                return latest
            version = Version(latest.number + 1, tuple(entries))
            lines = [_HEADER, *(json.dumps(self._fields(entry)) for entry in version.entries)]
            if self._files.create(f"{DIRECTORY}/{version.number}{_SUFFIX}", "\n".join(lines)):
                for number in self._numbers()[:-_KEPT]:
                    self._files.remove(f"{DIRECTORY}/{number}{_SUFFIX}")
                return version

    def _fields(self, entry: Entry) -> dict[str, object]:
        return {
            "path": self._files.uri(entry.file),
            "size": entry.size,
            "isDir": False,
            "modificationTime": entry.modified_ms,
            "blockReplication": 1,
            "blockSize": _BLOCK_SIZE,
            "action": "add",
            "file": entry.file,
            "batches": entry.batches,
        }
