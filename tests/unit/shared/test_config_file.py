"""Whatever a configuration names as a file, reading it ends, and with little memory."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest

from gnsqd.shared import config_file
from gnsqd.shared.config_file import describe_failure, read_config_file, signature


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@contextmanager
def writer(pipe: Path, *pieces: bytes) -> Iterator[None]:
    """Writes to the pipe, and keeps it open; the last piece ends it if it is empty."""

    def write() -> None:
        with pipe.open("wb", buffering=0) as file, suppress(BrokenPipeError):
            for piece in pieces:
                file.write(piece)
            while pieces[-1]:
                file.write(b"\n")

    thread = Thread(target=write, daemon=True)
    thread.start()
    yield
    thread.join()


def error_of(path: Path | str, max_size: int = 10) -> str:
    with pytest.raises(OSError) as caught:
        read_config_file(str(path), max_size)
    assert caught.value.filename == str(path)
    return describe_failure(caught.value)


def test_size_is_bounded(tmp_path: Path, pipe: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    assert read_config_file(str(tmp_path / "file"), 10) == b"0123456789"
    assert error_of(tmp_path / "file", 9) == f"read {tmp_path}/file: more than 9 bytes"
    assert error_of("/dev/zero") == "read /dev/zero: more than 10 bytes"
    with writer(pipe, b"endless"):
        assert error_of(pipe) == f"read {pipe}: more than 10 bytes"


def test_pipe_is_read_to_its_end(pipe: Path) -> None:
    with writer(pipe, b"a" * 100_000, b"b", b""):
        assert read_config_file(str(pipe)) == b"a" * 100_000 + b"b"
    assert read_config_file(os.devnull) == b""


def test_pipe_without_end_is_an_error(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_file, "MAX_WAIT", 0.1)
    error = f"read {pipe}: did not end within 0.1 s"
    assert error_of(pipe) == error  # nobody writes
    with pipe.open("r+b", buffering=0) as both:
        assert error_of(pipe) == error  # nothing is written
        both.write(b"x")
        assert error_of(pipe) == error


def test_errors_name_the_call(tmp_path: Path) -> None:
    assert error_of(tmp_path) == f"read {tmp_path}: is a directory"
    assert error_of(tmp_path / "none") == f"open {tmp_path}/none: no such file or directory"
    assert error_of(f"{tmp_path}/{'x' * 300}").endswith(f": {os.strerror(errno.ENAMETOOLONG).lower()}")


def test_signature_differs_after_a_file_was_written_or_replaced(tmp_path: Path, pipe: Path) -> None:
    path, link, other = tmp_path / "file", tmp_path / "link", tmp_path / "other"
    path.write_bytes(b"a")
    other.write_bytes(b"a")
    link.symlink_to(path)
    before = signature(str(link))
    assert signature(str(path)) == before != signature(str(other))
    path.write_bytes(b"ab")
    assert signature(str(link)) != before
    assert signature(str(pipe)) == ()
