"""Publishes generated JSON events with pynsq: `pynsq_publisher.py SEED COUNT TOPIC ADDRESS...`; prints how many."""

import asyncio
import itertools
import sys

import nsq

from spark.events import bodies

BATCH = 1000  # messages of an MPUB
AT_ONCE = 8  # MPUBs under way at each nsqd


async def publish(seed: int, count: int, topic: str, addresses: list[str]) -> int:
    writers = [nsq.Writer([address]) for address in addresses]
    while not all(writer.conns for writer in writers):
        await asyncio.sleep(0.01)
    free = {writer: asyncio.Semaphore(AT_ONCE) for writer in writers}
    answers: list[asyncio.Future[None]] = []
    events = bodies(count, seed)
    for number in range(0, count, BATCH):
        writer = writers[number // BATCH % len(writers)]
        await free[writer].acquire()
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answered(conn: object, data: object, writer: object = writer, answer: object = answer) -> None:
            free[writer].release()
            if isinstance(data, Exception):
                answer.set_exception(data)  # type: ignore[attr-defined]
            else:
                answer.set_result(None)  # type: ignore[attr-defined]

        writer.mpub(topic, list(itertools.islice(events, BATCH)), answered)
        answers.append(answer)
    await asyncio.gather(*answers)
    return count


if __name__ == "__main__":
    seed, count, topic, *addresses = sys.argv[1:]
    print(asyncio.run(publish(int(seed), int(count), topic, addresses)))  # noqa: T201
