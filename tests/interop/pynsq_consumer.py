"""Prints every message of a topic, one a line, by pynsq: `pynsq_consumer.py topic channel nsqlookupd...`"""

import asyncio
import sys
from typing import Any

import nsq


class PrintingReader(nsq.Reader):  # type: ignore[misc]
    """pynsq refuses to connect again sooner than 10 seconds after the last time; not this one."""

    def _on_connection_close(self, conn: Any, **kwargs: Any) -> None:
        super()._on_connection_close(conn, **kwargs)
        self.connection_attempts.clear()


def handle(message: Any) -> bool:
    sys.stdout.write(message.body.decode() + "\n")
    sys.stdout.flush()
    return True


async def main(topic: str, channel: str, *lookupds: str) -> None:
    PrintingReader(
        topic,
        channel,
        handle,
        lookupd_http_addresses=[f"http://{address}" for address in lookupds],
        lookupd_poll_interval=1,
        max_in_flight=50,
    )
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
