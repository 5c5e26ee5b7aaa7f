"""Prints every message of a topic, one a line, by pynsq as it is by default: `pynsq_by_default.py topic channel
nsqlookupd`."""

import asyncio
import sys
from typing import Any

import nsq


def handle(message: Any) -> bool:
    sys.stdout.write(message.body.decode() + "\n")
    sys.stdout.flush()
    return True


async def main(topic: str, channel: str, lookupd: str) -> None:
    nsq.Reader(topic, channel, message_handler=handle, lookupd_http_addresses=[f"http://{lookupd}"])
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
