"""Where an archive lives: the few things done to its files besides reading and writing Parquet, by relative path.

`LocalFiles` is a directory of this machine or of a file system mounted on every machine of the cluster; `HadoopFiles`
is whatever else Spark can write to, such as HDFS. Both can create a file that no other writer has created, whole or
not at all: the archive's log rests on that. Object stores that can't are not for archives with several writers.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from gnsq_pipeline.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class FileStatus(NamedTuple):
    """A file below the root."""

    path: str  # relative
    size: int
    modified: float  # seconds since 1970


class Files(Protocol):
    """A directory tree; all paths are relative to its root and have slashes. OSError is what fails."""

    def uri(self, path: str) -> str:
        """The absolute URI of `path`, percent-encoded."""

    def location(self, path: str) -> str:
        """What Spark's reader and writer are given for `path`."""

    def exists(self, path: str) -> bool: ...

    def walk(self, path: str = "") -> Iterator[FileStatus]:
        """Every file below `path`; none when there is no such directory."""

    def read(self, path: str) -> str:
        """The text of a file; FileNotFoundError when there is none."""

    def create(self, path: str, text: str) -> bool:
        """Make a file that has `text` from its first moment on; False when the path is taken."""

    def move(self, source: str, target: str) -> None:
        """Give a finished file its place, over one that is there; its time of modification becomes now."""

    def touch(self, path: str) -> None:
        """Make now the time of modification; a file that is gone is not made."""

    def remove(self, path: str) -> None:
        """Remove a file or a whole tree; none is fine."""


class LocalFiles:
    """A directory of a file system that has POSIX's rename, link and fsync."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()

    def uri(self, path: str) -> str:
        return (self.root / path).as_uri()

    def location(self, path: str) -> str:
        return str(self.root / path)

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def walk(self, path: str = "") -> Iterator[FileStatus]:
        for directory, _, names in os.walk(self.root / path):
            for name in sorted(names):
                file = Path(directory) / name
                try:
                    status = file.stat()
                except FileNotFoundError:  # by another process, meanwhile
                    continue
                yield FileStatus(file.relative_to(self.root).as_posix(), status.st_size, status.st_mtime)

    def read(self, path: str) -> str:
        return (self.root / path).read_text("utf-8")

    def create(self, path: str, text: str) -> bool:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".new-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            try:
                os.link(name, target)  # unlike rename, this refuses a name that is taken
            except FileExistsError:
                return False
        finally:
            os.unlink(name)
        _sync_directory(target.parent)
        return True

    def move(self, source: str, target: str) -> None:
        old, new = self.root / source, self.root / target
        new.parent.mkdir(parents=True, exist_ok=True)
        with old.open("rb") as file:
            os.fsync(file.fileno())  # Spark doesn't, and what comes after this must not outlive it
        os.utime(old)
        os.replace(old, new)
        directory = new.parent
        while directory.is_relative_to(self.root):
            _sync_directory(directory)
            directory = directory.parent

    def touch(self, path: str) -> None:
        try:
            os.utime(self.root / path)
        except FileNotFoundError:
            pass

    def remove(self, path: str) -> None:
        target = self.root / path
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class HadoopFiles:
    """A directory of a file system that the driver's JVM reaches through Hadoop's client."""

    def __init__(self, spark: "SparkSession", root: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._configuration: Any = spark._jsc.hadoopConfiguration()
        self._root = jvm.org.apache.hadoop.fs.Path(root)
        self._system = self._root.getFileSystem(self._configuration)
        self._root = self._system.makeQualified(self._root)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, path) if path else self._root

    def uri(self, path: str) -> str:
        return str(self._path(path).toUri().toString())

    def location(self, path: str) -> str:
        return str(self._path(path).toString())

    def exists(self, path: str) -> bool:
        return bool(_called(self._system.exists, self._path(path)))

    def walk(self, path: str = "") -> Iterator[FileStatus]:
        base = self._root.toUri().getPath().rstrip("/") + "/"
        directories = [self._path(path)]
        while directories:
            try:
                # Unlike listFiles, this does not fail on what another process removes meanwhile.
                found = _called(self._system.listStatus, directories.pop())
            except FileNotFoundError:
                continue
            for status in found:
                if status.isDirectory():
                    directories.append(status.getPath())
                else:
                    name = status.getPath().toUri().getPath().removeprefix(base)
                    yield FileStatus(name, status.getLen(), status.getModificationTime() / 1000)

    def read(self, path: str) -> str:
        if not self.exists(path):
            raise FileNotFoundError(path)
        stream = _called(self._system.open, self._path(path))
        try:
            return bytes(_called(stream.readAllBytes)).decode()
        finally:
            stream.close()

    def create(self, path: str, text: str) -> bool:
        target = self._path(path)
        new = self._path(f"{path.rpartition('/')[0]}/.new-{os.urandom(8).hex()}")
        stream = _called(self._system.create, new, True)
        try:
            _called(stream.write, bytearray(text.encode()))
        finally:
            _called(stream.close)
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(target.toUri(), self._configuration)
        none = self._jvm.java.lang.reflect.Array.newInstance(
            self._jvm.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename"), 0
        )
        try:
            _called(context.rename, new, target, none)
        except OSError as error:
            self._system.delete(new, False)
            if "FileAlreadyExists" in str(error):
                return False
            raise
        return True

    def move(self, source: str, target: str) -> None:
        old, new = self._path(source), self._path(target)
        _called(self._system.mkdirs, new.getParent())
        _called(self._system.delete, new, False)
        self.touch(source)
        if not _called(self._system.rename, old, new):
            raise OSError(f"cannot move {source} to {target}")

    def touch(self, path: str) -> None:
        now = int(self._jvm.java.lang.System.currentTimeMillis())
        try:
            _called(self._system.setTimes, self._path(path), now, -1)
        except FileNotFoundError:
            pass

    def remove(self, path: str) -> None:
        _called(self._system.delete, self._path(path), True)


def _called(function: Any, *arguments: Any) -> Any:
    """Call into Java; its exceptions become OSError."""
    from py4j.protocol import Py4JJavaError

    try:
        return function(*arguments)
    except Py4JJavaError as error:
        text = str(error.java_exception.toString())
        kind = FileNotFoundError if "FileNotFoundException" in text else OSError
        raise kind(text) from None


def local_path(location: str) -> Path | None:
    """The path of this machine that `location` names, None when it is on another file system."""
    if "://" not in location and not location.startswith("file:"):
        return Path(location)
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def files_at(location: str, spark: "SparkSession | None" = None) -> Files:
    """The files of the directory `location`, a path or a URI; one that isn't local needs a session."""
    if not location:
        raise UsageError("an empty path names no directory")
    if (path := local_path(location)) is not None:
        return LocalFiles(path)
    if spark is None:
        raise UsageError(f"{location}: only a local directory can be read without Spark")
    return HadoopFiles(spark, location)
