"""Certificates for tests, made when a test needs them: authorities, what they sign, and PEM files of both.

Keys are P-256 unless a test brings another one, because those take no time to make.
"""

import datetime
import hashlib
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


class Identity(NamedTuple):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: Key

    @property
    def cert_pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def end(self) -> datetime.datetime:
        return self.certificate.not_valid_after_utc

    def write(self, path: Path, *chain: "Identity") -> tuple[str, str]:
        """Files `{path}.crt`, with the certificates of `chain` behind its own, and `{path}.key`."""
        cert, key = path.with_suffix(".crt"), path.with_suffix(".key")
        cert.write_bytes(self.cert_pem + b"".join(link.cert_pem for link in chain))
        key.write_bytes(self.key_pem)
        return str(cert), str(key)


def issue(
    common_name: str,
    issuer: Identity | None = None,
    *,
    authority: bool = False,
    expired: bool = False,
    days: float = 30,
    key: Key | None = None,
) -> Identity:
    """Issues a certificate for use on 127.0.0.1, or of an authority, valid for `days`; self-signed without an
    `issuer`."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer.certificate.subject if issuer else name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 3 * day)
        .not_valid_after(now - day if expired else now + days * day)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if not authority:
        builder = builder.add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        ).add_extension(
            x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
    signer = issuer.key if issuer else key
    algorithm = None if isinstance(signer, ed25519.Ed25519PrivateKey) else SHA256()
    return Identity(builder.sign(signer, algorithm), key)


_SHA256_WITH_RSA = bytes.fromhex("2a864886f70d01010b")  # its OID; those of the others end with another byte
_WEAK = {
    "md5": (4, bytes.fromhex("3020300c06082a864886f70d020505000410")),
    "sha1": (5, bytes.fromhex("3021300906052b0e03021a05000414")),
}


def sign_weakly(identity: Identity, issuer: Identity, algorithm: str) -> Identity:
    """Signs it again by `issuer`, which has an RSA key: PKCS #1 by hand, as cryptography refuses."""
    assert isinstance(issuer.key, rsa.RSAPrivateKey)
    number, prefix = _WEAK[algorithm]
    oid = _SHA256_WITH_RSA[:-1] + bytes([number])
    der = identity.certificate.public_bytes(Encoding.DER).replace(_SHA256_WITH_RSA, oid)
    signed = identity.certificate.tbs_certificate_bytes.replace(_SHA256_WITH_RSA, oid)
    digest = prefix + hashlib.new(algorithm, signed).digest()
    size = issuer.key.key_size // 8
    padded = b"\0\1" + b"\xff" * (size - 3 - len(digest)) + b"\0" + digest
    private = issuer.key.private_numbers()
    signature = pow(int.from_bytes(padded), private.d, private.public_numbers.n).to_bytes(size)
    return Identity(x509.load_der_x509_certificate(der[:-size] + signature), identity.key)


def write_identities(directory: Path) -> dict[str, tuple[str, str]]:
    """Writes key pairs of an authority, a server, a client `known` to it, and an expired client `unknown` to it."""
    authority = issue("authority", authority=True)
    return {
        "authority": authority.write(directory / "authority"),
        "server": issue("server", authority).write(directory / "server"),
        "known": issue("known", authority).write(directory / "known"),
        "unknown": issue("unknown", expired=True).write(directory / "unknown"),
    }
