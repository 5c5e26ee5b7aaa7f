"""A daemon whose certificates are replaced while it runs, and one that starts with expired ones."""

import re
import ssl
from pathlib import Path
from threading import Event, Thread

import pytest

from kit.certificates import issue
from kit.daemons import DEADLINE, Instance, eventually, open_socket
from kit.traffic import DaemonFactory
from kit.upgraded_client import UpgradedClient, tls_client_context

pytestmark = pytest.mark.one_lane

MISMATCH = "tls: private key does not match public key; the certificates loaded before stay, valid"


def served(nsqd: Instance, client: tuple[str, str]) -> set[bytes | None]:
    """Returns the certificates, in DER, that a new client of TCP and one of HTTPS get; ssl.SSLError if the daemon
    refuses that of the client."""
    context = tls_client_context(None, client)
    with UpgradedClient(nsqd.tcp_address, context, tls_v1=True) as tcp:
        assert isinstance(tcp.sock, ssl.SSLSocket)
        of_tcp = tcp.sock.getpeercert(True)
    port = int(re.findall(r" INFO: HTTPS: listening on 127\.0\.0\.1:(\d+)\n", nsqd.log())[0])
    with context.wrap_socket(open_socket(("127.0.0.1", port), DEADLINE)) as https:
        https.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
        assert https.recv(12) == b"HTTP/1.0 200"
        return {of_tcp, https.getpeercert(True)}


def expiries(nsqd: Instance) -> list[tuple[str, float]]:
    """Returns those in /metrics, with their files."""
    pattern = r'^gnsqd_certificate_not_after_timestamp_seconds{file="(.*)"} (.*)$'
    page = nsqd.http("GET", "/metrics")[2].decode()
    return [(path, float(end)) for path, end in re.findall(pattern, page, re.MULTILINE)]


class Generation:
    """An authority with a server and a client, whose files are in a directory."""

    def __init__(self, directory: Path, days: float) -> None:
        directory.mkdir()
        self.authority = issue("authority", authority=True, days=days + 1)
        self.server = issue("server", self.authority, days=days)
        self.authority.write(directory / "authority")
        self.server.write(directory / "server")
        self.client = issue("client", self.authority).write(directory / "client")


def test_new_connections_get_what_replaced_the_files_and_others_stay(
    gnsqd_factory: DaemonFactory, tmp_path: Path
) -> None:
    old, new = Generation(tmp_path / "old", 10), Generation(tmp_path / "new", 20)
    current = tmp_path / "current"
    current.symlink_to("old")
    cert, key, roots = (f"{current}/{name}" for name in ("server.crt", "server.key", "authority.crt"))
    files = (f"--tls-cert={cert}", f"--tls-key={key}", f"--tls-root-ca-file={roots}", "--https-address=127.0.0.1:0")
    nsqd = gnsqd_factory(*files, "--tls-client-auth-policy=require-verify", "--tls-required=tcp-https")
    count, stop = 0, Event()

    def publish_until_stopped() -> None:
        nonlocal count
        while not stop.wait(0.01):
            publisher.publish("t", b"x")
            count += 1

    context = tls_client_context(None, old.client)
    with UpgradedClient(nsqd.tcp_address, context, tls_v1=True, heartbeat_interval=-1) as publisher:
        thread = Thread(target=publish_until_stopped)
        thread.start()
        try:
            # The key has been replaced, and the certificate not yet.
            (tmp_path / "key").write_bytes(new.server.key_pem)
            (tmp_path / "key").rename(tmp_path / "old" / "server.key")
            ends = f"{cert} until {old.server.end:%FT%T}Z, {roots} until {old.authority.end:%FT%T}Z"
            eventually(lambda: f" ERROR: TLS: failed to build TLS config - {MISMATCH}: {ends}\n" in nsqd.log())
            assert served(nsqd, old.client) == {old.server.der}
            assert expiries(nsqd) == [(cert, old.server.end.timestamp()), (roots, old.authority.end.timestamp())]
            # A volume of Kubernetes: the link to the directory is replaced.
            (tmp_path / "next").symlink_to("new")
            (tmp_path / "next").rename(current)
            eventually(lambda: f" INFO: TLS: loaded changed certificates, valid: {cert} until " in nsqd.log())
            assert served(nsqd, new.client) == {new.server.der}
            with pytest.raises(ssl.SSLError):
                served(nsqd, old.client)
            assert expiries(nsqd) == [(cert, new.server.end.timestamp()), (roots, new.authority.end.timestamp())]
            before = count
            eventually(lambda: count > before, "published on the old connection")
        finally:
            stop.set()
            thread.join()
    assert nsqd.topic_stats("t")["message_count"] == count
    assert re.findall(r" (ERROR|INFO|WARNING): TLS: ", nsqd.log()) == ["ERROR", "INFO"]


def test_expired_certificate_serves_with_a_warning(gnsqd_factory: DaemonFactory, tmp_path: Path) -> None:
    server, root = issue("server", expired=True), issue("root", days=0.9)
    (cert, key), (roots, _) = server.write(tmp_path / "server"), root.write(tmp_path / "root")
    files = (f"--tls-cert={cert}", f"--tls-key={key}", f"--tls-root-ca-file={roots}", "--https-address=127.0.0.1:0")
    nsqd = gnsqd_factory(*files)
    warnings = eventually(lambda: re.findall(r" WARNING: TLS: a certificate in (.*) (.*) at (.*)Z\n", nsqd.log()))
    assert warnings == [(cert, "expired", f"{server.end:%FT%T}"), (roots, "expires", f"{root.end:%FT%T}")]
    assert served(nsqd, (cert, key)) == {server.der}
