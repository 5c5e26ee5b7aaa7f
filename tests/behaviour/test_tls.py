"""TLS in its details: certificate files, versions and suites in the statistics, chains, sessions (NSQD-COMPAT 1.4, 2.6,
5.3). What each policy admits is in test_upgrades.py, handshakes that fail are in test_tls_handshakes.py."""

import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa, x25519
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from OpenSSL import SSL

from gnsqd.shared.client import tls_context
from kit.auth_server import EVERYTHING, AuthServer, grant, query
from kit.certificates import Identity, issue
from kit.daemons import Instance, eventually, run_to_end
from kit.nsq_client import NSQClient, sized
from kit.traffic import DaemonFactory
from kit.upgraded_client import UpgradedClient, tls_client_context

pytestmark = pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")

KeyPair = tuple[str, str]


@pytest.fixture(scope="module")
def pem_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes certificate and key files, good and bad."""
    directory = tmp_path_factory.mktemp("pem")
    pkcs8, no_password = PrivateFormat.PKCS8, NoEncryption()
    server = issue("server")
    server.write(directory / "good")
    issue("other").write(directory / "other")
    issue("expired", expired=True).write(directory / "expired")
    issue("ed25519", key=ed25519.Ed25519PrivateKey.generate()).write(directory / "ed25519")
    rsa_key = rsa.generate_private_key(65537, 2048)
    issue("rsa", key=rsa_key).write(directory / "rsa")
    numbers = rsa_key.private_numbers()
    inconsistent = rsa.RSAPrivateNumbers(
        numbers.p, numbers.q, numbers.d + 2, numbers.dmp1 + 2, numbers.dmq1, numbers.iqmp, numbers.public_numbers
    ).private_key(unsafe_skip_rsa_key_validation=True)
    unversioned = server.der.replace(b"\xa0\3\2\1\2", b"\xa0\3\2\1\x4d", 1)
    sec1 = server.key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, no_password)
    files = {
        "both.pem": server.cert_pem + server.key_pem,
        # As `openssl ecparam -genkey` writes it; the block names P-256.
        "parameters.key": b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n" + sec1,
        "encrypted.key": server.key.private_bytes(Encoding.PEM, pkcs8, BestAvailableEncryption(b"x")),
        "x25519.key": x25519.X25519PrivateKey.generate().private_bytes(Encoding.PEM, pkcs8, no_password),
        "inconsistent.key": inconsistent.private_bytes(Encoding.PEM, pkcs8, no_password),
        "garbage.pem": b"garbage\n",
        "hollow.crt": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "hollow.key": b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        "mixed.crt": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
        + ssl.DER_cert_to_PEM_cert(unversioned).encode()
        + server.cert_pem,
    }
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


def tls_flags(directory: Path, cert: str, key: str, roots: str = "") -> list[str]:
    files = {"cert": cert, "key": key, "root-ca-file": roots}
    return ["--https-address=", *(f"--tls-{name}={directory}/{file}" for name, file in files.items() if file)]


GOOD_FILES = [
    ("both.pem", "both.pem", ""),
    ("good.crt", "parameters.key", ""),
    ("ed25519.crt", "ed25519.key", ""),
    ("rsa.crt", "rsa.key", ""),
    ("good.crt", "good.key", "mixed.crt"),
    ("expired.crt", "expired.key", "expired.crt"),
]


@pytest.mark.parametrize("files", GOOD_FILES, ids="+".join)
def test_key_pair_that_is_good(nsqd_factory: DaemonFactory, pem_files: Path, files: tuple[str, str, str]) -> None:
    nsqd = nsqd_factory(*tls_flags(pem_files, *files))
    UpgradedClient(nsqd.tcp_address, tls_client_context(), tls_v1=True).close()


ABSENT = "open {}/absent: no such file or directory"
BAD_FILES = [
    (("absent", "good.key", ""), ABSENT),
    (("good.crt", "absent", ""), ABSENT),
    (("good.crt", "", ""), "open : no such file or directory"),
    (("", "good.key", ""), "open : no such file or directory"),
    (("good.crt/x", "good.key", ""), "open {}/good.crt/x: not a directory"),
    ((".", "good.key", ""), "read {}/.: is a directory"),
    (("garbage.pem", "good.key", ""), "tls: failed to find any PEM data in certificate input"),
    (("good.crt", "garbage.pem", ""), "tls: failed to find any PEM data in key input"),
    (("good.crt", "good.crt", ""), "tls: found a certificate rather than a key in the PEM for the private key"),
    (("good.crt", "other.key", ""), "tls: private key does not match public key"),
    (("good.crt", "encrypted.key", ""), "tls: failed to parse private key"),
    (("good.crt", "hollow.key", ""), "tls: failed to parse private key"),
    (("rsa.crt", "inconsistent.key", ""), "tls: failed to parse private key"),
    (("good.crt", "x25519.key", ""), "tls: found unknown private key type in PKCS#8 wrapping"),
    (("good.crt", "good.key", "absent"), ABSENT),
    (("good.crt", "good.key", "garbage.pem"), "failed to append certificate to pool"),
    (("good.crt", "good.key", "hollow.crt"), "failed to append certificate to pool"),
]


def test_key_pair_that_is_refused_at_start(daemon_command: list[str], pem_files: Path, tmp_path: Path) -> None:
    for files, reason in BAD_FILES:
        result = run_to_end(daemon_command, *tls_flags(pem_files, *files), cwd=tmp_path)
        line = f"failed to instantiate nsqd - failed to build TLS config - {reason.format(pem_files)}"
        assert (result.returncode, result.stderr.rpartition(" FATAL: ")[2]) == (1, f"{line}\n"), files


# In the statistics


def shown(nsqd: Instance, topic: str) -> tuple[str, str]:
    """Returns version and suite of the one client that is subscribed to the topic, or soon will be."""
    (stats,) = eventually(lambda: nsqd.channel_stats(topic, "c").get("clients"))
    return stats["tls_version"], stats["tls_cipher_suite"]


@pytest.fixture(scope="module")
def nsqd(module_factory: DaemonFactory, pem_files: Path) -> Instance:
    return module_factory(*tls_flags(pem_files, "good.crt", "good.key"))


SUITES = {
    "tls1.0": "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "tls1.1": "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "tls1.2": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "tls1.3": "Unknown 4865",
}


@pytest.mark.parametrize(("version", "suite"), SUITES.items(), ids=SUITES)
def test_version_and_the_daemons_choice_of_suites_are_shown(
    nsqd: Instance, topic: str, version: str, suite: str
) -> None:
    with UpgradedClient(nsqd.tcp_address, tls_client_context(version), tls_v1=True) as client:
        client.subscribe(topic, "c")
        assert shown(nsqd, topic) == (version.upper(), suite)


# What the real nsqd's statistics know by name, of the suites that OpenSSL still has.
NAMED_SUITES = {
    0xC02B: "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    0xC02F: "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    0xC009: "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    0xC00A: "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    0xC013: "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    0xC014: "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    0x002F: "TLS_RSA_WITH_AES_128_CBC_SHA",
    0x0035: "TLS_RSA_WITH_AES_256_CBC_SHA",
}


@pytest.mark.parametrize(("key", "count"), [("good", 5), ("rsa", 9)])
def test_every_suite_is_shown_by_its_name_or_number(
    module_factory: DaemonFactory, pem_files: Path, key: str, count: int
) -> None:
    nsqd = module_factory(*tls_flags(pem_files, f"{key}.crt", f"{key}.key"))
    context, seen = tls_client_context("tls1.2"), []
    context.set_ciphers("ALL:@SECLEVEL=0")
    for cipher in context.get_ciphers():
        if cipher["protocol"] == "TLSv1.3":
            continue
        number, topic = cipher["id"] & 0xFFFF, f"suite{cipher['id']}"
        context.set_ciphers(f"{cipher['name']}:@SECLEVEL=0")
        try:
            client = UpgradedClient(nsqd.tcp_address, context, tls_v1=True)
        except (ssl.SSLError, ConnectionError):  # not offered, or not by this client without more settings
            continue
        with client:
            client.subscribe(topic, "c")
            assert shown(nsqd, topic) == ("TLS1.2", NAMED_SUITES.get(number, f"Unknown {number}"))
        seen.append(number)
    assert len(seen) == count, seen


def ask_for_tls(nsqd: Instance) -> NSQClient:
    client = NSQClient(nsqd.tcp_address)
    assert b'"tls_v1":true' in client.identify(feature_negotiation=True, tls_v1=True).data
    return client


def openssl_handshake(nsqd: Instance, context: SSL.Context) -> SSL.Connection:
    """Connects with pyOpenSSL, which has settings that the standard library lacks."""
    sock = ask_for_tls(nsqd).sock
    sock.settimeout(None)
    connection = SSL.Connection(context, sock)
    connection.set_connect_state()
    connection.do_handshake()
    return connection


@pytest.mark.parametrize(
    ("suite", "number"), [("TLS_AES_256_GCM_SHA384", 4866), ("TLS_CHACHA20_POLY1305_SHA256", 4867)]
)
def test_suites_of_tls13_are_shown_by_number(nsqd: Instance, topic: str, suite: str, number: int) -> None:
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_tls13_ciphersuites(suite.encode())
    connection = openssl_handshake(nsqd, context)
    connection.sendall(f"SUB {topic} c\n".encode())
    assert shown(nsqd, topic) == ("TLS1.3", f"Unknown {number}")
    connection.close()


# Chains and sessions


def shake_hands(nsqd: Instance, context: ssl.SSLContext, session: Any = None) -> ssl.SSLSocket:
    """Returns the connection when it has received the first frame: the tickets of TLS 1.3 come before it."""
    client = ask_for_tls(nsqd)
    client.sock = sock = context.wrap_socket(client.sock, server_hostname="localhost", session=session)
    assert client.response() == b"OK"
    return sock


@pytest.fixture(scope="module")
def authority() -> Identity:
    return issue("authority", authority=True)


@pytest.mark.parametrize("length", [1, 80])
def test_chain_behind_the_certificate_is_sent(
    module_factory: DaemonFactory, authority: Identity, tmp_path: Path, length: int
) -> None:
    # A chain may be longer than a record of TLS.
    chain = [issue("intermediate 0", authority, authority=True)]
    chain += [issue(f"intermediate {number}", authority, authority=True) for number in range(1, length)]
    assert (sum(len(link.certificate.tbs_certificate_bytes) for link in chain) > 16384) == (length > 1)
    issue("server", chain[0]).write(tmp_path / "chain", *chain)
    nsqd = module_factory(*tls_flags(tmp_path, "chain.crt", "chain.key"))
    shake_hands(nsqd, tls_context(authority.write(tmp_path / "authority")[0], None, None, True)).close()


def test_sessions_are_kept_by_clients_alone(nsqd: Instance) -> None:
    context = tls_client_context("tls1.2")
    context.options |= ssl.OP_NO_TICKET
    with shake_hands(nsqd, context) as first, shake_hands(nsqd, context, first.session) as again:
        assert not again.session_reused


@pytest.fixture(scope="module")
def intermediate(authority: Identity) -> Identity:
    return issue("intermediate", authority, authority=True)


@pytest.fixture(scope="module")
def auth_server() -> Iterator[AuthServer]:
    with AuthServer(grant(EVERYTHING)) as server:
        yield server


@pytest.fixture(scope="module", params=["require", "require-verify"])
def trusting(
    request: pytest.FixtureRequest,
    module_factory: DaemonFactory,
    pem_files: Path,
    intermediate: Identity,
    auth_server: AuthServer,
) -> Instance:
    """Starts a daemon whose root is an intermediate."""
    (pem_files / "intermediate.crt").write_bytes(b"comment\n" + intermediate.cert_pem)
    flags = tls_flags(pem_files, "good.crt", "good.key", "intermediate.crt")
    flags.append(f"--auth-http-address={auth_server.address}")
    return module_factory(*flags, f"--tls-client-auth-policy={request.param}")


@pytest.mark.parametrize("version", ["tls1.2", "tls1.3"])
def test_sessions_with_a_certificate_are_resumed_and_have_its_name(
    trusting: Instance, auth_server: AuthServer, intermediate: Identity, tmp_path: Path, version: str
) -> None:
    context = tls_client_context(version, issue("below", intermediate).write(tmp_path / "below"))
    with shake_hands(trusting, context) as first, shake_hands(trusting, context, first.session) as again:
        assert (first.session_reused, again.session_reused) == (False, True)
        for sock in (first, again):
            sock.sendall(b"AUTH\n" + sized(b"secret"))
            assert b"permission_count" in sock.recv(65536)
    assert [query(target)["common_name"] for target in auth_server.targets[-2:]] == ["below"] * 2


@pytest.mark.parametrize("version", [SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION])
def test_authorities_are_named_to_the_client(trusting: Instance, intermediate: Identity, version: int) -> None:
    identity, context = issue("below", intermediate), SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_max_proto_version(version)
    context.use_certificate(identity.certificate)
    context.use_privatekey(identity.key)
    connection = openssl_handshake(trusting, context)
    assert [name.CN for name in connection.get_client_ca_list()] == ["intermediate"]
    connection.close()


@pytest.mark.parametrize("version", ["tls1.2", "tls1.3"])
def test_expired_certificate_is_refused_where_it_is_verified(
    trusting: Instance, intermediate: Identity, tmp_path: Path, version: str
) -> None:
    context = tls_client_context(version, issue("late", intermediate, expired=True).write(tmp_path / "late"))
    if "--tls-client-auth-policy=require" in trusting.flags:
        shake_hands(trusting, context).close()
        return
    with pytest.raises((ssl.SSLError, ConnectionError)):
        shake_hands(trusting, context)
    eventually(lambda: re.search(r" - tls: failed to verify (client )?certificate", trusting.log()))


def test_roots_are_the_systems_without_a_file(
    nsqd_factory: DaemonFactory, pem_files: Path, authority: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", authority.write(tmp_path / "authority")[0])
    nsqd = nsqd_factory(*tls_flags(pem_files, "good.crt", "good.key"), "--tls-client-auth-policy=require-verify")
    for version in ("tls1.2", "tls1.3"):
        shake_hands(nsqd, tls_client_context(version, issue("c", authority).write(tmp_path / "signed"))).close()
        with pytest.raises((ssl.SSLError, ConnectionError)):
            shake_hands(nsqd, tls_client_context(version, issue("c").write(tmp_path / "unsigned")))
