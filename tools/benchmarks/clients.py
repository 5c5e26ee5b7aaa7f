"""A publisher and a consumer that cost the machine next to nothing: where NSQ's own bench programs cannot measure what
went through in the end, or how long all of a backlog takes.

All bodies of a topic are zeros and of one size, so whole chunks of what arrives are taken apart at once. That is so
cheap that the daemon is what is measured; `Drained.busy` proves it.
"""

import contextlib
import selectors
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.lanes import BenchmarkError
from kit.daemons import Address
from kit.nsq_client import RESPONSE, Client, Frame

HEARTBEAT = struct.pack(">ii", 15, 0) + b"_heartbeat_"

MPUB_BYTES = 4 << 20  # nsqd's default max-body-size is 5 MiB
RECEIVE_BYTES = 1 << 18
PATIENCE = 60.0  # seconds without an answer or a message


def publish(address: Address, topic: str, count: int, body_size: int) -> None:
    """Publish `count` messages by MPUBs of about 4 MiB, one unanswered at a time; BenchmarkError if one is refused."""
    batch = max(MPUB_BYTES // (4 + body_size), 1)
    message = struct.pack(">i", body_size) + bytes(body_size)
    with Client(address, timeout=PATIENCE) as client:
        client.identify(heartbeat_interval=-1)
        for start in range(0, count, batch):
            number = min(batch, count - start)
            client.command(f"MPUB {topic}".encode(), struct.pack(">i", number) + message * number)
            if (answer := client.frame()) != Frame(RESPONSE, b"OK"):
                raise BenchmarkError(f"MPUB was answered {answer}")


@dataclass(frozen=True)
class Drained:
    seconds: float  # from the first RDY to the FIN of the message that ended the measurement
    messages: int  # that were finished in this time
    busy: float  # the share of this time that the consumer itself used the CPU


class Consumer:
    """One connection that finishes messages as they come: those of a `recv` together."""

    def __init__(self, address: Address, topic: str, channel: str, body_size: int) -> None:
        client = Client(address, timeout=PATIENCE)
        client.subscribe(topic, channel)
        self.socket = client.sock
        self._frame = struct.Struct(f">18x16s{body_size}x")  # only the id is looked at
        self._head = struct.pack(">ii", 30 + body_size, 2)
        self._rest = client.buffer

    def consume(self) -> int:
        """Receive once and finish every whole message; how many there were. BenchmarkError at anything else."""
        received = self.socket.recv(RECEIVE_BYTES)
        if not received:
            raise BenchmarkError("the daemon closed the connection")
        # No id and no body looks like a heartbeat, and finished messages are answer enough.
        data = (self._rest + received).replace(HEARTBEAT, b"")
        end = len(data) - len(data) % self._frame.size
        self._rest = data[end:]
        if not end:
            return 0
        if not data.startswith(self._head):
            raise BenchmarkError(f"the daemon sent {data[:100]!r}")
        ids = [id for (id,) in self._frame.iter_unpack(memoryview(data)[:end])]
        self.socket.sendall(b"FIN " + b"\nFIN ".join(ids) + b"\n")
        return len(ids)


def consuming(consumers: Sequence[Consumer], rdy: int) -> Iterator[tuple[Consumer, int]]:
    """Give them a window, and yield without end who got something, and how many messages; BenchmarkError if no more
    come."""
    done = 0
    with selectors.DefaultSelector() as selector:
        for consumer in consumers:
            selector.register(consumer.socket, selectors.EVENT_READ, consumer)
            consumer.socket.sendall(b"RDY %d\n" % rdy)
        while ready := selector.select(PATIENCE):
            for key, _ in ready:
                count = key.data.consume()
                done += count
                yield key.data, count
    raise BenchmarkError(f"nothing comes any more after {done} messages")


def drain(
    address: Address, topic: str, channel: str, count: int, body_size: int, *, rdy: int, connections: int, until: int
) -> Drained:
    """Consume `count` messages; the first `until` of them are measured. BenchmarkError if they do not come."""
    with contextlib.ExitStack() as stack:
        consumers = [Consumer(address, topic, channel, body_size) for _ in range(connections)]
        for consumer in consumers:
            stack.enter_context(consumer.socket)
        began, began_cpu = time.monotonic(), time.process_time()
        done = 0
        result = None
        for _, received in consuming(consumers, rdy):
            done += received
            if result is None and done >= until:
                seconds = time.monotonic() - began
                result = Drained(seconds, done, (time.process_time() - began_cpu) / seconds)
            if done >= count:
                break
    assert result is not None
    return result
