"""`python put_loop.py topic|channel SECONDS`: puts messages to a topic of a daemon in this process, as nsq's benchmarks
BenchmarkTopicPut and BenchmarkTopicToChannelPut do, and prints what one costs.

Like Go's, the number of messages grows until that many take SECONDS; only the last round counts. It runs in the
interpreter of the lane that is measured.
"""

import json
import sys
import tempfile
import time

from gnsqd import gc_tuning
from gnsqd.broker.registry import Registry
from gnsqd.hub.cooperative import give_way
from gnsqd.log import Level, Logger
from gnsqd.nsqd import NSQD
from gnsqd.options import Options

BODY = b"a" * 27  # as long as Go's
MOST = 100_000_000


def put(registry: Registry, to_channel: bool, count: int) -> float:
    """Seconds for `count` messages, each published by itself."""
    name = f"bench_{count}"
    topic = registry.get_topic(name)
    channel = topic.get_channel("bench") if to_channel else None
    began = time.perf_counter()
    for _ in range(count):
        registry.get_topic(name).publish([BODY])
    while channel is not None and channel.depth < count:
        give_way()
    seconds = time.perf_counter() - began
    registry.delete_existing_topic(name)
    return seconds


def main() -> None:
    kind, wanted = sys.argv[1], float(sys.argv[2])
    with tempfile.TemporaryDirectory() as data_path:
        options = Options(
            data_path=data_path, tcp_address="127.0.0.1:0", http_address="127.0.0.1:0", mem_queue_size=MOST
        )
        nsqd = NSQD(options, Logger("", Level.FATAL))
        nsqd.start()
        gc_tuning.settle()
        count, seconds = 1, 0.0
        while (seconds := put(nsqd._registry, kind == "channel", count)) < wanted and count < MOST:
            estimate = int(1.2 * count * wanted / max(seconds, 1e-9))
            count = min(max(estimate, count + 1), 100 * count, MOST)
        print(json.dumps({"ns_per_message": seconds / count * 1e9, "messages": count}))
        nsqd.exit()


if __name__ == "__main__":
    main()
