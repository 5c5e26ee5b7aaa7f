"""The real nsqadmin shows gnsqd as it shows the real nsqd after the same traffic, and all its actions work.

It finds the daemon through an nsqlookupd, or is given its address. Its pages are a program that runs in a browser and
asks an HTTP API; that API is driven here.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kit.daemons import Instance, eventually, own_command
from kit.handover import shape
from kit.lookupds import EMBEDDED, LookupdInside, own_lookupd_command
from kit.nsq_client import NSQClient
from kit.peer_program import JSONServer, PeerProgram, start_nsqlookupd
from kit.traffic import create, post, publish, wait_for

pytestmark = pytest.mark.peer

BROWSERS = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome", "chrome")


class Admin(NamedTuple):
    """A daemon, the nsqadmin that watches it, and the nsqlookupd in between, if any."""

    nsqd: Instance
    admin: PeerProgram
    lookupd: JSONServer | None

    @property
    def node(self) -> str:
        """The daemon's name in nsqadmin."""
        return f"127.0.0.1:{self.nsqd.http_address[1]}"

    def act(self, what: str, **body: str) -> tuple[int, str]:
        """Status and message of an action, such as `DELETE topics/t`; `nsqd /pub?topic=t` goes to the daemon itself."""
        method, path = what.replace("NODE", self.node).split(" ")
        if method == "nsqd":
            return self.nsqd.http("POST", path, b"x")[0], ""
        status, answer = self.admin.ask(method, f"/api/{path}", **body)
        return status, self.normal(answer["message"])

    def page(self, path: str) -> tuple[int, str]:
        status, answer = self.admin.ask("GET", f"/api/{path}".replace("NODE", self.node))
        return status, self.normal(json.dumps(answer, indent=1))

    def normal(self, text: str) -> str:
        """Removes what differs between two daemons."""
        ports = [(str(self.nsqd.http_address[1]), "HTTP"), (str(self.nsqd.tcp_address[1]), "TCP")]
        if self.lookupd is not None:
            ports += [(self.lookupd.address[kind].rpartition(":")[2], f"LOOKUPD-{kind}") for kind in ("HTTP", "TCP")]
        for port, name in ports:
            text = re.sub(rf"\b{port}\b", name, text)
        remote = r'127\.0\.0\.1:\d+|(?<=HTTP/)127\.0\.0\.1:TCP|(?<="remote_address": ")127\.0\.0\.1:TCP'
        text = re.sub(remote, "127.0.0.1:CLIENT", text)
        return re.sub(r'"(connect_ts|connected)": \d+', r'"\1": 0', text)


Launch = Callable[[list[str], str], Admin]


@pytest.fixture(params=["nsqlookupd", "gnsqlookupd", "embedded", "nsqd-http-address"])
def launch(request: pytest.FixtureRequest, peer_binary: Callable[[str], Path], tmp_path: Path) -> Iterator[Launch]:
    """Starts a daemon by command and name, and the programs that watch it. `gnsqlookupd` is ours beside our daemon, and
    `embedded` ours inside our daemon; the real daemon has the real one."""
    with ExitStack() as stack:

        def start(command: list[str], name: str) -> Admin:
            flags = ["--broadcast-address=127.0.0.1"]
            lookupd: JSONServer | None = None
            own = command == own_command()
            embedded = request.param == "embedded" and own
            if embedded:
                flags = [*EMBEDDED]  # with the address by which nsqadmin asks
            elif request.param != "nsqd-http-address":
                own = request.param == "gnsqlookupd" and own
                lookupd_command = own_lookupd_command() if own else [str(peer_binary("nsqlookupd"))]
                lookupd = stack.enter_context(start_nsqlookupd(lookupd_command, tmp_path / f"{name}-lookupd"))
                flags.append(f"--lookupd-tcp-address={lookupd.address['TCP']}")
            nsqd = stack.enter_context(Instance(command, tmp_path / name, *flags))
            if embedded:
                inside = LookupdInside(nsqd)
                lookupd = JSONServer({"TCP": inside.tcp_address, "HTTP": inside.http_address})
            watched = f"--nsqd-http-address=127.0.0.1:{nsqd.http_address[1]}"
            if lookupd is not None:
                watched = f"--lookupd-http-address={lookupd.address['HTTP']}"
                eventually(lambda: lookupd.ask("GET", "/nodes")[1]["producers"], "nsqd registered")
            log = tmp_path / f"{name}-admin"
            admin = stack.enter_context(
                PeerProgram(peer_binary("nsqadmin"), log, "--http-address=127.0.0.1:0", watched)
            )
            return Admin(nsqd, admin, lookupd)

        yield start


@pytest.fixture
def sites(launch: Launch, peer_binary: Callable[[str], Path]) -> tuple[Admin, Admin]:
    """Ours and the real one."""
    return launch(own_command(), "gnsqd"), launch([str(peer_binary("nsqd"))], "nsqd")


def occupy(site: Admin, clients: ExitStack) -> None:
    """Creates topics and channels of all kinds, messages in all states, consumers and producers."""
    nsqd = site.nsqd
    create(nsqd, "orders", "archive", "mail", "none")
    create(nsqd, "paused", "c")
    create(nsqd, "idle")
    post(nsqd, "/channel/pause?topic=orders&channel=mail")
    post(nsqd, "/topic/pause?topic=paused")

    consumer = clients.enter_context(NSQClient(nsqd.tcp_address))
    consumer.identify(client_id="me", hostname="host", user_agent="ua/1.0", sample_rate=0)
    consumer.subscribe("orders", "archive", rdy=3)
    ephemeral = clients.enter_context(NSQClient(nsqd.tcp_address))
    ephemeral.subscribe("orders", "tail#ephemeral", rdy=1)
    producer = clients.enter_context(NSQClient(nsqd.tcp_address))
    producer.identify(client_id="you", hostname="host", user_agent="<ua>")
    producer.publish("orders", b"one", b"two", b"three", b"four", b"five")
    messages = [consumer.message() for _ in range(3)]
    consumer.command(b"FIN " + messages[0].id)
    consumer.command(b"REQ " + messages[1].id + b" 60000")
    messages += [consumer.message() for _ in range(2)]
    publish(nsqd, "paused", *[b"waits"] * 3)
    ephemeral.message()
    wait_for(nsqd, "orders", "archive", deferred_count=1)
    wait_for(nsqd, "orders", "none", depth=5)
    if site.lookupd is not None:
        lookupd = site.lookupd
        eventually(lambda: "channel:orders:tail#ephemeral" in lookupd.ask("GET", "/debug")[1], "all registered")
        eventually(lambda: len(lookupd.ask("GET", "/topics")[1]["topics"]) == 3)


PAGES = [
    "topics", "topics?inactive=true", "topics/orders", "topics/paused", "topics/idle", "topics/nope",
    "topics/orders/archive", "topics/orders/mail", "topics/orders/none", "topics/orders/tail%23ephemeral",
    "topics/paused/c", "topics/orders/nope", "topics/nope/nope", "nodes", "nodes/NODE", "nodes/127.0.0.1:1", "counter",
]  # fmt: skip


def test_every_page_has_the_same_contents(sites: tuple[Admin, Admin]) -> None:
    with ExitStack() as clients:
        for site in sites:
            occupy(site, clients)
        ours, real = ({path: site.page(path) for path in PAGES} for site in sites)
        assert ours == real
        errors = {path: status for path, (status, _) in ours.items() if status != 200}
        assert errors == {"topics/nope": 502, "topics/nope/nope": 502, "nodes/127.0.0.1:1": 404}
        for text in ('"in_flight_count": 3', '"deferred_count": 1', '"requeue_count": 1', '"user_agent": "ua/1.0"'):
            assert text in ours["topics/orders/archive"][1]


State = dict[str, Any]


def state(nsqd: Instance) -> State:
    return dict(shape(nsqd, "depth"))


def registrations(site: Admin) -> State:
    """Returns who nsqlookupd has for what, and who of them is tombstoned."""
    if site.lookupd is None:
        return {}
    answer = site.lookupd.ask("GET", "/debug")[1]
    return {key: [producer["tombstoned"] for producer in producers] for key, producers in answer.items()}


IDLE, ONE, PAUSED = (False, 0), (False, 1), (True, 1)
START: State = {"t": (False, 0, {"c": ONE, "d": ONE})}
EMPTIED: State = {"t": (False, 0, {"c": IDLE, "d": ONE})}

Step = tuple[str, dict[str, str], State]  # what is done, with which body; what the daemon has then

STEPS: list[Step] = [
    ("POST topics/t/c", {"action": "pause"}, {"t": (False, 0, {"c": PAUSED, "d": ONE})}),
    ("POST topics/t/c", {"action": "unpause"}, START),
    ("POST topics/t/c", {"action": "empty"}, EMPTIED),
    ("POST topics/t", {"action": "pause"}, {"t": (True, 0, {"c": IDLE, "d": ONE})}),
    ("nsqd /pub?topic=t", {}, {"t": (True, 1, {"c": IDLE, "d": ONE})}),
    ("POST topics/t", {"action": "empty"}, {"t": (True, 0, {"c": IDLE, "d": ONE})}),
    ("POST topics/t", {"action": "unpause"}, EMPTIED),
    ("POST topics/t", {"action": "explode"}, EMPTIED),
    ("POST topics/t/nope", {"action": "pause"}, EMPTIED),
    ("POST topics/nope", {"action": "pause"}, EMPTIED),
    ("DELETE topics/t/d", {}, {"t": (False, 0, {"c": IDLE})}),
    ("DELETE topics/t/d", {}, {"t": (False, 0, {"c": IDLE})}),
    ("DELETE topics/t", {}, {}),
    ("DELETE topics/t", {}, {}),
    ("nsqd /topic/create?topic=u", {}, {"u": (False, 0, {})}),
    ("DELETE nodes/NODE", {"topic": "u"}, {}),
    ("DELETE nodes/NODE", {"topic": "u"}, {}),
    ("DELETE nodes/NODE", {"topic": "$"}, {}),
]
# nsqadmin creates in nsqlookupd, and channels in every nsqd that nsqlookupd has for the topic.
CREATE = [{"topic": "t", "channel": "e"}, {"topic": "new"}, {"topic": "$"}, {"topic": "t", "channel": "$"}]
CREATED: State = {"t": (False, 0, {"c": ONE, "d": ONE, "e": IDLE})}


def test_every_action_works(sites: tuple[Admin, Admin]) -> None:
    for site in sites:
        create(site.nsqd, "t", "c", "d")
        post(site.nsqd, "/pub?topic=t", b"x")
    has(sites, START)
    watched = sites[0].lookupd is not None
    if watched:  # nsqadmin looks there for the nodes to notify
        eventually(lambda: all(registrations(site).get("channel:t:d") for site in sites), "all registered")
    steps: list[Step] = [("POST topics", body, CREATED if watched else START) for body in CREATE]
    steps += [("DELETE topics/t/e", {}, START), *STEPS]
    for what, body, expected in steps:
        ours, real = (site.act(what, **body) for site in sites)
        assert ours == real, what
        has(sites, expected)


def has(sites: tuple[Admin, Admin], expected: State) -> None:
    """Waits until both daemons have that, and both nsqlookupd know the same."""
    eventually(lambda: all(state(site.nsqd) == expected for site in sites), f"{expected}")
    eventually(lambda: registrations(sites[0]) == registrations(sites[1]), "the same registered")
