"""Prints every message of a topic, one a line, by gnsq: `gnsq_consumer.py topic channel nsqlookupd...`"""

import sys
from typing import Any

import gnsq


class PrintingConsumer(gnsq.Consumer):  # type: ignore[misc]
    """gnsq sends RDY to all connections when one is there, also to another that is still being made: without a socket
    that ends the greenlet that sends RDY, and without SUB nsqd closes the connection. Here it waits for that one."""

    _connecting = 0

    def connect_to_nsqd(self, address: str, port: int) -> None:
        self._connecting += 1
        try:
            super().connect_to_nsqd(address, port)
        finally:
            self._connecting -= 1
            self.redistribute_ready_state()

    def _redistribute_ready_state(self) -> None:
        if not self._connecting:
            super()._redistribute_ready_state()


def handle(_: gnsq.Consumer, message: Any) -> None:
    sys.stdout.write(message.body.decode() + "\n")
    sys.stdout.flush()


def main(topic: str, channel: str, *lookupds: str) -> None:
    consumer = PrintingConsumer(
        topic,
        channel,
        lookupd_http_addresses=list(lookupds),
        message_handler=handle,
        lookupd_poll_interval=1,
        max_in_flight=50,
        max_backoff_duration=1,
    )
    consumer.start()


if __name__ == "__main__":
    main(*sys.argv[1:])
