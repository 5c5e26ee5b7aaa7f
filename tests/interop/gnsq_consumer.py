"""Prints every message of a topic, one a line, by gnsq: `gnsq_consumer.py topic channel nsqlookupd...`"""

import sys
from typing import Any

import gnsq


def handle(_: gnsq.Consumer, message: Any) -> None:
    sys.stdout.write(message.body.decode() + "\n")
    sys.stdout.flush()


def main(topic: str, channel: str, *lookupds: str) -> None:
    consumer = gnsq.Consumer(
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
