"""One random session for two daemons.

Step `n` is made from the session's seed, `n` and the state alone, so that a session can be played without some of its
steps.
"""

import json
import random
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partialmethod
from http.client import HTTPException
from typing import Any

from kit.nsq_client import mpub_body, sized
from model import bad_arguments
from model.player import FENCE, STATS, UNKNOWN_ID, ConnectionPair, Disagreement, Held, Player
from model.queues import CLOSING, INIT, SUBSCRIBED, ExpectedChannel
from model.sides import PATIENCE, DaemonSide, HTTPAnswer, Link, Web, counts, shown

TOPICS = ("a", "a", "b.B_-9", "e#ephemeral")
CHANNELS = ("c", "c", "d", "x#ephemeral")
LATER = (60_000, 3_600_000)  # ms; delays that end after every session
UNKNOWN = Held((UNKNOWN_ID,) * 2, b"")
AT_ONCE = {"output_buffer_size": -1, "output_buffer_timeout": -1}
FIELDS = ({"heartbeat_interval": -1}, {"heartbeat_interval": 60000}, {"msg_timeout": 900000}, {"unknown": None})


class Impossible(Exception):
    """The state does not allow this step."""


class RandomSession(Player):
    """`on_disk`: the daemons have no memory queue."""

    def __init__(
        self, sides: tuple[DaemonSide, DaemonSide], seed: str, on_disk: bool, patience: float = PATIENCE
    ) -> None:
        super().__init__(sides, patience)
        self.seed = seed
        self.chance = random.Random(seed)
        # Without memory nothing but a consumer that waits at the very moment takes a message of an ephemeral channel,
        # and a delay is lost unless the topic's pump waits so: neither is determined.
        self._topics = [name for name in TOPICS if not (on_disk and "#" in name)]
        self._channels = [name for name in CHANNELS if not (on_disk and "#" in name)]
        self._on_disk = on_disk
        self._made = 0
        self._bodies = 0

    def play(self, steps: Collection[int]) -> None:
        """Plays steps; raises Disagreement or ExplainedDisagreement. In the end all topics and connections are gone."""
        try:
            for self.number in steps:
                self.chance = random.Random(f"{self.seed} {self.number}")
                self._step()
                self.rest()
            self._end()
        except (TimeoutError, ConnectionError, HTTPException, json.JSONDecodeError) as error:
            raise Disagreement(f"{self.trace[-1]}: {error!r}", "?", "?") from error

    def _step(self) -> None:
        while True:
            with suppress(Impossible):
                return self.chance.choice(KINDS)(self)

    def _end(self) -> None:
        self.note("the end")
        for name in list(self.queues.topics):
            self.request(f"POST /topic/delete?topic={name}".replace("#", "%23"), b"")
            self._drop_topic(name)
        for connection in list(self.connections):
            self.lose(connection)
        self.rest()

    def clean_up(self) -> None:
        """Removes everything after a difference, so that nothing is left for the next session."""
        for connection in list(self.connections):
            for link in connection.links:
                link.close()
        for side in self.sides:
            side.web.close()
            side.web = Web(side.daemon.http_address)
            for name in counts(side.web.ask(STATS).body.partition(b'"topics":')[2]):
                side.web.ask(f"POST /topic/delete?topic={name}".replace("#", "%23"), b"")

    # Choices

    def _connection(self, *states: str) -> ConnectionPair:
        found = [connection for connection in self.connections if not states or connection.window.state in states]
        if not found:
            raise Impossible
        return self.chance.choice(found)

    def _body(self) -> bytes:
        self._bodies += 1
        return b"%d" % self._bodies + b"." * self.chance.choice((0, 0, 10, 500))

    def _delay(self) -> int:
        """Chooses a delay; 0 is none."""
        return 0 if self._on_disk or self.chance.random() < 0.3 else self.chance.choice(LATER)

    # Connections

    def connect(self) -> None:
        if len(self.connections) >= 6:
            raise Impossible
        self._made += 1
        links = [Link(side.daemon.tcp_address, self.patience) for side in self.sides]
        connection = ConnectionPair(links, self._made)
        self.connections.append(connection)
        if self.chance.random() < 0.15:
            self.note(f"{connection}: connect")
        else:
            connection.lazy = False
            self._identify(connection)

    def identify_again(self) -> None:
        connection = self._connection(INIT)
        if connection.lazy:
            raise Impossible
        self._identify(connection)

    def _identify(self, connection: ConnectionPair) -> None:
        fields: dict[str, Any] = {**AT_ONCE, "feature_negotiation": self.chance.random() < 0.3}
        for name in self.chance.sample(("client_id", "hostname", "user_agent"), self.chance.randrange(4)):
            fields[name] = f"{name} {self._made}"
        if self.chance.random() < 0.1:
            fields |= self.chance.choice(FIELDS)
        self.note(f"{connection}: IDENTIFY {fields}")
        self.talk(connection, b"IDENTIFY\n" + sized(json.dumps(fields).encode()))

    def disconnect(self) -> None:
        connection = self._connection()
        reset = self.chance.random() < 0.5
        self.note(f"{connection}: {'reset' if reset else 'close'}")
        if reset:
            for link in connection.links:
                link.reset()
        self.lose(connection)

    def bad_command(self) -> None:
        connection = self._connection()
        state = connection.window.state
        topic, channel = self.chance.choice(self._topics), self.chance.choice(self._channels)
        line, body, cut = bad_arguments.command(self.chance, topic, channel, state != INIT, state == CLOSING)
        self.note(f"{connection}: bad {line[:100]!r} {body[:100]!r}{' and the end' * cut}")
        data = line + b"\n" + body
        if cut:
            for link in connection.links:
                link.send(data)
                link.end_of_sending()
            self.talk(connection, b"", 2)
        elif state == INIT:
            self.talk(connection, data)
        else:
            self.talk(connection, data + FENCE, 2)

    # Publishing

    def _publish(self, verb: str, most: int = 1) -> None:
        connection = self._connection()
        bodies = [self._body() for _ in range(self.chance.randrange(most) + 1)]
        delay = self._delay() if verb == "DPUB" else None
        topic = self.chance.choice(self._topics)
        line = f"{verb} {topic}" + (f" {delay}" if delay is not None else "")
        self.note(f"{connection}: {line}, {[body[:20] for body in bodies]}")
        data = line.encode() + b"\n" + sized(mpub_body(*bodies) if verb == "MPUB" else bodies[0])
        if self.chance.random() < 0.05:
            cut = self.chance.randrange(1, len(data))
            for link in connection.links:
                link.send(data[:cut])
            data = data[cut:]
        if self.talk(connection, data)[0].data == b"OK":
            self.queues.publish(topic, len(bodies), bool(delay))

    pub = partialmethod(_publish, "PUB")
    mpub = partialmethod(_publish, "MPUB", 5)
    dpub = partialmethod(_publish, "DPUB")

    # Consuming

    def sub(self) -> None:
        connection = self._connection(INIT)
        topic, channel = self.chance.choice(self._topics), self.chance.choice(self._channels)
        self.note(f"{connection}: SUB {topic} {channel}")
        if self.talk(connection, f"SUB {topic} {channel}\n".encode())[0].data == b"OK":
            window = connection.window
            window.topic, window.channel, window.state = topic, channel, SUBSCRIBED
            self.queues.channel(topic, channel).clients += 1

    def rdy(self) -> None:
        connection = self._connection(SUBSCRIBED, CLOSING)
        window = connection.window
        count = self.chance.choice((0, 1, 1, 2, 3, 5, 50))
        if connection.lazy:
            count = min(count, 1)
        others = [other.window for other in self.connections if other is not connection]
        place = (window.topic, window.channel)
        if count and any(other.ready and place == (other.topic, other.channel) for other in others):
            raise Impossible
        line = f"RDY {count}"
        if self.chance.random() < 0.1:
            line = {0: "RDY ", 1: "RDY"}.get(count, f"RDY 0{count}")
        self.note(f"{connection}: {line}")
        if self.send(connection, [line.encode()] * 2) and window.state == SUBSCRIBED:
            window.ready = count

    def req(self) -> None:
        delay = 0 if self.chance.random() < 0.6 else self.chance.choice((*LATER, 99_999_999))
        self._answer(b"REQ %%b %d" % delay, delay)

    def _answer(self, command: bytes, delay: int = 0) -> None:
        """Answers a message in flight; sometimes one that is not, or that another has."""
        connection = self._connection(SUBSCRIBED, CLOSING)
        foreign = ""
        if self.chance.random() < 0.85:
            messages = connection.held
        else:
            other = self._connection(SUBSCRIBED, CLOSING)
            foreign = " of another topic" * (other.window.topic != connection.window.topic)
            messages = other.held[:2] if foreign else [*connection.dropped[-3:], *other.held[:2], UNKNOWN]
        if not messages:
            raise Impossible
        held = messages[0] if self.chance.random() < 0.7 else self.chance.choice(messages)
        self.note(f"{connection}: {(command % held.body[:20]).decode()}{foreign}")
        if self.send(connection, [command % id for id in held.ids]) and held in connection.held and command[:1] != b"T":
            window = connection.window
            connection.held.remove(held)
            connection.dropped.append(held)
            window.in_flight -= 1
            channel = self.queues.channel(window.topic, window.channel)
            channel.in_flight -= 1
            if command[:1] == b"R":
                channel.deferred += delay > 0
                channel.depth += delay == 0

    fin = partialmethod(_answer, b"FIN %b")
    touch = partialmethod(_answer, b"TOUCH %b")

    def cls(self) -> None:
        connection = self._connection(SUBSCRIBED)
        self.note(f"{connection}: CLS")
        if self.talk(connection, b"CLS\n")[0].data == b"CLOSE_WAIT":
            connection.window.state = CLOSING
            connection.window.ready = 0

    def nop(self) -> None:
        connection = self._connection(SUBSCRIBED, CLOSING)
        self.note(f"{connection}: NOP")
        self.send(connection, [b"NOP"] * 2)

    def strange(self) -> None:
        """Does one of the things that are answered otherwise on purpose."""
        connection = self._connection(INIT, SUBSCRIBED)
        if self.chance.random() < 0.9:
            raise Impossible
        topic = self.chance.choice(self._topics)
        if connection.window.state == SUBSCRIBED:
            self.note(f"{connection}: RDY {1 << 64}")
            self.talk(connection, b"RDY %d\n" % (1 << 64) + FENCE, 2)
        elif self.chance.random() < 0.5:
            self.note(f"{connection}: DPUB {topic} {1 << 64}")
            self.talk(connection, b"DPUB %b %d\n" % (topic.encode(), 1 << 64) + sized(b"x"))
        else:
            self.note(f"{connection}: MPUB {topic} with messages beyond its body")
            body = mpub_body(*[b"x" * 1000] * 5)
            self.talk(connection, b"MPUB %b\n" % topic.encode() + bad_arguments.int32(4000) + body)

    # HTTP

    def request(self, what: str, body: bytes | None) -> HTTPAnswer:
        ours, real = self.ask(what, body)
        self.compare("answers", ours, real)
        return ours

    def topic_act(self) -> None:
        act = self.chance.choice(("create", "create", "empty", "pause", "unpause", "unpause", "delete"))
        name = self.chance.choice(self._topics)
        self.note(f"/topic/{act} {name}")
        if self.request(f"POST /topic/{act}?topic={name}".replace("#", "%23"), b"").status == 200:
            topic = self.queues.topic(name)
            if act == "empty":
                topic.depth = topic.deferred = 0
            elif act == "delete":
                self._drop_topic(name)
            elif act != "create":
                topic.paused = act == "pause"

    def channel_act(self) -> None:
        act = self.chance.choice(("create",) * 4 + ("empty", "pause", "unpause", "unpause", "delete"))
        topic, name = self.chance.choice(self._topics), self.chance.choice(self._channels)
        if act == "empty" and self._may_refill(topic, name):
            raise Impossible
        self.note(f"/channel/{act} {topic} {name}")
        answer = self.request(f"POST /channel/{act}?topic={topic}&channel={name}".replace("#", "%23"), b"")
        if answer.status == 200:
            channel = self.queues.channel(topic, name)
            if act == "empty":
                self._empty(topic, channel)
            elif act == "delete":
                self._drop_channel(topic, name)
            elif act != "create":
                channel.paused = act == "pause"

    def _may_refill(self, topic: str, name: str) -> bool:
        """True if nobody knows what is in flight after "empty": nsqd's Channel.Empty makes the consumers ready
        before it empties the queue, so that one of them may take a message in between."""
        channels = self.queues.topics[topic].channels if topic in self.queues.topics else {}
        if name not in channels or channels[name].paused or not channels[name].depth:
            return False
        windows = [connection.window for connection in self.connections]
        return any(window.ready and (window.topic, window.channel) == (topic, name) for window in windows)

    def _empty(self, topic: str, channel: ExpectedChannel) -> None:
        channel.depth = channel.in_flight = channel.deferred = 0
        for connection in self.connections:
            if (connection.window.topic, connection.window.channel) == (topic, channel.name):
                connection.window.in_flight = 0
                connection.dropped += connection.held
                connection.held.clear()

    def _drop_topic(self, name: str) -> None:
        for channel in list(self.queues.topics[name].channels):
            self._drop_channel(name, channel)
        self.queues.topics.pop(name, None)

    def _drop_channel(self, topic: str, name: str) -> None:
        """Drops a channel, and with it its consumers' connections."""
        self.queues.delete_channel(topic, name)
        for connection in list(self.connections):
            if (connection.window.topic, connection.window.channel) == (topic, name):
                self.talk(connection, b"")

    def http_pub(self) -> None:
        topic, delay = self.chance.choice(self._topics), self._delay()
        what = f"POST /pub?topic={topic}" + f"&defer={delay}" * (delay > 0 or self.chance.random() < 0.3)
        self.note(what)
        if self.request(what.replace("#", "%23"), self._body()).status == 200:
            self.queues.publish(topic, 1, delay > 0)

    def http_mpub(self) -> None:
        topic, bodies = self.chance.choice(self._topics), [self._body() for _ in range(self.chance.randrange(1, 6))]
        what, body = f"POST /mpub?topic={topic}", b"\n".join(bodies)
        if self.chance.random() < 0.5:
            what, body = f"{what}&binary={self.chance.choice(('true', '1', 'yes'))}", mpub_body(*bodies)
        elif self.chance.random() < 0.5:
            body += b"\n"
        self.note(f"{what} of {len(bodies)}")
        if self.request(what.replace("#", "%23"), body).status == 200:
            self.queues.publish(topic, len(bodies))

    def bad_request(self) -> None:
        topic, channel = self.chance.choice(self._topics), self.chance.choice(self._channels)
        what, body = bad_arguments.request(self.chance, topic, channel)
        self.note(f"{what} {(body or b'')[:40]!r}")
        self.request(what, body)

    def look(self) -> None:
        """Compares /stats with the clients; the connections that are about to end may be seen for a while."""
        topic, channel = self.chance.choice(self._topics), self.chance.choice(("", "", *self._channels))
        what = f"GET /stats?format={self.chance.choice(('json', 'json', 'text'))}&topic={topic}&channel={channel}"
        what = what.replace("#", "%23").removesuffix("&channel=") + "&include_mem=false"
        self.note(what)
        self.eventually(lambda: [shown(answer.body) for answer in self.ask(what)], "the statistics of clients")


WEIGHTS = dict(
    connect=8, identify_again=1, disconnect=1, bad_command=4, pub=12, mpub=6, dpub=3, sub=10, rdy=14, fin=28,
    touch=5, req=14, cls=1, nop=1, strange=1, topic_act=6, channel_act=8, http_pub=4, http_mpub=3,
    bad_request=4, look=4,
)  # fmt: skip
KINDS: list[Callable[[RandomSession], None]] = [
    getattr(RandomSession, name) for name, n in WEIGHTS.items() for _ in range(n)
]
