"""Writes the files of a daemon for tests (`testing.Settings`): config file, tokens, and certificates by an authority of
its own. Everything that gnsqd would refuse or ignore raises NSQError with one line."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from gnsqd.configuration import load_file, resolve, unknown_keys
from gnsqd.shared.errors import NSQError
from gnsqd.shared.names import NAME_RULE, is_valid_name

# Keys for the places of a deployment: a daemon for tests has its own, and sends nothing to other programs.
_PLACES = re.compile(r"(?!auth_)\w+_address(es)?|broadcast_\w+_port|data_path|log_store")
_ROLES = "full, read, and read:TOPIC, publish:TOPIC or manage:TOPIC, where TOPIC may contain *"


def copy_config(source: str, directory: Path) -> str:
    """Writes a copy of a config file without the places of a deployment; returns the flag for it."""
    try:
        config = load_file(source)
        resolve({}, config)
        problem = next(unknown_keys(config), "")
    except NSQError as error:
        problem = str(error)
    if problem:
        raise NSQError(f"config file {source}: {problem}")
    # The values of options are written alike in JSON and TOML.
    rows = [
        f"{key} = {json.dumps(value, ensure_ascii=False)}\n"
        for key, value in config.items()
        if not _PLACES.fullmatch(key)
    ]
    (directory / "nsqd.cfg").write_text("".join(rows), "utf-8")
    return f"--config={directory / 'nsqd.cfg'}"


def write_tokens(tokens: Mapping[str, str], directory: Path) -> tuple[str, str]:
    """Writes a file with the token of each role; returns the flag for it, and a further token with the role full."""
    lines = [os.urandom(16).hex()]
    for role, token in tokens.items():
        kind, _, pattern = role.partition(":")
        of_topics = kind in ("read", "publish", "manage") and is_valid_name(pattern.replace("*", "x"))
        if not of_topics and role not in ("full", "read"):
            raise NSQError(f"unknown role {role!r} of a token: the roles are {_ROLES}")
        if not re.fullmatch(r"[A-Za-z0-9._~+/-]{16,}=*", token):
            raise NSQError(f"invalid token of {role!r}: 16 or more of A-Z a-z 0-9 . _ ~ + / -")
        lines.append(f"{token} {({'full': '', 'read': 'read:*'}).get(role, role)}")
    (directory / "tokens").write_text("\n".join(lines), "utf-8")
    return f"--http-auth-token-file=full:{directory / 'tokens'}", lines[0]


def creating_requests(topics: Iterable[str]) -> list[str]:
    """Returns the paths of requests that create the topics, and channels given as TOPIC/CHANNEL."""
    if isinstance(topics, str):
        raise NSQError(f'topics is a list, such as ["events", "orders/billing"], not {topics!r}')
    paths = []
    for name in topics:
        if not all(map(is_valid_name, name.split("/", 1))):
            raise NSQError(f"invalid topic {name!r}: TOPIC or TOPIC/CHANNEL, each {NAME_RULE}")
        topic, slash, channel = name.replace("#", "%23").partition("/")
        paths.append(f"/topic/create?topic={topic}")
        paths += [f"/channel/create?topic={topic}&channel={channel}"] if slash else []
    return paths


def write_certificates(directory: Path) -> list[str]:
    """Writes `ca.crt`, and by this authority `server.crt` for localhost and `client.crt`, each with its `.key`; returns
    the flags for them. They are valid for a year."""
    from datetime import UTC, datetime, timedelta  # here, as few need these, and they load slowly
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    now = datetime.now(UTC)
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("ca", "server", "client")}
    names = {name: x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in keys}
    issuer = keys["ca"].public_key()
    # Python 3.13 checks strictly: the authority has a usage, which is to sign certificates and lists, and all have ids.
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    of_ca = [usage, x509.SubjectKeyIdentifier.from_public_key(issuer)]
    hosts = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    of_others = [hosts, x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer)]
    for name, key in keys.items():
        number, begin, end = x509.random_serial_number(), now - timedelta(days=1), now + timedelta(days=365)
        builder = x509.CertificateBuilder(names["ca"], names[name], key.public_key(), number, begin, end)
        for extension in (x509.BasicConstraints(name == "ca", None), *(of_ca if name == "ca" else of_others)):
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        certificate = builder.sign(keys["ca"], SHA256())
        (directory / f"{name}.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
        (directory / f"{name}.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    files = {"tls-cert": "server.crt", "tls-key": "server.key", "tls-root-ca-file": "ca.crt"}
    return [f"--{flag}={directory / name}" for flag, name in files.items()]
