"""The account of a topic: what its publishers were answered, against what a consumer gets in the end.

An acknowledged message must come. One that was refused must not, except for the first part of a batch: of an MPUB the
daemon keeps what came before the message that it could not write (NSQD-COMPAT 2.4).
"""

import time
from collections import Counter

from kit.daemons import DEADLINE, Instance, eventually
from kit.http_api import message
from kit.nsq_client import ERROR, HEARTBEAT, MESSAGE, RESPONSE, NSQClient, mpub_body, parse_message

VERBS = ["PUB", "MPUB", "DPUB", "/pub", "/mpub"]
REFUSED = {"PUB": "E_PUB_FAILED PUB", "MPUB": "E_MPUB_FAILED MPUB", "DPUB": "E_DPUB_FAILED DPUB"}


class Account:
    """Publishes to one topic of a daemon; bodies are unique, so that each can be identified. DPUB asks for a
    `delay` in ms."""

    def __init__(self, daemon: Instance, topic: str, *, delay: int = 1) -> None:
        self.daemon = daemon
        self.topic = topic
        self.delay = delay
        self.acknowledged: list[bytes] = []
        self.refused: list[list[bytes]] = []
        self.unanswered: list[bytes] = []
        self.error = ""  # of the last refusal with a reason
        self._client: NSQClient | None = None

    def publish(self, verb: str, *sizes: int) -> bool:
        """Publishes bodies of these many bytes, all with one MPUB or /mpub, else one by one until one is refused.
        Returns True if they were acknowledged. A refusal must be in the right form. With a daemon that dies meanwhile
        they are `unanswered` and may come or not."""
        batches = [list(sizes)] if verb in ("MPUB", "/mpub") else [[size] for size in sizes]
        for batch in batches:
            bodies = [self._body(number, size) for number, size in enumerate(batch)]
            try:
                acknowledged = self._send(verb, bodies)
            except ConnectionError:
                self.disconnect()
                self.unanswered += bodies
                return False
            if not acknowledged:
                self.refused.append(bodies)
                return False
            self.acknowledged += bodies
        return True

    def _body(self, number: int, size: int) -> bytes:
        return b"%s %d %d %d " % (self.topic.encode(), len(self.acknowledged), len(self.refused), number) + b"." * size

    def _send(self, verb: str, bodies: list[bytes]) -> bool:
        if verb.startswith("/"):
            status, _, answer = self.daemon.http("POST", f"{verb}?topic={self.topic}", b"\n".join(bodies))
            assert (status, answer.decode()) in [(200, "OK"), (503, message("EXITING"))]
            return status == 200
        if self._client is None:
            self._client = NSQClient(self.daemon.tcp_address)
        line = f"{verb} {self.topic}" + f" {self.delay}" * (verb == "DPUB")
        self._client.command(line.encode(), mpub_body(*bodies) if verb == "MPUB" else bodies[0])
        frame = self._client.frame()
        if frame.type == RESPONSE:
            assert frame.data == b"OK"
            return True
        # The error of the disk follows, and the connection ends.
        assert frame.type == ERROR
        start = f"{REFUSED[verb]} failed "
        assert frame.data.decode().startswith(start)
        self.error = frame.data.decode().removeprefix(start)
        assert self._client.recv_until_closed() == b""
        self.disconnect()
        return False

    def disconnect(self) -> None:
        """Closes the publisher's connection; the next message makes a new one."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def settle(self, *, lost: int = 0, twice: bool = False) -> None:
        """Reads all of the topic through channel `c` and judges: at most `lost` acknowledged messages may be missing,
        and none may come twice unless `twice`."""
        self.disconnect()
        delivered = Counter(drain(self.daemon, self.topic))
        missing = Counter(self.acknowledged) - delivered
        assert len(missing) <= lost, (len(missing), list(missing)[:3])
        beginnings = [body for batch in self.refused for body in batch[: _kept(batch, delivered)]]
        strange = set(delivered).difference(self.acknowledged, self.unanswered, beginnings)
        assert not strange, list(strange)[:3]
        if not twice:
            assert max(delivered.values(), default=1) == 1


def _kept(batch: list[bytes], delivered: Counter[bytes]) -> int:
    """Returns how many bodies at the beginning of a refused batch may have come: all but the last one, without a
    gap."""
    kept = 0
    while kept < len(batch) - 1 and batch[kept] in delivered:
        kept += 1
    return kept


def next_body(client: NSQClient) -> bytes:
    """Returns the body of the next message, which it finishes; heartbeats before it are answered."""
    while (frame := client.frame()).type != MESSAGE:
        assert frame == (RESPONSE, HEARTBEAT)
        client.command(b"NOP")
    received = parse_message(frame.data)
    client.command(b"FIN " + received.id)
    return received.body


def drain(daemon: Instance, topic: str, channel: str = "c", *, at_least: int = 0) -> list[bytes]:
    """Bodies of everything that the channel gives until it and the topic are empty by their depths; `at_least` is for
    depths that may be too low.
    """
    bodies: list[bytes] = []
    deadline = time.monotonic() + DEADLINE
    with NSQClient(daemon.tcp_address) as client:
        assert client.identify(output_buffer_size=-1).data == b"OK"  # nothing waits for more
        client.subscribe(topic, channel, rdy=100)
        seen_empty = 0  # a message that moves from the topic to the channel may be seen in neither once
        while seen_empty < 2:
            assert time.monotonic() < deadline, f"{len(bodies)} messages, and then? {daemon.stats(topic)}"
            try:
                frame = client.frame(0.03)
            except TimeoutError:
                seen_empty = seen_empty + 1 if len(bodies) >= at_least and _is_empty(daemon, topic, channel) else 0
                continue
            if frame.type == MESSAGE:
                received = parse_message(frame.data)
                bodies.append(received.body)
                client.command(b"FIN " + received.id)
            else:
                assert frame == (RESPONSE, HEARTBEAT)
    eventually(lambda: not daemon.channel_stats(topic, channel)["clients"])
    return bodies


def _is_empty(daemon: Instance, topic: str, channel: str) -> bool:
    (found,) = daemon.stats(topic, channel)["topics"]
    entry = found["channels"][0]
    counts = [found["depth"], entry["depth"], entry["in_flight_count"], entry["deferred_count"]]
    return not any(max(count, 0) for count in counts)
