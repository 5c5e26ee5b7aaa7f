"""The TLS layer and the policies of its context; the peer is the standard library's ssl, on memory BIOs as well."""

import contextlib
import random
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from OpenSSL import SSL

from gnsqd.net.stream import StreamError, TLSError
from gnsqd.net.tls import TLSLayer, build_context
from gnsqd.options import TLS_VERSIONS, Options
from kit.certificates import Identity, issue

pytestmark = pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")

VERSIONS = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}
OK_FRAME = b"\0\0\0\x06\0\0\0\0OK"


@pytest.fixture(scope="module")
def authority() -> Identity:
    return issue("authority", authority=True)


@pytest.fixture(scope="module")
def server(authority: Identity) -> Identity:
    return issue("server", authority)


@pytest.fixture
def options(server: Identity, tmp_path: Path) -> Options:
    cert, key = server.write(tmp_path / "server")
    return Options(tls_cert=cert, tls_key=key)


def new_layer(options: Options) -> TLSLayer:
    context = build_context(options)
    assert context is not None
    return TLSLayer(context)


class Peer:
    """A TLS client on memory BIOs that knows no certificate and verifies nothing unless asked to."""

    def __init__(
        self,
        version: str | None = None,
        ciphers: str = "DEFAULT",
        identity: tuple[str, str] | None = None,
        ca: Identity | None = None,
        resume: "Peer | None" = None,
    ) -> None:
        session = None
        if resume:
            context, session = resume.tls.context, resume.tls.session
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = ca is not None
            context.verify_mode = ssl.CERT_REQUIRED if ca else ssl.CERT_NONE
            context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
            context.minimum_version = VERSIONS[version or "tls1.0"]
            if version:
                context.maximum_version = VERSIONS[version]
            if identity:
                context.load_cert_chain(*identity)
            if ca:
                context.load_verify_locations(cadata=ca.cert_pem.decode())
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls: ssl.SSLObject = context.wrap_bio(
            self.incoming, self.outgoing, server_hostname="localhost", session=session
        )

    def handshake(self, layer: TLSLayer, step: int = 1 << 20) -> None:
        """Shake hands with `layer`, which gets `step` bytes at a time; ssl.SSLError or TLSError if one refuses."""
        done = False
        while not (done and layer.established):
            try:
                self.tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
            raw = self.outgoing.read()
            assert raw or layer.established, "both wait"
            while raw:
                self.incoming.write(layer.handshake(raw[:step]))
                raw = raw[step:]

    def write(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()

    def read(self, raw: bytes) -> bytes:
        """What `raw` decrypts to; b"" at the server's close_notify too."""
        self.incoming.write(raw)
        pieces = []
        try:
            while piece := self.tls.read(65536):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        return b"".join(pieces)


@pytest.fixture
def established(options: Options) -> tuple[TLSLayer, Peer]:
    layer, peer = new_layer(options), Peer()
    peer.handshake(layer)
    return layer, peer


@pytest.mark.parametrize("step", [1, 1 << 20], ids=["by-the-byte", "at-once"])
@pytest.mark.parametrize(
    ("version", "suite"),
    [
        ("tls1.0", "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA"),
        ("tls1.1", "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA"),
        ("tls1.2", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
        ("tls1.3", "Unknown 4865"),
    ],
)
def test_handshake_in_every_version(options: Options, version: str, suite: str, step: int) -> None:
    layer, peer = new_layer(options), Peer(version)
    peer.handshake(layer, step)
    assert (layer.version, layer.cipher_suite, layer.peer_common_name) == (version.upper(), suite, "")
    assert peer.read(layer.encode(OK_FRAME)) == OK_FRAME
    assert layer.decode(peer.write(b"NOP\n")) == b"NOP\n"


# What the real nsqd's statistics know by name, of the suites that OpenSSL still has (NSQD-COMPAT 5.3).
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


@pytest.mark.parametrize(("key", "count"), [("ecdsa", 5), ("rsa", 9)])
def test_every_cipher_suite_is_shown_by_its_name_or_number(
    options: Options, tmp_path: Path, key: str, count: int
) -> None:
    if key == "rsa":
        identity = issue("server", key=rsa.generate_private_key(65537, 2048))
        options.tls_cert, options.tls_key = identity.write(tmp_path / "rsa")
    context = build_context(options)
    assert context is not None
    everything = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    everything.set_ciphers("ALL:@SECLEVEL=0")
    seen = []
    for cipher in everything.get_ciphers():
        if cipher["protocol"] == "TLSv1.3":
            continue
        layer, number = TLSLayer(context), cipher["id"] & 0xFFFF
        try:
            Peer("tls1.2", cipher["name"]).handshake(layer)
        except (TLSError, ssl.SSLError):  # not offered, or not by this peer without more settings
            continue
        assert layer.cipher_suite == NAMED_SUITES.get(number, f"Unknown {number}")
        seen.append(number)
    assert len(seen) == count, seen


def openssl_handshake(options: Options, client: SSL.Context) -> tuple[TLSLayer, SSL.Connection]:
    """With pyOpenSSL as the peer, which shows more than the standard library does."""
    layer, peer = new_layer(options), SSL.Connection(client, None)
    peer.set_connect_state()
    while not layer.established:
        with contextlib.suppress(SSL.WantReadError):
            peer.do_handshake()
        if reply := layer.handshake(peer.bio_read(65536)):
            peer.bio_write(reply)
    peer.do_handshake()
    return layer, peer


@pytest.mark.parametrize(
    ("suite", "number"), [("TLS_AES_256_GCM_SHA384", 4866), ("TLS_CHACHA20_POLY1305_SHA256", 4867)]
)
def test_tls13_suites_are_shown_by_number(options: Options, suite: str, number: int) -> None:
    client = SSL.Context(SSL.TLS_CLIENT_METHOD)
    client.set_tls13_ciphersuites(suite.encode())
    layer, _ = openssl_handshake(options, client)
    assert layer.cipher_suite == f"Unknown {number}"


@pytest.mark.parametrize(("minimum", "below"), [("tls1.1", "tls1.0"), ("tls1.2", "tls1.1"), ("tls1.3", "tls1.2")])
def test_min_version_refuses_what_is_below(options: Options, minimum: str, below: str) -> None:
    options.tls_min_version = TLS_VERSIONS[minimum]
    with pytest.raises(TLSError, match=r"^tls: client offered only unsupported versions$"):
        Peer(below).handshake(new_layer(options))
    layer = new_layer(options)
    Peer(minimum).handshake(layer)
    assert layer.version == minimum.upper()


def test_bytes_behind_the_handshake_are_pending(options: Options) -> None:
    layer, peer = new_layer(options), Peer("tls1.3")
    with pytest.raises(ssl.SSLWantReadError):
        peer.tls.do_handshake()
    peer.incoming.write(layer.handshake(peer.outgoing.read()))
    peer.tls.do_handshake()
    finished = peer.outgoing.read()
    assert not layer.pending
    layer.handshake(finished + peer.write(b"NOP\n"))
    assert layer.established
    assert layer.pending
    assert layer.decode(b"") == b"NOP\n"
    assert not layer.pending


def test_records_may_be_split_anywhere(established: tuple[TLSLayer, Peer]) -> None:
    layer, peer = established
    raw = peer.write(b"PUB test\n")
    for position in range(len(raw) + 1):
        received = layer.decode(raw[:position]) + layer.decode(raw[position:])
        assert received == b"PUB test\n"
        raw = peer.write(b"PUB test\n")  # records are numbered: each can be sent once


@pytest.mark.parametrize("size", [1, 16384, 16385, 1 << 20])
def test_bodies_of_any_size_pass_both_ways(established: tuple[TLSLayer, Peer], size: int) -> None:
    layer, peer = established
    randomness = random.Random(size)
    body = randomness.randbytes(size)
    assert peer.read(layer.encode(body)) == body
    raw = peer.write(body)
    received = b""
    while raw:
        step = randomness.choice([1, 100, 16384, 65536])
        received += layer.decode(raw[:step])
        raw = raw[step:]
    assert received == body


def test_an_answer_of_tls_itself_goes_with_the_next_bytes(options: Options) -> None:
    client = SSL.Context(SSL.TLS_CLIENT_METHOD)
    client.set_max_proto_version(SSL.TLS1_2_VERSION)
    layer, peer = openssl_handshake(options, client)
    assert peer.renegotiate()
    with pytest.raises(SSL.WantReadError):
        peer.do_handshake()
    assert layer.decode(peer.bio_read(65536)) == b""
    peer.bio_write(layer.encode(b""))
    with pytest.raises(SSL.Error, match="no renegotiation"):
        peer.recv(1)


def test_encoding_nothing_sends_nothing(established: tuple[TLSLayer, Peer]) -> None:
    layer, _ = established
    assert layer.encode(b"") == b""


def test_close_notify_is_the_end_of_the_stream(established: tuple[TLSLayer, Peer]) -> None:
    layer, peer = established
    last = peer.write(b"NOP\n")
    with pytest.raises(ssl.SSLWantReadError):
        peer.tls.unwrap()
    assert layer.decode(last + peer.outgoing.read() + b"whatever") == b"NOP\n"
    assert layer.ended
    assert layer.decode(b"whatever") == b""


def test_damaged_record_is_a_stream_error_and_ends_both_directions(established: tuple[TLSLayer, Peer]) -> None:
    layer, peer = established
    raw = peer.write(b"NOP\n")
    with pytest.raises(StreamError, match=r"^tls: "):
        layer.decode(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(StreamError, match=r"^tls: connection has failed$"):
        layer.encode(OK_FRAME)


@pytest.mark.parametrize(
    "garbage", [b"PUB test\n", b"GET /ping HTTP/1.1\r\n", b"\0" * 100], ids=["pub", "http", "zeros"]
)
def test_no_plain_bytes_answer_what_is_no_handshake(options: Options, garbage: bytes) -> None:
    with pytest.raises(TLSError, match=r"^tls: first record does not look like a TLS handshake$") as caught:
        new_layer(options).handshake(garbage)
    assert caught.value.alert == b""


def test_failed_handshake_has_an_alert_for_the_peer(options: Options) -> None:
    options.tls_min_version = TLS_VERSIONS["tls1.3"]
    peer = Peer("tls1.2")
    with pytest.raises(TLSError) as caught:
        peer.handshake(new_layer(options))
    peer.incoming.write(caught.value.alert)
    with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
        peer.tls.do_handshake()


def test_chain_of_the_certificate_file_is_sent(options: Options, authority: Identity, tmp_path: Path) -> None:
    intermediate = issue("intermediate", authority, authority=True)
    options.tls_cert, options.tls_key = issue("server", intermediate).write(tmp_path / "chain", intermediate)
    layer = new_layer(options)
    Peer(ca=authority).handshake(layer)
    assert layer.established


def test_chain_may_be_longer_than_a_record(options: Options, authority: Identity, tmp_path: Path) -> None:
    chain = [issue(f"intermediate {number}", authority, authority=True) for number in range(80)]
    assert sum(len(link.certificate.tbs_certificate_bytes) for link in chain) > 16384
    options.tls_cert, options.tls_key = issue("server", authority).write(tmp_path / "chain", *chain)
    layer = new_layer(options)
    Peer(ca=authority).handshake(layer)
    assert layer.established


def test_sessions_are_kept_by_clients_alone(options: Options) -> None:
    context = build_context(options)
    assert context is not None
    unused = Peer("tls1.2")
    unused.tls.context.options |= ssl.OP_NO_TICKET
    first, layer = Peer(resume=unused), TLSLayer(context)  # a cache would forget the session with the layer
    first.handshake(layer)
    again = Peer(resume=first)
    again.handshake(TLSLayer(context))
    assert not again.tls.session_reused


@pytest.mark.parametrize("version", ["tls1.2", "tls1.3"])
class TestClientCertificates:
    """Policies of --tls-client-auth-policy (NSQD-COMPAT 2.6)."""

    @pytest.fixture
    def signed(self, authority: Identity, tmp_path: Path) -> tuple[str, str]:
        return issue("signed", authority).write(tmp_path / "signed")

    @pytest.fixture
    def unsigned(self, tmp_path: Path) -> tuple[str, str]:
        return issue("unsigned", expired=True).write(tmp_path / "unsigned")

    @pytest.fixture
    def verifying(self, options: Options, authority: Identity, tmp_path: Path) -> Options:
        (tmp_path / "ca.pem").write_bytes(b"comment\n" + authority.cert_pem)
        options.tls_client_auth_policy = "require-verify"
        options.tls_root_ca_file = str(tmp_path / "ca.pem")
        return options

    @pytest.mark.parametrize("policy", ["", "no-such-policy"])
    def test_no_certificate_is_asked_for_by_default(
        self, options: Options, unsigned: tuple[str, str], version: str, policy: str
    ) -> None:
        options.tls_client_auth_policy = policy
        layer = new_layer(options)
        Peer(version, identity=unsigned).handshake(layer)
        assert layer.peer_common_name == ""

    def test_require_takes_any_certificate(self, options: Options, unsigned: tuple[str, str], version: str) -> None:
        options.tls_client_auth_policy = "require"
        layer = new_layer(options)
        Peer(version, identity=unsigned).handshake(layer)
        assert layer.peer_common_name == "unsigned"

    @pytest.mark.parametrize("policy", ["require", "require-verify"])
    def test_both_policies_refuse_no_certificate(self, verifying: Options, version: str, policy: str) -> None:
        verifying.tls_client_auth_policy = policy
        with pytest.raises(TLSError, match=r"^tls: client didn't provide a certificate$"):
            Peer(version).handshake(new_layer(verifying))

    def test_require_verify_takes_what_an_authority_signed(
        self, verifying: Options, signed: tuple[str, str], version: str
    ) -> None:
        layer = new_layer(verifying)
        Peer(version, identity=signed).handshake(layer)
        assert layer.peer_common_name == "signed"

    def test_authorities_are_named_to_the_client(self, verifying: Options, authority: Identity, version: str) -> None:
        identity, client = issue("signed", authority), SSL.Context(SSL.TLS_CLIENT_METHOD)
        client.set_max_proto_version(TLS_VERSIONS[version])
        client.use_certificate(identity.certificate)
        client.use_privatekey(identity.key)
        _, peer = openssl_handshake(verifying, client)
        assert [name.CN for name in peer.get_client_ca_list()] == ["authority"]

    def test_require_verify_refuses_others(self, verifying: Options, unsigned: tuple[str, str], version: str) -> None:
        with pytest.raises(TLSError, match=r"^tls: failed to verify client certificate$"):
            Peer(version, identity=unsigned).handshake(new_layer(verifying))

    def test_require_verify_refuses_expired(
        self, verifying: Options, authority: Identity, tmp_path: Path, version: str
    ) -> None:
        expired = issue("expired", authority, expired=True).write(tmp_path / "expired")
        with pytest.raises(TLSError, match=r"^tls: failed to verify client certificate$"):
            Peer(version, identity=expired).handshake(new_layer(verifying))

    def test_an_intermediate_may_be_the_root(
        self, verifying: Options, authority: Identity, tmp_path: Path, version: str
    ) -> None:
        intermediate = issue("intermediate", authority, authority=True)
        Path(verifying.tls_root_ca_file).write_bytes(intermediate.cert_pem)
        layer = new_layer(verifying)
        Peer(version, identity=issue("below", intermediate).write(tmp_path / "below")).handshake(layer)
        assert layer.peer_common_name == "below"

    def test_roots_are_the_systems_without_a_file(
        self, verifying: Options, signed: tuple[str, str], version: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", verifying.tls_root_ca_file)
        verifying.tls_root_ca_file = ""
        layer = new_layer(verifying)
        Peer(version, identity=signed).handshake(layer)
        assert layer.peer_common_name == "signed"

    @pytest.mark.parametrize("policy", ["require", "require-verify"])
    def test_sessions_with_a_certificate_are_resumed(
        self, verifying: Options, signed: tuple[str, str], version: str, policy: str
    ) -> None:
        verifying.tls_client_auth_policy = policy
        context = build_context(verifying)
        assert context is not None
        layer, peer = TLSLayer(context), Peer(version, identity=signed)
        peer.handshake(layer)
        peer.read(layer.encode(OK_FRAME))  # in TLS 1.3 the tickets come behind the handshake
        layer, again = TLSLayer(context), Peer(resume=peer)
        again.handshake(layer)
        assert again.tls.session_reused
        assert layer.peer_common_name == "signed"
