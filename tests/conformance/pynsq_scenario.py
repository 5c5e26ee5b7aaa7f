"""The scenario's driver for pynsq (see scenario.py for what it reads and prints)."""

import asyncio
import functools
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import nsq


def report(kind: str, *facts: Any) -> None:
    print(json.dumps([kind, *facts]), flush=kind in ("restart", "done"))


class ScenarioReader(nsq.Reader):  # type: ignore[misc]
    """pynsq waits 15 seconds before it connects again, and refuses sooner than 10 after the last time; not this one."""

    def _on_connection_close(self, conn: Any, **kwargs: Any) -> None:
        report("closed", time.time(), self.reader_name)
        super()._on_connection_close(conn, **kwargs)
        self.connection_attempts.clear()
        self.io_loop.call_later(0.1, self.connect_to_nsqd, conn.host, conn.port)


class PynsqDriver:
    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.requeued: set[tuple[str, str]] = set()
        self.finished: dict[str, set[str]] = {channel: set() for channel in plan["readers"]}
        self.tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        plan = self.plan
        readers = [self.reader(channel, reader) for channel, names in plan["readers"].items() for reader in names]
        writer = nsq.Writer([plan["address"]], reconnect_interval=0.1)
        await self.publish(writer, plan["slow_topic"], {"verb": "pub", "bodies": [plan["slow_body"]], "delay": 0})
        await self.publish_all(writer, plan["acts"][0])
        await until(lambda: all(len(self.finished[name]) == count for name, count in plan["first_act"].items()))
        await self.publish_all(writer, plan["acts"][1])
        report("restart")
        await self.publish_all(writer, plan["acts"][2])
        await until(lambda: all(len(self.finished[channel]) == plan["count"] for channel in ("shared", "copy")))
        report("done")
        await asyncio.to_thread(sys.stdin.read)
        for reader in readers:
            reader.close()

    def reader(self, channel: str, name: str) -> ScenarioReader:
        topic = self.plan["slow_topic" if channel == "slow" else "topic"]
        made = ScenarioReader(
            topic,
            channel,
            message_handler=lambda message: self.handle(channel, name, message),
            nsqd_tcp_addresses=[self.plan["address"]],
            max_in_flight=50,
            max_tries=0,
            max_backoff_duration=4,
        )
        made.reader_name = name
        return made

    def handle(self, channel: str, reader: str, message: Any) -> None:
        message.enable_async()
        body, message_id = message.body.decode(), message.id.decode()
        report("received", time.time(), reader, message_id, body, message.attempts)
        delay = self.plan["requeue"].get(body)
        if channel == "slow":
            task = asyncio.ensure_future(self.hold(channel, reader, message))
            self.tasks.add(task)
        elif delay is not None and (channel, body) not in self.requeued:
            self.requeued.add((channel, body))
            report("requeued", time.time(), reader, message_id, body, delay)
            message.requeue(time_ms=delay, backoff=body in self.plan["backoff"])
        else:
            self.finish(channel, reader, message)

    async def hold(self, channel: str, reader: str, message: Any) -> None:
        end = time.monotonic() + self.plan["slow_for"]
        while time.monotonic() < end:
            await asyncio.sleep(self.plan["touch_every"])
            report("touched", time.time(), reader, message.id.decode(), message.body.decode())
            message.touch()
        self.finish(channel, reader, message)

    def finish(self, channel: str, reader: str, message: Any) -> None:
        body = message.body.decode()
        report("finished", time.time(), reader, message.id.decode(), body)
        message.finish()
        self.finished[channel].add(body)

    async def publish_all(self, writer: Any, units: list[dict[str, Any]]) -> None:
        for start in range(0, len(units), 20):
            await asyncio.gather(
                *(self.publish(writer, self.plan["topic"], unit) for unit in units[start : start + 20])
            )

    def answer(self, answered: asyncio.Future[Any], connection: Any, data: Any) -> None:
        # A connection that breaks while pynsq writes to it reports that twice.
        if not answered.done():
            answered.set_result(data)

    async def publish(self, writer: Any, topic: str, unit: dict[str, Any]) -> None:
        bodies = [body.encode() for body in unit["bodies"]]
        publish: dict[str, Callable[[Any], Awaitable[None]]] = {
            "pub": lambda answer: writer.pub(topic, bodies[0], answer),
            "mpub": lambda answer: writer.mpub(topic, bodies, answer),
            "dpub": lambda answer: writer.dpub(topic, unit["delay"], bodies[0], answer),
        }
        while True:
            for body in unit["bodies"]:
                report("sent", time.time(), body, unit["delay"])
            answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            publish[unit["verb"]](functools.partial(self.answer, answered))
            if await answered == b"OK":
                return
            await asyncio.sleep(0.05)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        asyncio.run(PynsqDriver(json.load(file)).run())
