"""TLS, deflate and snappy on a client's connection: what is agreed, who is refused, and every byte both ways.

The matrix of NSQD-COMPAT 2.6: every upgrade with every policy on certificates and versions, the levels of deflate, and
bodies of every size. Handshakes that fail are in test_tls_handshakes.py, broken
streams in test_broken_streams.py.
"""

import functools
import itertools
import json
import random
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from behaviour.test_identify import DEFAULT_ANSWER
from kit.daemons import DEADLINE, Instance, last_flag, own_command
from kit.nsq_client import ERROR, RESPONSE, Frame, NSQClient, split_frames
from kit.traffic import DaemonFactory
from kit.upgraded_client import TLS_VERSIONS, UPGRADES, UpgradedClient, tls_client_context

pytestmark = pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")

KeyPair = tuple[str, str]
Contexts = dict[tuple[str, str], ssl.SSLContext]  # by identity and version
Start = Callable[[str], Instance]
Connect = Callable[..., UpgradedClient]


class Policy(NamedTuple):
    """The flags of a daemon. `required` is about TLS over TCP; `{}` in a flag is the authority's file."""

    flags: str = ""
    certificate: bool = True
    required: bool = False
    admits: tuple[str, ...] = ("none", "unknown", "known")

    def flag(self, name: str, default: str) -> str:
        return last_flag(self.flags.split(), name) or default

    def allows(self, compression: str) -> bool:
        return self.flag(compression, "true") == "true"

    @property
    def max_level(self) -> int:
        return int(self.flag("max-deflate-level", "6"))


POLICIES = {
    "default": Policy(),
    "no-certificate": Policy("--deflate=false --snappy=false", certificate=False),
    "tcp-https": Policy("--tls-required=tcp-https --tls-min-version=tls1.2 --max-deflate-level=9", required=True),
    "require": Policy(
        "--tls-client-auth-policy=require --tls-min-version=tls1.3 --max-deflate-level=1 --snappy=false",
        required=True,
        admits=("unknown", "known"),
    ),
    "require-verify": Policy(
        "--tls-client-auth-policy=require-verify --tls-required=true --tls-root-ca-file={} --tls-min-version=tls1.1 "
        "--deflate=false",
        required=True,
        admits=("known",),
    ),
    # Any other text asks for no certificate, and still makes TLS required.
    "no-such-policy": Policy("--tls-client-auth-policy=no-such-policy", required=True),
}
policies = pytest.mark.parametrize("name", POLICIES)


@pytest.fixture(scope="module")
def start(module_factory: DaemonFactory, identities: dict[str, KeyPair], tls_flags: list[str]) -> Start:
    """Starts the daemon of a policy once, by name."""
    running: dict[str, Instance] = {}

    def start(name: str) -> Instance:
        if name not in running:
            policy = POLICIES[name]
            flags = tls_flags if policy.certificate else []
            running[name] = module_factory(*flags, *policy.flags.format(identities["authority"][0]).split())
        return running[name]

    return start


@pytest.fixture
def nsqd(start: Start) -> Instance:
    return start("default")


@pytest.fixture(scope="module")
def contexts(identities: dict[str, KeyPair]) -> Contexts:
    return {
        (identity, version): tls_client_context(version, identities.get(identity))
        for identity in ("none", "unknown", "known")
        for version in TLS_VERSIONS
    }


@pytest.fixture(params=list(UPGRADES.values()), ids=list(UPGRADES))
def upgrade(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.fixture
def connect(nsqd: Instance, contexts: Contexts, upgrade: dict[str, Any]) -> Connect:
    return functools.partial(UpgradedClient, nsqd.tcp_address, contexts["none", "tls1.3"], **upgrade)


_numbers = itertools.count()


@pytest.fixture
def topics() -> Iterator[str]:
    return (f"upgrades{number}#ephemeral" for number in _numbers)


def exchange(client: NSQClient, topic: str, bodies: list[bytes]) -> None:
    client.publish(topic, *bodies)
    client.subscribe(topic, "c#ephemeral", rdy=1)
    for body in bodies:
        message = client.message()
        assert message.body == body
        client.command(b"FIN " + message.id)


# What is agreed


def answer(
    policy: Policy, *, tls: bool = False, deflate: bool = False, level: int = 6, snappy: bool = False
) -> dict[str, Any]:
    return dict(json.loads(DEFAULT_ANSWER)) | {
        "tls_v1": tls,
        "deflate": deflate,
        "deflate_level": min(level, policy.max_level),
        "max_deflate_level": policy.max_level,
        "snappy": snappy,
    }


def refused(daemon: Instance, context: ssl.SSLContext, fields: dict[str, Any]) -> bool:
    try:
        UpgradedClient(daemon.tcp_address, context, **fields).close()
    except (ssl.SSLError, ConnectionError):
        return True
    return False


@policies
def test_every_upgrade_with_every_policy_certificate_and_version(
    start: Start, contexts: Contexts, topics: Iterator[str], name: str
) -> None:
    policy, daemon = POLICIES[name], start(name)
    for upgrade, ((identity, version), context) in itertools.product(UPGRADES.values(), contexts.items()):
        case = f"{upgrade} {identity} {version}"
        tls = policy.certificate and "tls_v1" in upgrade
        if tls and (identity not in policy.admits or version < policy.flag("tls-min-version", "tls1.0")):
            assert refused(daemon, context, upgrade), case
            continue
        if not tls and (identity, version) != ("none", "tls1.3"):
            continue  # all the same
        with UpgradedClient(daemon.tcp_address, context, **upgrade) as client:
            deflate, snappy = (policy.allows(name) and name in upgrade for name in ("deflate", "snappy"))
            assert client.answer == answer(policy, tls=tls, deflate=deflate, snappy=snappy), case
            if policy.required and not tls:
                client.command(b"SUB t c")
                expected = [Frame(ERROR, b"E_INVALID cannot SUB in current state (TLS required)")]
                assert split_frames(client.recv_until_closed()) == expected, case
            else:
                exchange(client, next(topics), [b"x", b"body" * 500])


REQUIRING = [name for name, policy in POLICIES.items() if policy.required]
LINES = [b"NOP", b"SUB t c", b"PUB t", b"MPUB t", b"DPUB t 1", b"RDY 1", b"FIN 0123456789abcdef", b"CLS", b"AUTH", b"",
         b"REQ 0123456789abcdef 1", b"TOUCH 0123456789abcdef", b"whatever", b"identify", b" IDENTIFY"]  # fmt: skip


@pytest.mark.parametrize("name", REQUIRING)
def test_where_tls_is_required_nothing_but_identify_is_answered_without(start: Start, name: str) -> None:
    address = start(name).tcp_address
    for line in LINES:
        for identified in (False, True):
            with NSQClient(address) as client:
                if identified:
                    assert client.identify(tls_v1=True).data == b"OK"  # features were not negotiated
                client.command(line)
                text = b"E_INVALID cannot %b in current state (TLS required)" % line.split(b" ")[0]
                assert split_frames(client.recv_until_closed()) == [Frame(ERROR, text)]


# Daemon, what is asked for, and what of it is agreed.
NEGOTIATIONS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("default", {"deflate_level": 1}, {}),
    ("default", {"snappy": True, "deflate_level": 1}, {"snappy": True}),
    ("no-certificate", {"tls_v1": True, "deflate": True, "snappy": True, "deflate_level": 2}, {}),
    ("require-verify", {"deflate": True, "snappy": True}, {"snappy": True}),
    ("require", {"deflate": True, "snappy": True}, {"deflate": True, "level": 1}),
]
LEVELS = {level: level for level in range(1, 10)} | {-(2**63): 6, -1: 6, 0: 6, 10: 10, 2**63 - 1: 10}
NEGOTIATIONS += [
    (name, {"deflate": True, "deflate_level": level}, {"deflate": True, "level": agreed})
    for name in ("default", "tcp-https", "require")
    for level, agreed in LEVELS.items()
]


@pytest.mark.parametrize("name", sorted({row[0] for row in NEGOTIATIONS}))
def test_level_and_choice_of_compression_are_agreed(
    start: Start, contexts: Contexts, topics: Iterator[str], name: str
) -> None:
    policy, daemon = POLICIES[name], start(name)
    tls = {"tls_v1": True} if policy.required else {}
    for _, asked, agreed in (row for row in NEGOTIATIONS if row[0] == name):
        with UpgradedClient(daemon.tcp_address, contexts["known", "tls1.3"], **tls, **asked) as client:
            assert client.answer == answer(policy, tls=policy.required, **agreed), asked
            exchange(client, next(topics), [b"x", b"body" * 500])


def test_statistics_show_the_upgrades(nsqd: Instance, connect: Connect, topic: str, upgrade: dict[str, Any]) -> None:
    tls = "tls_v1" in upgrade
    with connect() as client:
        client.subscribe(topic, "c")
        (stats,) = nsqd.channel_stats(topic, "c")["clients"]
    assert [stats[key] for key in ("deflate", "snappy", "tls", "tls_version", "tls_negotiated_protocol_is_mutual")] == [
        "deflate" in upgrade, "snappy" in upgrade, tls, "TLS1.3" if tls else "", tls
    ]  # fmt: skip


@pytest.mark.parametrize("tls", [{}, {"tls_v1": True}], ids=["plain", "tls"])
def test_both_compressions_are_refused_before_any_upgrade(nsqd: Instance, tls: dict[str, bool]) -> None:
    with NSQClient(nsqd.tcp_address) as client:
        frame = client.identify(feature_negotiation=True, deflate=True, snappy=True, **tls)
        assert frame == (ERROR, b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression")
        assert client.recv_until_closed() == b""


# Bytes


@functools.cache
def bodies_of_every_size() -> list[bytes]:
    randomness = random.Random(1)
    sizes = [1, 2, 100, 4096, 16383, 16384, 16385, 65535, 65536, 65537]
    words = b" ".join(randomness.choices([b"topic", b"channel", b"requeue", b"depth"], k=1 << 18))
    bodies = [body[:size] for size in sizes for body in (words, randomness.randbytes(size))]
    return [*bodies, words[:300_000], randomness.randbytes(1 << 20)]


def test_bodies_of_every_size_pass_both_ways(connect: Connect, topic: str) -> None:
    bodies = bodies_of_every_size()
    with connect() as publisher, connect() as consumer:
        consumer.subscribe(topic, "c", rdy=1)
        for body in bodies:
            publisher.publish(topic, body)
            message = consumer.message()
            assert message.body == body
            consumer.command(b"FIN " + message.id)
        small = [body for body in bodies if len(body) <= 300_000]
        publisher.publish(topic, *small)
        consumer.command(b"RDY 100")
        received = [consumer.message() for _ in small]
        assert sorted(message.body for message in received) == sorted(small)


def test_every_answer_and_message_can_be_read_at_once_and_to_its_end(
    connect: Connect, publisher: NSQClient, topic: str
) -> None:
    # Nothing waits for bytes to follow; the buffer's clock is set so that it does not help.
    with connect(timeout=10, output_buffer_timeout=30000, heartbeat_interval=60000) as client:
        assert client.settled()
        client.subscribe(topic, "c", rdy=1)
        assert client.settled()
        for size in (1, 100, 16384, 65536, 300_000):
            publisher.publish(topic, bytes(size))
            message = client.message()
            assert message.body == bytes(size)
            assert client.settled()
            client.command(f"PUB other-{topic}".encode(), b"x")
            assert client.response() == b"OK"
            assert client.settled()
            client.command(b"FIN " + message.id)
        for _ in range(3):
            client.send(b"FIN 0123456789abcdef\n")
            assert client.error() == b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"
            assert client.settled()


def test_commands_may_arrive_in_any_pieces(connect: Connect, topic: str) -> None:
    with connect() as client:
        line = b"PUB %b\n\0\0\0\x03abc" % topic.encode()
        raw = client.compression.encode(line * 3) if client.compression else line * 3
        for start in range(len(raw)):
            client.sock.sendall(raw[start : start + 1])
        assert [client.response() for _ in range(3)] == [b"OK"] * 3
        client.send(line * 300)
        assert [client.response() for _ in range(300)] == [b"OK"] * 300


def test_second_identify_is_answered_inside_the_upgraded_stream(
    nsqd: Instance, connect: Connect, topics: Iterator[str]
) -> None:
    # The real daemon writes plain bytes when that sets a new output buffer (NSQD-COMPAT 0.1, item 13).
    ours = {"output_buffer_size": 64} if nsqd.command == own_command() else {}
    with connect() as client:
        assert client.identify(client_id="x", **ours) == (RESPONSE, b"OK")
        exchange(client, next(topics), [b"x", b"y" * 1000])


# What a client that has the first may not ask for again: a layer that is there, and any below a compression.
AGAIN = [
    (first, second)
    for first, second in itertools.product(UPGRADES, UPGRADES)
    if second != "none" and (first not in ("none", "tls") or (first == "tls" and "tls" in second))
]


def test_identify_that_asks_for_an_upgrade_again_is_refused(
    gnsqd_factory: DaemonFactory, tls_flags: list[str], contexts: Contexts
) -> None:
    # The real daemon begins a new stream on the bare connection, which breaks for whoever goes on with the old
    # one.
    gnsqd = gnsqd_factory(*tls_flags)
    for first, second in AGAIN:
        with UpgradedClient(gnsqd.tcp_address, contexts["none", "tls1.3"], **UPGRADES[first]) as client:
            refusal = client.identify(feature_negotiation=True, **UPGRADES[second])
            assert refusal == (ERROR, b"E_INVALID cannot IDENTIFY in current state"), (first, second)
            assert client.recv_until_closed() == b""


@pytest.mark.parametrize("upgrade", ["deflate", "snappy"])
def test_compression_may_follow_tls_by_a_second_identify(
    nsqd: Instance, contexts: Contexts, topics: Iterator[str], upgrade: str
) -> None:
    with UpgradedClient(nsqd.tcp_address, contexts["none", "tls1.3"], tls_v1=True) as client:
        client.upgrade(None, {upgrade: True})
        exchange(client, next(topics), [b"x", b"body" * 500])


# Go's client library


@pytest.mark.peer
def test_go_tools_publish_and_consume(
    nsqd: Instance, peer_binary: Callable[[str], Path], tmp_path: Path, topic: str, upgrade: dict[str, Any]
) -> None:
    randomness = random.Random(2)
    printable = bytes(range(0x20, 0x7F))
    lines = [b"a", b"b" * 300_000, bytes(randomness.choices(printable, k=200_000)), b"last"]
    (tmp_path / "lines").write_bytes(b"".join(line + b"\n" for line in lines))
    options = {**upgrade, **({"tls_insecure_skip_verify": True} if "tls_v1" in upgrade else {})}
    where = ["--nsqd-tcp-address={}:{}".format(*nsqd.tcp_address), f"--topic={topic}"]

    def tool(name: str, option: str) -> list[str]:
        chosen = [f"--{option}={key},{str(value).lower()}" for key, value in options.items()]
        return [str(peer_binary(name)), *where, *chosen]

    with (tmp_path / "lines").open("rb") as stdin:
        subprocess.run(tool("to_nsq", "producer-opt"), stdin=stdin, check=True, timeout=DEADLINE, capture_output=True)
    tail = [*tool("nsq_tail", "consumer-opt"), "--channel=c", f"-n={len(lines)}"]
    shown = subprocess.run(tail, check=True, timeout=DEADLINE, capture_output=True).stdout
    assert sorted(shown.splitlines()) == sorted(lines)
