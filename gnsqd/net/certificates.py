"""The certificates of a daemon: when they expire, and what new connections use once their files have changed.

Programs that renew certificates replace files one after the other, or the directory that a link names, so changed files
are read when they have stayed the same for a second. If they cannot be used, what was read before stays. Established
connections keep what they began with. A thread reads, as a file system may be slow.
"""

from collections.abc import Callable
from time import gmtime, strftime, time
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from gevent import get_hub
from gevent.event import Event

from gnsqd.log import Logger
from gnsqd.net.tls import ServerContext, TLSLayer, build_context, read_client_roots
from gnsqd.options import Options
from gnsqd.shared.config_file import signature
from gnsqd.shared.errors import StartError

_WARN_SECONDS = 24 * 3600.0  # before a certificate expires


class Loaded(NamedTuple):
    """The contents of the files that `options` name: the context of client connections, None without a certificate, and
    the roots that verify servers, none for the system's."""

    options: Options
    context: ServerContext | None
    roots: list[x509.Certificate]

    @property
    def roots_der(self) -> bytes:
        """The roots one after the other."""
        return b"".join(root.public_bytes(Encoding.DER) for root in self.roots)

    def expiries(self) -> dict[str, float]:
        """Returns when each file expires, in Unix seconds: that of the certificate when the first of its chain does,
        that of the roots when the next does, since an expired root matters only if there are no others."""
        expiries, now = {}, time()
        if self.context is not None:
            expiries[self.options.tls_cert] = min(it.not_valid_after_utc.timestamp() for it in self.context.chain)
        if self.roots:
            ends = [root.not_valid_after_utc.timestamp() for root in self.roots]
            next_end = min((end for end in ends if end > now), default=max(ends))
            expiries.setdefault(self.options.tls_root_ca_file, next_end)  # it may be the same file
        return expiries

    def expired(self) -> list[str]:
        """Returns a text for each file that has expired."""
        ends = self.expiries().items()
        return [f"a certificate in {path} expired at {_shown(end)}" for path, end in ends if end <= time()]

    def __str__(self) -> str:
        return ", ".join(f"{path} until {_shown(end)}" for path, end in self.expiries().items())


class Certificates:
    """Owns what was loaded last; `note_roots` is called when that changes."""

    def __init__(self, options: Options, log: Logger) -> None:
        """Reads the files; raises StartError."""
        self.note_roots: Callable[[bytes], object] = len
        self._options = options
        self._log = log
        self._paths = list(filter(None, (options.tls_cert, options.tls_key, options.tls_root_ca_file)))
        self._warned: dict[str, tuple[float, str]] = {}
        self._read = self._seen = self._signatures()
        self.loaded = self._load()

    def new_layer(self) -> TLSLayer:
        """Returns the layer of a new connection; there is a certificate."""
        assert self.loaded.context is not None
        return TLSLayer(self.loaded.context)

    def certificate_loop(self, exit: Event) -> None:
        """Warns before certificates expire, and loads changed files, until `exit` is set. Yields to the hub."""
        while True:
            self.warn()
            if exit.wait(1.0):
                return
            match get_hub().threadpool.apply(self.load_changed):
                case Loaded() as loaded:
                    self.loaded = loaded
                    self.note_roots(loaded.roots_der)
                    self._log.info("TLS: loaded changed certificates, valid: %s", loaded)
                case StartError() as error:
                    self._log.error("TLS: %s; the certificates loaded before stay, valid: %s", error, self.loaded)

    def _load(self) -> Loaded:
        return Loaded(self._options, build_context(self._options), read_client_roots(self._options))

    def load_changed(self) -> Loaded | StartError | None:
        """Returns what is in the files, or why it cannot be used; None if they have not changed, or still change."""
        before, self._seen = self._seen, self._signatures()
        if self._seen == self._read or self._seen != before:
            return None
        self._read = self._seen
        try:
            return self._load()
        except StartError as error:
            return error

    def _signatures(self) -> list[tuple[int, ...]]:
        signatures = []
        for path in self._paths:
            try:
                signatures.append(signature(path))
            except OSError as error:
                signatures.append((error.errno or 0,))
        return signatures

    def warn(self) -> None:
        """Logs once what has expired, or will within a day."""
        now = time()
        for path, end in self.loaded.expiries().items():
            word = "expired" if end <= now else "expires" if end <= now + _WARN_SECONDS else ""
            if word and self._warned.get(path) != (end, word):
                self._warned[path] = end, word
                self._log.warn("TLS: a certificate in %s %s at %s", path, word, _shown(end))


def _shown(end: float) -> str:
    return strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(end))
