"""A daemon that stands still for a while, as under a debugger or on a machine that sleeps: it goes on where it was."""

import signal
import time
from collections.abc import Callable

from kit.daemons import Daemon, eventually
from kit.nsq_client import HEARTBEAT, MESSAGE, Client, Frame, parse_message

DaemonFactory = Callable[..., Daemon]

TIMEOUT = 2.0  # seconds
STANDSTILL = 2.5


def next_frame(client: Client, timeout: float) -> Frame:
    while (frame := client.frame(timeout)).data == HEARTBEAT:
        client.command(b"NOP")
    return frame


def test_daemon_that_stood_still_delivers_what_was_due_meanwhile(nsqd_factory: DaemonFactory) -> None:
    nsqd = nsqd_factory(f"--msg-timeout={TIMEOUT}s")
    with Client(nsqd.tcp_address) as consumer, Client(nsqd.tcp_address) as publisher:
        assert consumer.identify(output_buffer_size=-1).data == b"OK"
        consumer.subscribe("t", "c", rdy=100)
        publisher.publish("t", b"times out", b"requeued", b"finished meanwhile")
        held = {message.body: message for message in (consumer.message() for _ in range(3))}
        consumer.command(b"REQ " + held[b"requeued"].id + b" 2000")
        publisher.command(b"DPUB t 2000", b"deferred")
        assert publisher.response() == b"OK"

        def is_deferred() -> bool:
            stats = nsqd.channel_stats("t", "c")
            return (stats["message_count"], stats["requeue_count"]) == (4, 1)

        eventually(is_deferred)
        nsqd.send_signal(signal.SIGSTOP)
        try:
            consumer.command(b"FIN " + held[b"finished meanwhile"].id)
            publisher.command(b"PUB t", b"published meanwhile")
            with Client(nsqd.tcp_address) as newcomer:  # the kernel takes it
                newcomer.command(b"PUB t", b"by a newcomer")
                time.sleep(STANDSTILL)  # this time must pass: everything is due then
                nsqd.send_signal(signal.SIGCONT)
                assert newcomer.response() == b"OK"
        finally:
            nsqd.send_signal(signal.SIGCONT)
        assert publisher.response() == b"OK"
        came: dict[bytes, int] = {}

        def all_finished() -> bool:
            try:
                frame = next_frame(consumer, 0.05)
            except TimeoutError:
                stats = nsqd.channel_stats("t", "c")
                return not (stats["depth"] or stats["in_flight_count"] or stats["deferred_count"])
            if frame.type == MESSAGE:
                message = parse_message(frame.data)
                assert message.body not in came
                came[message.body] = message.attempts
                consumer.command(b"FIN " + message.id)
            return False

        eventually(all_finished)
        # The FIN and the timeout were due at the same time: either may be first.
        assert came.pop(b"finished meanwhile", 2) == 2
        once = dict.fromkeys((b"deferred", b"published meanwhile", b"by a newcomer"), 1)
        assert came == {b"times out": 2, b"requeued": 2, **once}
