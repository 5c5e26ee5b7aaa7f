"""An hour of a cluster with the troubles of its operators, after which nothing is lost but what the policies drop.

    PYTHONPATH=tests:tools python -m faults.cluster --minutes=60

Three gnsqd and two nsqlookupd are on hosts of their own (network namespaces; Linux only). The name of the nsqlookupds
changes its addresses all the time, or is not resolved; an nsqlookupd is killed now and then. Each gnsqd broadcasts the
address that nsqlookupd reaches it by, and consumers find it so. On each, a channel is forgotten again and again, which
is paused on the first, emptied on the second, deleted on the third, and never refuses a publisher. The stderr of the
first is read with breaks, that of the second never. Tokens permit what they are for and nothing else, and are replaced.
"""

import fcntl
import gzip
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from faults.fenced_consumer import FencedConsumer
from faults.ledger import Ledger, Receipts
from faults.mixed_load import Clients
from faults.namespaces import Host, NameServer, enter, prepare
from faults.watching import Growth, Sample, conclude, parse, report, sample, settle, watch
from kit.daemons import DEADLINE, Address, eventually, exit_on_signals, own_command
from kit.lookupds import own_lookupd_command
from kit.nsq_client import HEARTBEAT, NSQClient, mpub_body

TOPICS = ("orders.new", "orders.paid")
WORK, FORGOTTEN = "work", "forgotten"
NAME = "lookupd.test"
POLICIES = ("pause", "empty", "delete")
IDLE = 10  # seconds until a channel is idle
MAX_DEPTH = 10_000
PIPE_SIZE = 64 * 1024  # bytes, some hundred lines
PUBLISH, READ, MANAGE, FULL = (f"{word}-token-of-the-cluster" for word in ("publish", "read", "manage", "full"))
_LINES_DROPPED = "gnsqd_log_lines_dropped_total"
ENCODINGS: dict[str, Callable[[bytes], bytes]] = {"identity": bytes, "gzip": gzip.compress, "deflate": zlib.compress}
# Requests with a token, and the status of the answer.
RIGHTS = (
    (PUBLISH, "POST", "/pub?topic=invoices", 403),
    (PUBLISH, "GET", "/stats?topic=orders.new", 403),
    (PUBLISH, "POST", "/channel/empty?topic=orders.new&channel=work", 403),
    (READ, "GET", "/stats?format=json&topic=orders.new", 200),
    (READ, "POST", "/pub?topic=orders.new", 403),
    (MANAGE, "POST", "/topic/create?topic=orders.new", 200),
    (MANAGE, "POST", "/topic/create?topic=orders.paid", 403),
    ("nobody-has-this-token", "GET", "/stats?topic=orders.new", 401),
    ("", "GET", "/stats", 401),
)


class ClusterNode:
    """One gnsqd on a host of its own; `address` is where clients reach it."""

    def __init__(self, host: Host, policy: str, directory: Path) -> None:
        self.host = host
        self.policy = policy
        self.address: Address = (host.address, 4150)
        self.tokens = directory / f"{host.name}.tokens"
        self.grant()
        data_path = directory / host.name
        data_path.mkdir()
        flags = {
            "data-path": data_path,
            "node-id": host.name[1:],
            "lookupd-tcp-address": f"{NAME}:4160",
            "broadcast-address": "auto",
            "http-auth-token-file": f"full:{self.tokens}",
            "channel-idle-timeout": f"{IDLE}s",
            "channel-idle-policy": policy,
            "max-channel-depth": MAX_DEPTH,
            "overflow-policy": "drop-idle",
            "durability": "process",
            "msg-timeout": "5s",
            "mem-queue-size": 1000,
            "log-format": "text" if policy == "delete" else "json",
        }
        self.log = directory / f"{host.name}.log"
        output = self.log.open("wb") if policy == "delete" else subprocess.PIPE
        argv = [*own_command(), *(f"--{name}={value}" for name, value in flags.items())]
        self.process = subprocess.Popen(host.command(argv), stdin=subprocess.DEVNULL, stderr=output)

    def grant(self, *more: str) -> None:
        """Writes the file of tokens."""
        lines = [f"{PUBLISH} publish:orders.*", f"{READ} read:*", f"{MANAGE} manage:orders.new", FULL]
        temporary = self.tokens.with_suffix(".new")
        temporary.write_text("\n".join([*lines, *more, ""]))
        temporary.replace(self.tokens)

    def ask(
        self, token: str, method: str, target: str, body: bytes = b"", encoding: str = "identity"
    ) -> tuple[int, bytes]:
        """Returns status and body of the answer."""
        connection = HTTPConnection(self.host.address, 4151, timeout=DEADLINE)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if encoding != "identity":
            headers["Content-Encoding"] = encoding
        try:
            connection.request(method, target, body or None, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def metric(self, name: str) -> int:
        """Returns the sum of a metric over its labels."""
        page = self.ask(FULL, "GET", "/metrics")[1].decode()
        return sum(int(float(value)) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE))

    def channels(self, topic: str) -> dict[str, dict[str, int]]:
        """Returns the channels of a topic with their figures, by name."""
        status, body = self.ask(FULL, "GET", f"/stats?format=json&include_clients=false&topic={topic}")
        assert status == 200, (status, body)
        topics = json.loads(body)["topics"]
        return {channel["channel_name"]: channel for channel in topics[0]["channels"]} if topics else {}

    def look(self) -> Sample:
        return sample(self.process.pid, self.ask(FULL, "GET", "/metrics")[1].decode())


class LookupHost:
    """One nsqlookupd on a host of its own."""

    def __init__(self, host: Host, directory: Path) -> None:
        self.host = host
        self._log = directory / f"{host.name}.log"
        self.start()

    def start(self) -> None:
        argv = [*own_lookupd_command(), f"--broadcast-address={self.host.address}"]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self.host.command(argv), stdin=subprocess.DEVNULL, stderr=log)

    def restart(self) -> None:
        self.process.kill()
        self.process.wait()
        self.start()

    def ask(self, target: str) -> dict[str, object]:
        """Returns the answer, {} if there is none."""
        connection = HTTPConnection(self.host.address, 4161, timeout=2)
        with suppress(OSError, HTTPException, ValueError):
            connection.request("GET", target)
            answer: dict[str, object] = json.loads(connection.getresponse().read())
            return answer
        return {}

    def producers(self, topic: str) -> set[Address]:
        """Returns where consumers of the topic connect."""
        rows = self.ask(f"/lookup?topic={topic}").get("producers", [])
        assert isinstance(rows, list)
        return {(row["broadcast_address"], row["tcp_port"]) for row in rows}


class ClusterClients(Clients):
    """The clients of the cluster, and its troubles."""

    def __init__(
        self, nodes: Sequence[ClusterNode], lookups: Sequence[LookupHost], names: NameServer, seed: int, interval: float
    ) -> None:
        super().__init__(seed)
        self.ledgers = [Ledger(topic, {WORK: Receipts()}) for topic in TOPICS]
        self.lines_dropped = 0  # that the first node's log admits
        self._nodes, self._lookups, self._names = nodes, lookups, names
        self._interval = interval
        self._connected: set[tuple[str, Address]] = set()
        for pipe in (node.process.stderr for node in nodes if node.process.stderr is not None):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_SIZE)  # the daemon has enlarged it
        self._consumers = [self._start(self._discover, "discovery")]
        self._start(self._read_log, "log")  # ends with the node
        others = (self._forget, self._change_names, self._check_rights, self._look)
        self._others = [self._start(body, body.__name__) for body in others]
        self._others += [self._start(self._publish, f"publisher {number}") for number in range(3)]

    def stop_publishing(self) -> None:
        """Ends all but consumers and the reading of logs, which has no breaks any more; all names are resolved."""
        self._stopping.set()
        for thread in self._others:
            thread.join()
        self._names.addresses = [lookup.host.address for lookup in self._lookups]

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._consumers:
            thread.join()

    # Messages

    def _publish(self, chance: random.Random) -> None:
        while not self._stopping.is_set():
            node = chance.choice(self._nodes)
            with NSQClient(node.address) as client:
                for _ in range(chance.randrange(20, 200)):
                    if self._stopping.wait(self._interval):
                        break
                    self._publish_once(node, client, chance)

    def _publish_once(self, node: ClusterNode, client: NSQClient, chance: random.Random) -> None:
        ledger = chance.choice(self.ledgers)
        bodies = ledger.new_bodies([chance.choice((30, 200, 2000)) for _ in range(chance.randrange(1, 20))])
        if chance.random() < 0.5:
            encoding = chance.choice(list(ENCODINGS))
            body = ENCODINGS[encoding](b"\n".join(bodies))
            answer = node.ask(PUBLISH, "POST", f"/mpub?topic={ledger.topic}", body, encoding)
            assert answer == (200, b"OK"), answer
            self._count(f"/mpub with {encoding}")
        else:
            client.command(f"MPUB {ledger.topic}".encode(), mpub_body(*bodies))
            while (response := client.response()) == HEARTBEAT:
                client.command(b"NOP")
            assert response == b"OK", response
            self._count("MPUB")
        ledger.acknowledge(bodies)

    def _discover(self, chance: random.Random) -> None:
        """Connects to every node that an nsqlookupd lists, as client libraries do."""
        while not self._stopped.wait(1):
            for ledger in self.ledgers:
                for address in set().union(*(lookup.producers(ledger.topic) for lookup in self._lookups)):
                    if (ledger.topic, address) not in self._connected:
                        self._connected.add((ledger.topic, address))
                        self._count("consumers")
                        self._consumers.append(
                            self._start(partial(self._consume, ledger, address), f"{ledger.topic} {address}")
                        )

    def _consume(self, ledger: Ledger, address: Address, chance: random.Random) -> None:
        while not self._stopped.is_set():
            with NSQClient(address) as client:
                client.subscribe(ledger.topic, WORK, rdy=100)
                consumer = FencedConsumer(client, ledger, WORK, chance, finish_all=self._stopping.is_set)
                consumer.serve(chance.uniform(2, 0.5 * IDLE), self._stopped)
                consumer.leave()

    # Troubles

    def _forget(self, chance: random.Random) -> None:
        """Creates a channel that nobody consumes, wherever it is not (any more), and looks at what becomes of it."""
        while not self._stopping.wait(chance.uniform(1, 3)):
            node, topic = chance.choice(self._nodes), chance.choice(TOPICS)
            channels = node.channels(topic)
            assert not channels.get(WORK, {}).get("paused"), f"{topic}:{WORK} is paused"
            if WORK in channels and FORGOTTEN not in channels:
                with NSQClient(node.address) as client:
                    client.subscribe(topic, FORGOTTEN)
                self._count("channels forgotten")
            elif FORGOTTEN in channels:
                depth = channels[FORGOTTEN]["depth"]
                assert depth <= MAX_DEPTH, f"{depth} messages in {topic}:{FORGOTTEN}"

    def _change_names(self, chance: random.Random) -> None:
        first, second = (lookup.host.address for lookup in self._lookups)
        while not self._stopping.wait(chance.uniform(5, 40)):
            self._names.addresses = chance.choice([[first], [second], [first, second], [second, first], [], None])
            self._count("changes of DNS")
            if chance.random() < 0.3:
                chance.choice(self._lookups).restart()
                self._count("kills of nsqlookupd")

    def _check_rights(self, chance: random.Random) -> None:
        """Tries every right, and replaces a token, which is read within a second."""
        for number in range(1_000_000):
            node = chance.choice(self._nodes)
            for token, method, target, expected in RIGHTS:
                status, body = node.ask(token, method, target)
                assert status == expected, (token, method, target, status, body)
                self._count(f"requests answered by {expected}")
            token = f"temporary-token-{number}"
            node.grant(f"{token} read:orders.*")
            target = f"/stats?topic={chance.choice(TOPICS)}"
            eventually(lambda: node.ask(token, "GET", target)[0] == 200, "the new token")  # noqa: B023
            node.grant()
            eventually(lambda: node.ask(token, "GET", target)[0] == 401, "the end of the token")  # noqa: B023
            self._count("tokens replaced")
            if self._stopping.wait(1):
                return

    def _look(self, chance: random.Random) -> None:
        """Makes lines of log: each request is one."""
        while not self._stopping.wait(0.05):
            for node in self._nodes:
                assert node.ask(READ, "GET", "/info")[0] == 200
                self._count("scrapes")

    def _read_log(self, chance: random.Random) -> None:
        """Reads the first node's lines, with breaks in which the pipe becomes full."""
        stream = self._nodes[0].process.stderr
        assert stream is not None
        while not self._stopped.is_set():
            until = time.monotonic() + chance.uniform(5, 60)
            while time.monotonic() < until and not self._stopped.is_set():
                line = stream.readline()
                if not line:
                    return
                entry = json.loads(line)
                assert {"time", "level", "text"} <= entry.keys(), line
                if dropped := re.match(r"LOG: (\d+) lines were dropped", entry["text"]):
                    self.lines_dropped += int(dropped[1])
                self._count("lines of JSON")
            self._stopping.wait(chance.uniform(10, 60))


def judge(load: ClusterClients, nodes: Sequence[ClusterNode], lookups: Sequence[LookupHost]) -> list[str]:
    """Returns what is wrong at the end: messages, policies, registrations, logs."""
    complaints: list[str] = []
    for ledger in load.ledgers:
        report(f"{ledger.topic}: {ledger.count} published, {ledger.channels[WORK].finished_count} finished")
        complaints += ledger.complaints(WORK)
    if load.counts["consumers"] != len(nodes) * len(TOPICS):
        complaints.append(f"consumers found {load.counts['consumers']} nodes and topics")
    for node in nodes:
        acted = node.metric(f'gnsqd_idle_channels_total{{policy="{node.policy}"}}')
        dropped = node.metric(_LINES_DROPPED)
        report(f"{node.host.name}: {acted} times {node.policy}, {dropped} lines of log dropped")
        if not acted:
            complaints.append(f"{node.host.name}: no channel was acted upon")
        if bool(dropped) != (node.log.exists() is False):
            complaints.append(f"{node.host.name}: {dropped} lines of log dropped")
    try:
        eventually(lambda: load.lines_dropped == nodes[0].metric(_LINES_DROPPED), "a line about the dropped ones")
        for lookup in lookups:
            addresses = {node.host.address for node in nodes}
            listed = partial(_listed, lookup)
            eventually(lambda: listed() == addresses, f"registration at {lookup.host.name}", 90)  # noqa: B023
    except AssertionError as error:
        complaints.append(str(error))
    return complaints


def _listed(lookup: LookupHost) -> set[str]:
    rows = lookup.ask("/nodes").get("producers", [])
    assert isinstance(rows, list)
    return {row["broadcast_address"] for row in rows}


def run(load: ClusterClients, nodes: Sequence[ClusterNode], seconds: float) -> list[Growth]:
    """Looks at the nodes until the time is over and all is finished; returns what has to be flat, of all of them."""

    def line(latest: Mapping[str, Sample]) -> str:
        figures = [f"{name} {sample.memory:.1f} MB {sample.files} files" for name, sample in latest.items()]
        return f"{sum(ledger.count for ledger in load.ledgers)} published; {'; '.join(figures)}"

    growths = watch({node.host.name: node.look for node in nodes}, seconds, load, line)
    load.stop_publishing()
    settle(load.ledgers, load)
    return growths


def end(nodes: Sequence[ClusterNode]) -> list[str]:
    complaints = []
    for node in nodes:
        node.process.terminate()
        try:
            code = node.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            code = -1
        if code:
            complaints.append(f"{node.host.name}: exit code {code}")
    return complaints


def main() -> int:
    asked = parse("cluster", __doc__).parse_args()
    enter("faults.cluster", sys.argv[1:])
    exit_on_signals()
    report(f"seed {asked.seed}, {asked.minutes:g} minutes")
    with tempfile.TemporaryDirectory(prefix="gnsqd-cluster-") as name:
        directory = Path(name)
        prepare(directory)
        lookups = [LookupHost(Host(number), directory) for number in (21, 22)]
        names = NameServer(NAME, [lookup.host.address for lookup in lookups])
        nodes = [ClusterNode(Host(number), policy, directory) for number, policy in enumerate(POLICIES, 11)]
        for node in nodes:
            eventually(lambda node=node: _answers(node), "a node's first answer")  # type: ignore[misc]
            for topic in TOPICS:
                assert node.ask(FULL, "POST", f"/topic/create?topic={topic}")[0] == 200
                assert node.ask(FULL, "POST", f"/channel/create?topic={topic}&channel={WORK}")[0] == 200
        load = ClusterClients(nodes, lookups, names, asked.seed, asked.interval)
        growths: list[Growth] = []
        complaints: list[str] = []
        try:
            growths = run(load, nodes, asked.minutes * 60)
            complaints = judge(load, nodes, lookups)
        except Exception as error:
            load.failures.append(error)
        load.stop()
        complaints += end(nodes)
    complaints += [f"{type(error).__name__}: {error}" for error in load.failures]
    return conclude(growths, load.counts, complaints)


def _answers(node: ClusterNode) -> bool:
    assert node.process.poll() is None, "a node ended"
    with suppress(OSError, HTTPException):
        return node.ask("", "GET", "/ping")[0] == 200
    return False


if __name__ == "__main__":
    sys.exit(main())
