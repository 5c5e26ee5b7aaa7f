"""The expiry of files of certificates, by a clock of the test, and what is loaded when the files change."""

from functools import partial
from io import StringIO
from pathlib import Path

import pytest

from gnsqd.log import Level, Logger
from gnsqd.net import certificates
from gnsqd.net.certificates import Certificates, Loaded
from gnsqd.options import Options
from gnsqd.shared.errors import StartError
from kit.certificates import Identity, issue

DAY = 24 * 3600


def replace(path: str, data: bytes) -> None:
    """Writes another file and renames it: to one that is written again soon, some file systems give the same time."""
    Path(f"{path}.new").write_bytes(data)
    Path(f"{path}.new").rename(path)


class Watched(Certificates):
    """The certificates of files that the test writes, with their log."""

    def __init__(self, directory: Path, *chain: Identity, roots: tuple[Identity, ...] = ()) -> None:
        self.cert, self.key = chain[0].write(directory / "server", *chain[1:])
        self.roots = str(directory / "roots") if roots else ""
        if roots:
            Path(self.roots).write_bytes(b"".join(root.cert_pem for root in roots))
        self.stream = StringIO()
        options = Options(tls_cert=self.cert, tls_key=self.key, tls_root_ca_file=self.roots)
        super().__init__(options, Logger("", Level.INFO, self.stream))


def test_file_expires_with_the_first_of_its_chain_and_with_the_next_of_its_roots(tmp_path: Path) -> None:
    authority = issue("authority", authority=True, days=20)
    intermediate = issue("intermediate", authority, authority=True, days=10)
    past, near, far = issue("past", expired=True), issue("near", days=5), issue("far", days=50)
    watched = Watched(tmp_path, issue("server", intermediate), intermediate, authority, roots=(far, past, near))
    ends = {watched.cert: intermediate.end.timestamp(), watched.roots: near.end.timestamp()}
    assert (watched.loaded.expiries(), watched.loaded.expired()) == (ends, [])
    expired = Watched(tmp_path, issue("server"), past, roots=(past,)).loaded.expired()
    assert expired == [f"a certificate in {it} expired at {past.end:%FT%TZ}" for it in (watched.cert, watched.roots)]


def test_warnings_come_a_day_before_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = issue("server")
    watched = Watched(tmp_path, server)
    subject = f"WARNING: TLS: a certificate in {watched.cert}"
    texts = [f"{subject} {word} at {server.end:%FT%TZ}" for word in ("expires", "expired")]
    for after, lines in ((-DAY - 1, []), (-DAY, texts[:1]), (-1, texts[:1]), (0, texts), (9, texts)):
        monkeypatch.setattr(certificates, "time", partial(float, server.end.timestamp() + after))
        watched.warn()
        assert [line[27:] for line in watched.stream.getvalue().splitlines()] == lines


def test_files_are_read_once_they_do_not_change_any_more(tmp_path: Path) -> None:
    watched, new = Watched(tmp_path, issue("old")), issue("new")
    assert watched.load_changed() is None
    replace(watched.key, new.key_pem)
    assert watched.load_changed() is None
    replace(watched.cert, new.cert_pem)
    assert watched.load_changed() is None
    assert isinstance(watched.load_changed(), Loaded)
    Path(watched.cert).unlink()
    assert watched.load_changed() is None
    error = watched.load_changed()
    assert isinstance(error, StartError)
    assert str(error) == f"failed to build TLS config - open {watched.cert}: no such file or directory"
    assert watched.load_changed() is None
