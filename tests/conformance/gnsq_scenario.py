"""The scenario's driver for gnsq (see scenario.py for what it reads and prints)."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import gevent
import gnsq


def report(kind: str, *facts: Any) -> None:
    print(json.dumps([kind, *facts]), flush=kind in ("restart", "done"))


class GnsqDriver:
    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.requeued: set[tuple[str, str]] = set()
        self.finished: dict[str, set[str]] = {channel: set() for channel in plan["readers"]}

    def run(self) -> None:
        plan = self.plan
        consumers = [self.consumer(channel, reader) for channel, names in plan["readers"].items() for reader in names]
        producer = gnsq.Producer(plan["address"], max_backoff_duration=0.2)
        producer.start()
        self.publish(producer, plan["slow_topic"], {"verb": "pub", "bodies": [plan["slow_body"]], "delay": 0})
        self.publish_all(producer, plan["acts"][0])
        until(lambda: all(len(self.finished[name]) == count for name, count in plan["first_act"].items()))
        self.publish_all(producer, plan["acts"][1])
        report("restart")
        self.publish_all(producer, plan["acts"][2])
        until(lambda: all(len(self.finished[channel]) == plan["count"] for channel in ("shared", "copy")))
        report("done")
        gevent.get_hub().threadpool.apply(sys.stdin.read)
        producer.close()
        for consumer in consumers:
            consumer.close()

    def consumer(self, channel: str, name: str) -> gnsq.Consumer:
        consumer = gnsq.Consumer(
            self.plan["slow_topic" if channel == "slow" else "topic"],
            channel,
            self.plan["address"],
            message_handler=lambda _, message: self.handle(channel, name, message),
            max_in_flight=50,
            max_tries=0,
            max_backoff_duration=0.2,
        )
        consumer.start(block=False)
        return consumer

    def handle(self, channel: str, reader: str, message: Any) -> None:
        message.enable_async()
        body, message_id = message.body.decode(), message.id.decode()
        report("received", time.time(), reader, message_id, body, message.attempts)
        delay = self.plan["requeue"].get(body)
        if channel == "slow":
            gevent.spawn(self.hold, channel, reader, message)
        elif delay is not None and (channel, body) not in self.requeued:
            self.requeued.add((channel, body))
            report("requeued", time.time(), reader, message_id, body, delay)
            message.requeue(delay, backoff=body in self.plan["backoff"])
        else:
            self.finish(channel, reader, message)

    def hold(self, channel: str, reader: str, message: Any) -> None:
        end = time.monotonic() + self.plan["slow_for"]
        while time.monotonic() < end:
            gevent.sleep(self.plan["touch_every"])
            report("touched", time.time(), reader, message.id.decode(), message.body.decode())
            message.touch()
        self.finish(channel, reader, message)

    def finish(self, channel: str, reader: str, message: Any) -> None:
        body = message.body.decode()
        report("finished", time.time(), reader, message.id.decode(), body)
        message.finish()
        self.finished[channel].add(body)

    def publish_all(self, producer: gnsq.Producer, units: list[dict[str, Any]]) -> None:
        for unit in units:
            self.publish(producer, self.plan["topic"], unit)

    def publish(self, producer: gnsq.Producer, topic: str, unit: dict[str, Any]) -> None:
        bodies = [body.encode() for body in unit["bodies"]]
        publish: dict[str, Callable[[], Any]] = {
            "pub": lambda: producer.publish(topic, bodies[0]),
            "mpub": lambda: producer.multipublish(topic, bodies),
            "dpub": lambda: producer.publish(topic, bodies[0], defer=unit["delay"]),
        }
        while True:
            for body in unit["bodies"]:
                report("sent", time.time(), body, unit["delay"])
            try:
                publish[unit["verb"]]()
            # A connection that broke meanwhile shows as a KeyError of gnsq's own now and then.
            except (gnsq.errors.NSQException, KeyError):
                gevent.sleep(0.05)
            else:
                return


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        gevent.sleep(0.01)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        GnsqDriver(json.load(file)).run()
