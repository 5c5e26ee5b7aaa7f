"""TLS handshakes: what is logged of failed and endless ones, and whose certificate it is, for the auth server.

The real daemon reports a failed handshake in plain bytes, into what its client takes for TLS; ours closes after TLS's
own alert (NSQD-COMPAT 0.1, item 14). All else is the same for both.
"""

import itertools
import re
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding

from kit.auth_server import EVERYTHING, AuthServer, grant, query
from kit.certificates import issue, sign_weakly
from kit.daemons import DEADLINE, Instance, address_of, eventually, is_readable, open_socket, own_command
from kit.nsq_client import HEARTBEAT, NSQClient, split_frames
from kit.traffic import DaemonFactory
from kit.upgraded_client import UpgradedClient, tls_client_context

pytestmark = pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")

KeyPair = tuple[str, str]

HALF_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the beginning of a ClientHello
NO_HANDSHAKE = "tls: first record does not look like a TLS handshake"


@pytest.fixture(scope="module")
def nsqd(module_factory: DaemonFactory, tls_flags: list[str]) -> Instance:
    return module_factory(*tls_flags)


@pytest.fixture(scope="module")
def verifying(module_factory: DaemonFactory, identities: dict[str, KeyPair], tls_flags: list[str]) -> Instance:
    roots = f"--tls-root-ca-file={identities['authority'][0]}"
    return module_factory(*tls_flags, roots, "--tls-client-auth-policy=require-verify", "--tls-min-version=tls1.2")


def addresses_of(client: NSQClient) -> tuple[str, str]:
    """Returns the client's and the daemon's."""
    own, peer = ("{}:{}".format(*name) for name in (client.sock.getsockname(), client.sock.getpeername()))
    return own, peer


def ask_for_tls(daemon: Instance, **fields: object) -> NSQClient:
    client = NSQClient(daemon.tcp_address)
    assert b'"tls_v1":true' in client.identify(feature_negotiation=True, tls_v1=True, **fields).data
    return client


def without_alerts(raw: bytes) -> bytes:
    while raw[:2] == b"\x15\x03":
        raw = raw[5 + int.from_bytes(raw[3:5]) :]
    return raw


def check_last_words(daemon: Instance, raw: bytes) -> None:
    """Checks that nothing but alerts comes from ours."""
    rest = without_alerts(raw)
    if daemon.command == own_command():
        assert rest == b""
    else:
        words = [data for _, data in split_frames(rest) if data != HEARTBEAT]
        assert all(data.startswith(b"E_IDENTIFY_FAILED IDENTIFY failed ") for data in words), words


def logged_failure(daemon: Instance, address: str) -> str:
    """Returns the reason why the handshake with `address` failed, which the log has twice.

    Only the last client of that address counts: the system gives a port out again.
    """
    text = "E_IDENTIFY_FAILED IDENTIFY failed (.*)"
    lines = re.compile(
        rf" ERROR: \[{address}\] - {text} - \1$(?s:.*) ERROR: client\({address}\) - {text}$", re.MULTILINE
    )

    def in_log() -> re.Match[str] | None:
        return lines.search(daemon.log().rpartition(f"TCP: new client({address})")[2])

    found = eventually(in_log, f"lines about {address}")
    assert found[1] == found[2]
    return found[1]


NO_HANDSHAKES = [
    (b"PUB t\n\0\0\0\1a", NO_HANDSHAKE),
    (b"GET / HTTP/1.1\r\n\r\n", NO_HANDSHAKE),
    (bytes(range(200, 256)), NO_HANDSHAKE),
    (bytes(100), NO_HANDSHAKE),
    (b"NOP\n" + HALF_HELLO, NO_HANDSHAKE),
    (b"\x16\x03\x01\x00\x05hello", "tls: "),
    (b"\x16\x03\x01\xff\xff" + bytes(100), "tls: "),  # a record that is too long
]


def test_input_other_than_a_handshake_closes_the_connection(nsqd: Instance) -> None:
    for sent, why in NO_HANDSHAKES:
        with ask_for_tls(nsqd) as client:
            address, _ = addresses_of(client)
            client.send(sent)
            check_last_words(nsqd, client.recv_until_closed())
        assert logged_failure(nsqd, address).startswith(why), sent


def test_handshake_is_cut_off_after_5_seconds_in_all(nsqd: Instance) -> None:
    # Whatever the client's heartbeat interval, and however it trickles in.

    def hang(fields: dict[str, int], sent: bytes, trickle: bool) -> None:
        began = time.monotonic()
        with ask_for_tls(nsqd, **fields) as client:
            address, nsqd_address = addresses_of(client)
            client.send(sent)
            while trickle and not is_readable(client.sock, 0.2):
                client.send(b"\0")
            check_last_words(nsqd, client.recv_until_closed())
            assert 4.9 < time.monotonic() - began < 15
            assert logged_failure(nsqd, address) == f"read tcp {nsqd_address}->{address}: i/o timeout"

    cases: list[tuple[dict[str, int], bytes, bool]] = [
        ({}, b"", False),
        ({}, HALF_HELLO, False),
        ({"heartbeat_interval": 1000}, HALF_HELLO, False),
        ({"heartbeat_interval": -1}, HALF_HELLO, False),
        ({}, HALF_HELLO, True),
    ]
    with ThreadPoolExecutor(len(cases)) as pool:
        for case in [pool.submit(hang, *case) for case in cases]:
            case.result()


def test_client_that_leaves_in_the_middle_is_forgotten(nsqd: Instance) -> None:
    for sent, reset in itertools.product((b"", HALF_HELLO), (False, True)):
        client = ask_for_tls(nsqd)
        address, nsqd_address = addresses_of(client)
        client.send(sent)
        client.reset() if reset else client.close()
        expected = f"read tcp {nsqd_address}->{address}: read: connection reset by peer" if reset else "EOF"
        assert logged_failure(nsqd, address).endswith(expected)


REFUSED = [
    ("none", "tls1.2", "tls: client didn't provide a certificate"),
    ("none", "tls1.3", "tls: client didn't provide a certificate"),
    ("unknown", "tls1.2", "tls: failed to ver"),
    ("unknown", "tls1.3", "tls: failed to ver"),
    ("known", "tls1.1", "tls: client offered only unsupported versions"),
]


@pytest.mark.parametrize(("who", "version", "why"), REFUSED)
def test_certificate_or_version_that_is_refused(
    verifying: Instance, identities: dict[str, KeyPair], who: str, version: str, why: str
) -> None:
    context = tls_client_context(version, identities.get(who))
    with ask_for_tls(verifying) as client:
        address, _ = addresses_of(client)
        with pytest.raises((ssl.SSLError, ConnectionError)) as caught, context.wrap_socket(client.sock) as sock:
            assert not sock.recv(1)
        if isinstance(caught.value, ssl.SSLError):  # not so if the daemon's end overtook its alert
            assert re.search("alert.*protocol.version" if who == "known" else "alert", str(caught.value), re.IGNORECASE)
    assert logged_failure(verifying, address).startswith(why)


def test_client_that_does_not_trust_the_daemon_says_so_in_the_log(nsqd: Instance) -> None:
    context = ssl.create_default_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with ask_for_tls(nsqd) as client:
        address, _ = addresses_of(client)
        with pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(client.sock, server_hostname="localhost")
    assert logged_failure(nsqd, address) == "remote error: tls: unknown certificate authority"


@pytest.mark.parametrize("version", ["tls1.2", "tls1.3"])
def test_plain_bytes_behind_the_handshake_close_the_connection(nsqd: Instance, version: str) -> None:
    with UpgradedClient(nsqd.tcp_address, tls_client_context(version), tls_v1=True) as client:
        address, _ = addresses_of(client)
        client.publish("upgraded#ephemeral", b"x")
        with socket.socket(fileno=client.sock.detach()) as sock:
            sock.settimeout(client.timeout)
            sock.sendall(b"PUB upgraded#ephemeral\n\0\0\0\1x")
            raw = b""
            while data := sock.recv(65536):
                raw += data
    assert raw[:1] in (b"\x15", b"\x17")  # an alert; since TLS 1.3 it looks like data
    assert b"E_" not in raw
    eventually(lambda: f"client({address}) - failed to read command - tls: " in nsqd.log())


# How it is signed


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> dict[str, KeyPair]:
    """Writes clients with their chains, by what is weak in it, and the authorities that the daemon trusts."""
    directory = tmp_path_factory.mktemp("chains")
    key = rsa.generate_private_key(65537, 2048)
    root = issue("root", authority=True, key=key)
    weak_root = sign_weakly(issue("weak root", authority=True, key=key), root, "sha1")
    weak_root = sign_weakly(weak_root, weak_root, "sha1")
    intermediate = issue("intermediate", root, authority=True, key=key)
    client = issue("client", root)
    behind = issue("client", intermediate)
    chains = {
        "nothing": (behind, intermediate),
        "root": (issue("client", weak_root),),
        "client-md5": (sign_weakly(client, root, "md5"),),
        "client-sha1": (sign_weakly(client, root, "sha1"),),
        "intermediate-sha1": (behind, sign_weakly(intermediate, root, "sha1")),
        "behind-sha1": (sign_weakly(behind, intermediate, "sha1"), intermediate),
        "roots": (root, weak_root),
    }
    return {name: first.write(directory / name, *rest) for name, (first, *rest) in chains.items()}


@pytest.fixture(scope="module")
def trusting(module_factory: DaemonFactory, tls_flags: list[str], chains: dict[str, KeyPair]) -> Instance:
    """Starts a daemon to which clients of TLS 1.0 may connect."""
    roots = f"--tls-root-ca-file={chains['roots'][0]}"
    return module_factory(*tls_flags, roots, "--tls-client-auth-policy=require-verify")


@pytest.mark.parametrize("version", ["tls1.0", "tls1.2", "tls1.3"])
@pytest.mark.parametrize("weak", ["nothing", "root"])
def test_chain_is_accepted_whatever_a_trusted_certificate_is_signed_with(
    trusting: Instance, chains: dict[str, KeyPair], weak: str, version: str
) -> None:
    with UpgradedClient(trusting.tcp_address, tls_client_context(version, chains[weak]), tls_v1=True) as client:
        client.publish("chains#ephemeral", b"x")


@pytest.mark.parametrize("version", ["tls1.0", "tls1.2", "tls1.3"])
@pytest.mark.parametrize("weak", ["client-md5", "client-sha1", "intermediate-sha1", "behind-sha1"])
def test_chain_with_a_weak_signature_is_refused(
    trusting: Instance, chains: dict[str, KeyPair], weak: str, version: str
) -> None:
    context = tls_client_context(version, chains[weak])
    found = re.search(r" HTTPS: listening on (.*)", trusting.log())
    assert found is not None
    with (
        open_socket(address_of(found[1]), DEADLINE) as sock,
        pytest.raises((ssl.SSLError, ConnectionError)) as caught,
        context.wrap_socket(sock) as upgraded,
    ):
        assert not upgraded.recv(1)
    if isinstance(caught.value, ssl.SSLError) and (weak, version) != ("client-md5", "tls1.3"):
        assert "alert unknown ca" in str(caught.value)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        UpgradedClient(trusting.tcp_address, context, tls_v1=True)


# Whose certificate it is


def element(tag: int, content: bytes) -> bytes:
    return bytes([tag, len(content)]) + content


def relative_name(kind: int, tag: int, value: bytes) -> bytes:
    """Returns one part of a subject in DER: `kind` is 3 for a common name, `tag` the type of string."""
    return element(0x31, element(0x30, element(6, bytes([0x55, 4, kind])) + element(tag, value)))


UTF8, PRINTABLE, T61, UNIVERSAL, BMP = 12, 19, 20, 28, 30
SUBJECTS: dict[str, tuple[bytes, str | None]] = {
    "utf-8": (relative_name(3, UTF8, "ключ".encode()), "ключ"),
    "bmp": (relative_name(3, BMP, "ключ".encode("utf-16-be")), "ключ"),
    "latin-1": (relative_name(3, T61, b"M\xfcller"), "Müller"),
    "asterisk": (relative_name(3, PRINTABLE, b"*.example.com"), "*.example.com"),
    "none": (relative_name(10, UTF8, b"organisation"), ""),
    "several": (relative_name(3, UTF8, b"one") + relative_name(10, UTF8, b"o") + relative_name(3, UTF8, b"two"), "two"),
    "odd-characters": (relative_name(3, UTF8, b"a&b=c%41 \0\n"), "a&b=c%41 \0\n"),
    "universal": (relative_name(3, UNIVERSAL, "ключ".encode("utf-32-be")), None),
    "no-ascii": (relative_name(3, PRINTABLE, b"M\xfcller"), None),
}


def key_pair_of(subject: bytes, path: Path) -> KeyPair:
    """Writes a certificate with that subject; its signature is wrong."""
    name = "x" * (len(subject) - len(relative_name(3, UTF8, b"")))
    identity = issue(name)
    plain = relative_name(3, UTF8, name.encode())
    der = identity.certificate.public_bytes(Encoding.DER)
    assert der.count(plain) == 2  # it is its own issuer
    cert, key = identity.write(path)
    Path(cert).write_text(ssl.DER_cert_to_PEM_cert(der.replace(plain, subject)))
    return cert, key


def test_common_name_reaches_the_auth_server_however_it_is_written(
    module_factory: DaemonFactory, tls_flags: list[str], tmp_path: Path
) -> None:
    with AuthServer(grant(EVERYTHING)) as auth_server:
        auth = f"--auth-http-address={auth_server.address}"
        daemon = module_factory(*tls_flags, "--tls-client-auth-policy=require", auth)
        for name, (subject, expected) in SUBJECTS.items():
            context = tls_client_context("tls1.2", key_pair_of(subject, tmp_path / name))
            auth_server.requests.clear()
            if expected is None:
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    UpgradedClient(daemon.tcp_address, context, tls_v1=True)
                continue
            with UpgradedClient(daemon.tcp_address, context, tls_v1=True) as client:
                client.command(b"AUTH", b"secret")
                client.response()
            (target,) = auth_server.targets
            assert query(target)["common_name"] == expected, name
            assert query(target)["tls"] == "true"
