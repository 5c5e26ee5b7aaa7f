"""Starting with certificate files, good and bad: the same cases for our context and for the real nsqd."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa, x25519
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from gnsqd.errors import StartError
from gnsqd.net.tls import build_context
from gnsqd.options import Options, validate
from kit.certificates import issue
from kit.daemons import Daemon, StartFailed


def start_error(options: Options) -> str | None:
    try:
        validate(options)
        build_context(options)
    except StartError as error:
        return error.line
    return None


@pytest.fixture(scope="module")
def pem_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of certificate and key files, good and bad."""
    directory = tmp_path_factory.mktemp("pem")
    pkcs8, no_password = PrivateFormat.PKCS8, NoEncryption()
    server = issue("server")
    server.write(directory / "good")
    issue("other").write(directory / "other")
    issue("ed25519", key=ed25519.Ed25519PrivateKey.generate()).write(directory / "ed25519")
    issue("rsa", key=rsa.generate_private_key(65537, 2048)).write(directory / "rsa")
    sec1 = server.key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, no_password)
    files = {
        "both.pem": server.cert_pem + server.key_pem,
        # As `openssl ecparam -genkey` writes it; the block names P-256.
        "parameters.key": b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n" + sec1,
        "encrypted.key": server.key.private_bytes(Encoding.PEM, pkcs8, BestAvailableEncryption(b"x")),
        "x25519.key": x25519.X25519PrivateKey.generate().private_bytes(Encoding.PEM, pkcs8, no_password),
        "garbage.pem": b"garbage\n",
        "hollow.crt": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "hollow.key": b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        "mixed.crt": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n" + server.cert_pem,
    }
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


NSQD = "failed to instantiate nsqd - "
BUILD = f"{NSQD}failed to build TLS config - "
START_CASES = [
    (dict(cert="good.crt", key="good.key"), None),
    (dict(cert="both.pem", key="both.pem"), None),
    (dict(cert="good.crt", key="parameters.key"), None),
    (dict(cert="ed25519.crt", key="ed25519.key"), None),
    (dict(cert="rsa.crt", key="rsa.key"), None),
    (dict(cert="good.crt", key="good.key", root_ca_file="mixed.crt"), None),
    (dict(cert="absent", key="good.key"), f"{BUILD}open {{}}/absent: no such file or directory"),
    (dict(cert="good.crt", key="absent"), f"{BUILD}open {{}}/absent: no such file or directory"),
    (dict(cert="good.crt/x", key="good.key"), f"{BUILD}open {{}}/good.crt/x: not a directory"),
    (dict(cert=".", key="good.key"), f"{BUILD}read {{}}/.: is a directory"),
    (dict(cert="good.crt"), f"{BUILD}open : no such file or directory"),
    (dict(key="good.key"), f"{BUILD}open : no such file or directory"),
    (dict(cert="garbage.pem", key="good.key"), f"{BUILD}tls: failed to find any PEM data in certificate input"),
    (dict(cert="good.crt", key="garbage.pem"), f"{BUILD}tls: failed to find any PEM data in key input"),
    (
        dict(cert="good.crt", key="good.crt"),
        f"{BUILD}tls: found a certificate rather than a key in the PEM for the private key",
    ),
    (dict(cert="good.crt", key="other.key"), f"{BUILD}tls: private key does not match public key"),
    (dict(cert="good.crt", key="encrypted.key"), f"{BUILD}tls: failed to parse private key"),
    (dict(cert="good.crt", key="hollow.key"), f"{BUILD}tls: failed to parse private key"),
    (dict(cert="good.crt", key="x25519.key"), f"{BUILD}tls: found unknown private key type in PKCS#8 wrapping"),
    (
        dict(cert="good.crt", key="good.key", root_ca_file="absent"),
        f"{BUILD}open {{}}/absent: no such file or directory",
    ),
    (dict(cert="good.crt", key="good.key", root_ca_file="garbage.pem"), f"{BUILD}failed to append certificate to pool"),
    (dict(cert="good.crt", key="good.key", root_ca_file="hollow.crt"), f"{BUILD}failed to append certificate to pool"),
    (dict(client_auth_policy="require"), f"{NSQD}cannot require TLS client connections without TLS key and cert"),
    ({}, None),
]
start_cases = pytest.mark.parametrize(
    ("files", "line"), START_CASES, ids=["+".join(files.values()) or "none" for files, _ in START_CASES]
)


def tls_flags(files: dict[str, str], directory: Path) -> dict[str, str]:
    """`files` as values of the tls options; a policy is not a file."""
    return {name: value if name == "client_auth_policy" else f"{directory}/{value}" for name, value in files.items()}


@start_cases
def test_start_with_certificate_files(pem_files: Path, files: dict[str, str], line: str | None) -> None:
    options = Options()
    for name, value in tls_flags(files, pem_files).items():
        setattr(options, f"tls_{name}", value)
    assert start_error(options) == (line and line.format(pem_files))


@pytest.mark.peer
@start_cases
def test_start_texts_are_those_of_the_real_nsqd(
    pem_files: Path, files: dict[str, str], line: str | None, peer_binary: Callable[[str], Path], tmp_path: Path
) -> None:
    values = tls_flags(files, pem_files)
    flags = ["--https-address=", *(f"--tls-{name.replace('_', '-')}={value}" for name, value in values.items())]
    daemon = Daemon([str(peer_binary("nsqd"))], tmp_path / "data", *flags)
    try:
        with daemon:
            found = None
    except StartFailed:
        match = re.search(r"FATAL: (.*)", daemon.log())
        found = match and match[1]
    assert found == (line and line.format(pem_files))
