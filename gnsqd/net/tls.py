"""TLS for clients: the context built from the flags, and the layer that upgrades one connection.

pyOpenSSL on memory BIOs, because the standard library's ssl cannot accept a client certificate without verifying it
(policy `require`), and because a sans-IO layer serves TCP and HTTPS alike. It offers the same as the real nsqd, from
one table. Facts: NSQD-COMPAT 1.4 (rows 5 to 7), 2.6, 5.3.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.bindings.openssl.binding import Binding
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL, crypto

from gnsqd.net.stream import StreamError, TLSError
from gnsqd.options import TLS_NOT_REQUIRED, TLS_VERSIONS, Options
from gnsqd.shared.config_file import describe_failure, read_config_file
from gnsqd.shared.errors import StartError

PrivateKey = RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey

# In order of preference: IANA number, OpenSSL's name, the name in statistics if they know one. Go's selection and
# order, without 3DES, which OpenSSL's usual builds lack.
_CIPHER_SUITES = (
    (0xC02B, "ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
    (0xC02F, "ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
    (0xC02C, "ECDHE-ECDSA-AES256-GCM-SHA384", None),
    (0xC030, "ECDHE-RSA-AES256-GCM-SHA384", None),
    (0xCCA9, "ECDHE-ECDSA-CHACHA20-POLY1305", None),
    (0xCCA8, "ECDHE-RSA-CHACHA20-POLY1305", None),
    (0xC009, "ECDHE-ECDSA-AES128-SHA", "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA"),
    (0xC013, "ECDHE-RSA-AES128-SHA", "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"),
    (0xC00A, "ECDHE-ECDSA-AES256-SHA", "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA"),
    (0xC014, "ECDHE-RSA-AES256-SHA", "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA"),
    (0x009C, "AES128-GCM-SHA256", None),
    (0x009D, "AES256-GCM-SHA384", None),
    (0x002F, "AES128-SHA", "TLS_RSA_WITH_AES_128_CBC_SHA"),
    (0x0035, "AES256-SHA", "TLS_RSA_WITH_AES_256_CBC_SHA"),
)
_TLS13_CIPHER_SUITES = (
    (0x1301, "TLS_AES_128_GCM_SHA256", None),
    (0x1302, "TLS_AES_256_GCM_SHA384", None),
    (0x1303, "TLS_CHACHA20_POLY1305_SHA256", None),
)
_SHOWN_SUITES = {name: shown or f"Unknown {number}" for number, name, shown in _CIPHER_SUITES + _TLS13_CIPHER_SUITES}
_SHOWN_VERSIONS = {number: name.upper() for name, number in TLS_VERSIONS.items()}

# OpenSSL's reasons in the words of Go's crypto/tls, for the log.
_REASONS = {
    "unsupported protocol": "client offered only unsupported versions",
    "no shared cipher": "no cipher suite supported by both client and server",
    "peer did not return a certificate": "client didn't provide a certificate",
    "certificate verify failed": "failed to verify client certificate",
}
# Texts of the peer's alerts, where Go words them differently.
_ALERTS = {
    "bad record mac": "bad record MAC",
    "certificate expired": "expired certificate",
    "certificate revoked": "revoked certificate",
    "certificate unknown": "unknown certificate",
    "decode error": "error decoding message",
    "decrypt error": "error decrypting message",
    "protocol version": "protocol version not supported",
    "unknown ca": "unknown certificate authority",
}

_COMMON_NAME = 13  # NID_commonName
# ASN.1's types of string that Go knows: UTF8String, NumericString, PrintableString, T61String, IA5String, BMPString.
_STRINGS = {12: "utf-8", 18: "ascii", 19: "ascii", 20: "latin-1", 22: "ascii", 30: "utf-16-be"}

# Signatures that Go verifies, by OpenSSL's names; RSASSA-PSS only with these hashes.
_SIGNATURES = {b"ED25519", *(b"sha%dWithRSAEncryption" % bits for bits in (256, 384, 512))}
_SIGNATURES |= {b"ecdsa-with-SHA%d" % bits for bits in (256, 384, 512)}
_PSS = b"rsassaPss"
_PSS_HASHES = {"sha256", "sha384", "sha512"}
_UNKNOWN_AUTHORITY = 20  # X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY
_WEAK_SIGNATURE = 68  # X509_V_ERR_CA_MD_TOO_WEAK

# OpenSSL, for the data of an established connection: the methods of pyOpenSSL's Connection take longer than OpenSSL.
_lib: Any = Binding.lib
_ffi: Any = Binding.ffi
_NULL = _ffi.NULL
_PIECE = 1 << 17  # bytes that OpenSSL gives at once; a record has at most 16384 of plaintext
_buffer: Any = _ffi.new("char[]", _PIECE)  # of all connections, each for a single call
_bytes: Any = _ffi.buffer(_buffer)


class Records:
    """Decodes and encodes records on OpenSSL's memory BIOs, as in Layer. A memory BIO keeps the memory of the largest
    amount it ever held: a Connection encodes 64 KB in one go."""

    def __init__(self, ssl: Any, input: Any, output: Any) -> None:
        self.pending = False
        self._ssl = ssl
        self._input = input
        self._output = output

    def failed(self, result: int, reading: bool) -> None:
        """Handles that SSL_read, or else SSL_write, has not returned a number of bytes."""

    def decode(self, data: bytes) -> bytes:
        self.pending = False
        if data:
            _lib.BIO_write(self._input, data, len(data))
        records = []
        while True:
            length = _lib.SSL_read(self._ssl, _buffer, _PIECE)
            if length <= 0:
                self.failed(length, True)
                break
            records.append(_bytes[:length])
            if not _lib.BIO_get_mem_data(self._input, _NULL):
                break
        return b"".join(records)

    def encode(self, data: bytes) -> bytes:
        while data:  # OpenSSL writes one record in a call
            length = _lib.SSL_write(self._ssl, data, len(data))
            if length <= 0:
                self.failed(length, False)
                break
            data = data[length:]
        encoded = b""
        while (length := _lib.BIO_read(self._output, _buffer, _PIECE)) > 0:
            encoded += _bytes[:length]
            if length < _PIECE:
                break
        return encoded


if not TYPE_CHECKING:
    try:
        from cryptography.hazmat.bindings._rust import _openssl

        from gnsqd.net.native import NativeRecords as Records
        from gnsqd.net.native import use_openssl

        use_openssl(_ffi, _openssl.lib)
    except (AttributeError, ImportError, TypeError):  # nothing is compiled, or cryptography has changed
        pass


class TLSLayer(Records):
    """The server's end of TLS on one connection; `handshake` first, then a Layer like the others. `version`,
    `cipher_suite` (as in /stats) and `peer_common_name` ("" without a client certificate) are known once `established`.
    The bytes that came behind the peer's last handshake message are `pending` then."""

    cut_off = ""  # clients close without TLS's goodbye

    def __init__(self, context: SSL.Context) -> None:
        self._connection: Any = SSL.Connection(context, None)
        self._connection.set_accept_state()
        super().__init__(self._connection._ssl, self._connection._into_ssl, self._connection._from_ssl)
        self._begin = b""  # of what was received: the type of a record and its major version
        self.established = False
        self.ended = False
        self.version = ""
        self.cipher_suite = ""
        self.peer_common_name = ""

    def handshake(self, data: bytes) -> bytes:
        """Continues the handshake with the bytes received, perhaps b""; returns the bytes to send. Raises TLSError."""
        if data:
            self._begin += data[: 2 - len(self._begin)]
            self._connection.bio_write(data)
        try:
            self._connection.do_handshake()
        except SSL.WantReadError:
            pass
        except SSL.Error as error:
            # Where Go would not read on, OpenSSL has several reasons, by version.
            is_record = self._begin[:1] in (b"\x15", b"\x16") and self._begin[1:] < b"\x10"
            text = _text(error) if is_record else "tls: first record does not look like a TLS handshake"
            raise TLSError(text, self.encode(b"")) from error
        else:
            self.established = self.pending = True
            self.version = _SHOWN_VERSIONS[self._connection.get_protocol_version()]
            self.cipher_suite = _SHOWN_SUITES[self._connection.get_cipher_name() or ""]
            certificate = self._connection.get_peer_certificate()
            try:
                self.peer_common_name = "" if certificate is None else _common_name(certificate)
            except ValueError as error:
                raise TLSError("tls: failed to parse client certificate", b"") from error
        return self.encode(b"")

    def failed(self, result: int, reading: bool) -> None:
        """Finds out why SSL_read or SSL_write had this `result`. Raises StreamError, unless nothing is to be read any
        more, or just now."""
        try:
            self._connection._raise_ssl_error(self._connection._ssl, result)
        except SSL.Error as error:
            if reading and isinstance(error, SSL.ZeroReturnError):  # close_notify
                self.ended = True
            elif not reading or not isinstance(error, SSL.WantReadError):
                raise StreamError(_text(error)) from error

    def end(self) -> None:
        """Closes our direction; the next `encode`, of nothing, returns the alert for the peer."""
        with contextlib.suppress(SSL.Error):  # it is over already
            self._connection.shutdown()


def _common_name(certificate: crypto.X509) -> str:
    """Returns the subject's last common name, as Go, or ""; raises ValueError for one that Go does not accept either.
    cryptography refuses certificates that Go takes, such as one with an asterisk in a PrintableString."""
    subject = _lib.X509_get_subject_name(certificate._x509)
    name = ""
    for index in range(_lib.X509_NAME_entry_count(subject)):
        entry = _lib.X509_NAME_get_entry(subject, index)
        if _lib.OBJ_obj2nid(_lib.X509_NAME_ENTRY_get_object(entry)) == _COMMON_NAME:
            value = _lib.X509_NAME_ENTRY_get_data(entry)
            tag = _lib.ASN1_STRING_type(value)
            if tag not in _STRINGS:
                raise ValueError(f"common name of ASN.1 type {tag}")
            text = _ffi.buffer(_lib.ASN1_STRING_get0_data(value), _lib.ASN1_STRING_length(value))[:]
            name = text.decode(_STRINGS[tag])
    return name


def _text(error: SSL.Error | crypto.Error) -> str:
    """Returns the reason of an OpenSSL error, as Go's crypto/tls words it where it has an equal."""
    match error.args:
        case ([*_, (_, _, reason)],) if reason:
            name, is_alert, alert = reason.partition(" alert ")
            if is_alert and " " not in name:
                return f"remote error: tls: {_ALERTS.get(alert, alert)}"
            return f"tls: {_REASONS.get(reason, reason)}"
        case _:  # nothing new: an earlier error has ended the connection
            return "tls: connection has failed"


class ServerContext(SSL.Context):
    """The context of client connections; `chain` is the certificate, and the others of its file."""

    chain: Sequence[x509.Certificate] = ()


@contextlib.contextmanager
def _start_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, UnsupportedAlgorithm, SSL.Error, crypto.Error) as error:
        text = _text(error) if isinstance(error, SSL.Error | crypto.Error) else str(error)
        if isinstance(error, OSError):
            text = describe_failure(error)
        raise StartError(f"failed to build {what} - {text}") from error


@_start_errors("TLS config")
def build_context(options: Options) -> ServerContext | None:
    """Builds the context of client connections, None without certificate and key; raises StartError with Go's texts.
    `options` are validated: a client auth policy has set tls_required."""
    if not options.tls_cert and not options.tls_key:
        if options.tls_required != TLS_NOT_REQUIRED:
            raise StartError("cannot require TLS client connections without TLS key and cert")
        return None
    context = ServerContext(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(options.tls_min_version)
    context.set_max_proto_version(SSL.TLS1_3_VERSION)
    names = [name for _, name, _ in _CIPHER_SUITES]
    if options.tls_min_version < SSL.TLS1_2_VERSION:
        # TLS 1.0 and 1.1 sign their handshake with MD5 and SHA-1, which OpenSSL allows at security level 0 only. The
        # level also bounds certificates and keys, so it is set before they are loaded; and `_verify` bounds signatures.
        names.append("@SECLEVEL=0")
    context.set_cipher_list(":".join(names).encode())
    context.set_tls13_ciphersuites(":".join(name for _, name, _ in _TLS13_CIPHER_SUITES).encode())
    context.set_options(SSL.OP_CIPHER_SERVER_PREFERENCE)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)  # 34 KB less for every idle connection
    # As in Go, sessions live in tickets only. Sessions with a client certificate need an id to be resumed.
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_session_id(b"gnsqd")
    cert_pem, key_pem = read_config_file(options.tls_cert), read_config_file(options.tls_key)
    if b"-----BEGIN" not in cert_pem:
        raise ValueError("tls: failed to find any PEM data in certificate input")
    context.chain = chain = _parse_certificates(cert_pem)
    if not chain:
        raise ValueError("tls: failed to find certificate PEM data in certificate input")
    key = _parse_key(key_pem)
    if key.public_key() != chain[0].public_key():
        raise ValueError("tls: private key does not match public key")
    context.use_certificate(chain[0])
    for certificate in chain[1:]:
        context.add_extra_chain_cert(certificate)
    context.use_privatekey(key)
    roots = _read_roots(options.tls_root_ca_file)
    if options.tls_client_auth_policy == "require":
        context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, lambda *_: True)
    elif options.tls_client_auth_policy == "require-verify":
        # Not pyOpenSSL's set_verify: its callback cannot choose the alert.
        _lib.SSL_CTX_set_verify(context._context, SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, _verify)
        if not roots:
            context.set_default_verify_paths()
    store = context.get_cert_store()
    assert store is not None
    store.set_flags(crypto.X509StoreFlags.PARTIAL_CHAIN)  # as in Go, an intermediate among the roots is trusted
    for root in roots:
        store.add_cert(crypto.X509.from_cryptography(root))
        context.add_client_ca(root)
    return context


@_start_errors("client TLS config")
def read_client_roots(options: Options) -> list[x509.Certificate]:
    """Returns the roots for verifying servers, none for the system's; raises StartError."""
    return _read_roots(options.tls_root_ca_file)


def _parse_key(pem: bytes) -> PrivateKey:
    if b"-----BEGIN" not in pem:
        raise ValueError("tls: failed to find any PEM data in key input")
    if b"PRIVATE KEY-----" not in pem:
        raise ValueError("tls: found a certificate rather than a key in the PEM for the private key")
    try:
        # The validation of an RSA key takes up to half a second, in which no greenlet runs; a signature proves enough.
        key = load_pem_private_key(pem, password=None, unsafe_skip_rsa_key_validation=True)
        if isinstance(key, RSAPrivateKey):
            key.public_key().verify(key.sign(b"", PKCS1v15(), SHA256()), b"", PKCS1v15(), SHA256())
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature) as error:  # TypeError: it is encrypted
        raise ValueError("tls: failed to parse private key") from error
    if not isinstance(key, PrivateKey):
        raise ValueError("tls: found unknown private key type in PKCS#8 wrapping")
    return key


@_ffi.callback("int (*)(int, X509_STORE_CTX *)")  # type: ignore[untyped-decorator]
def _verify(ok: int, store: Any) -> int:
    """Verifies one certificate of a chain, as OpenSSL or as Go: neither accepts a chain with a weak signature, and the
    client learns that its authority is unknown. OpenSSL's own bound depends on its security level."""
    if ok and _lib.X509_STORE_CTX_get_error_depth(store) == 0:  # the last: the client's own certificate
        stack = _lib.X509_STORE_CTX_get1_chain(store)
        count = _lib.sk_X509_num(stack)
        chain = [crypto.X509._from_raw_x509_ptr(_lib.sk_X509_value(stack, index)) for index in range(count)]
        _lib.sk_X509_free(stack)
        ok = all(map(_is_strong, chain[:-1]))  # the client's first; nobody signs for the trusted one at the end
        if not ok:
            _lib.X509_STORE_CTX_set_error(store, _UNKNOWN_AUTHORITY)
    elif _lib.X509_STORE_CTX_get_error(store) == _WEAK_SIGNATURE:
        _lib.X509_STORE_CTX_set_error(store, _UNKNOWN_AUTHORITY)
    return ok


def _is_strong(certificate: crypto.X509) -> bool:
    """Returns True if Go verifies signatures of this kind."""
    with contextlib.suppress(ValueError, UnsupportedAlgorithm):
        algorithm = certificate.get_signature_algorithm()
        if algorithm != _PSS:
            return algorithm in _SIGNATURES
        digest = certificate.to_cryptography().signature_hash_algorithm
        return digest is not None and digest.name in _PSS_HASHES
    return False


def _read_roots(path: str) -> list[x509.Certificate]:
    roots = _parse_certificates(read_config_file(path)) if path else []
    if path and not roots:
        raise ValueError("failed to append certificate to pool")
    return roots


def _parse_certificates(pem: bytes) -> list[x509.Certificate]:
    """Returns all certificates that can be parsed; skips others, like Go's pool."""
    certificates = []
    for block in re.findall(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", pem, re.DOTALL):
        with contextlib.suppress(ValueError, x509.InvalidVersion):
            certificates.append(x509.load_pem_x509_certificate(block))
    return certificates
