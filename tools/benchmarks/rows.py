"""The table ROWS. Bodies have 200 bytes."""

from functools import partial

from benchmarks.instructions import LOADS, instructions
from benchmarks.procedures import (
    MEMORY,
    NODES,
    STARTS,
    TIMES,
    both,
    connector,
    consumer,
    memory,
    nodes,
    publisher,
    starts,
    trip,
)  # fmt: skip
from benchmarks.row import (
    BY_DURABILITY,
    BY_STORE,
    CONNECTIONS,
    INSTRUCTIONS,
    ITSELF,
    BenchmarkRow,
    all_that_comes,
    stored,
)
from benchmarks.scale import SCALE

moving = partial(BenchmarkRow, mem_queue_size=all_that_comes)

ROWS = (
    moving("pub", "PUB one by one", publisher()),
    moving("mpub-20", "MPUB 20", publisher(batch=20)),
    BenchmarkRow("consume", "consume, RDY 2500", consumer(2500), stored),
    moving("both", "publish (MPUB 20) and consume at once", both(batch=20)),
    moving("both-16", "16 publishers (PUB) and 16 consumers at once", both(16)),
    moving("http-pub", "HTTP /pub, 8 connections", publisher(http=8)),
    moving("tls-pub", "PUB one by one, TLS", publisher("-tls"), tls=True),
    BenchmarkRow("connect", "connect, IDENTIFY, SUB, RDY, close", connector, unit=CONNECTIONS),
    moving("durability", "MPUB 200, durability", publisher(batch=200), variants=BY_DURABILITY),
    moving("store", "MPUB 200, 16 publishers", publisher("-publishers=16", batch=200), variants=BY_STORE, apart=True),
    moving("nodes", "publish (MPUB 20) and consume at once", nodes, parts=NODES),
    moving("latency", "PUB round trip", trip, parts=TIMES),
    BenchmarkRow("memory", "resident memory", memory, stored, parts=MEMORY),
    BenchmarkRow("starts", "start", starts, parts=STARTS),
    BenchmarkRow("deflate-consume", "consume, RDY 2500, deflate", consumer(2500, "-deflate"), stored, apart=True),
    moving("snappy-mpub-20", "MPUB 20, snappy", publisher("-snappy", batch=20), apart=True),
    *(
        BenchmarkRow(
            f"instructions-{name}", f"instructions, {name}", instructions(name), stored, INSTRUCTIONS, tls=True,
            variants=ITSELF, apart=True,
        )
        for name in LOADS
    ),
    *SCALE,
)  # fmt: skip
