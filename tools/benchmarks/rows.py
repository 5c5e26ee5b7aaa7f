"""What is measured: the table ROWS. The procedures are in throughput, latency, fairness, footprint,
storage, put and fixture.

Bodies have 200 bytes unless the row differs. Nearly all rows of the load generator are also run against the sink.
"""

from benchmarks.fairness import sharing, stalling
from benchmarks.fixture import fixture
from benchmarks.footprint import connection_memory, heartbeats, idle_memory, message_memory
from benchmarks.latency import end_to_end, steady, trip, trip_beside_neighbour, trip_beside_requeues, trip_to_topics
from benchmarks.put import put
from benchmarks.row import (
    BY_DURABILITY,
    BY_RETENTION,
    FULL_RETENTION,
    KILOBYTES,
    MEGABYTES,
    MILLISECONDS,
    NANOSECONDS,
    PERCENT,
    SECONDS,
    SHARE,
    Load,
    Row,
    all_that_comes,
    backlog,
    stored,
)
from benchmarks.storage import clean_exit, clean_exit_of_channels, drain_rewound, drainer, many_topics, restart
from benchmarks.throughput import both, consumer, publisher, reader, writer

TIMED = ("p50", "p99")
STAGES = ("create", "after-kill", "exit", "after-exit")


def nothing(load: Load) -> int:
    return 0


# nsq's own programs
BENCH_PROGRAMS = (
    Row("writer-1", "bench_writer, batch 1", writer(1), all_that_comes, sink=True),
    Row("writer-20", "bench_writer, batch 20", writer(20), all_that_comes, sink=True),
    Row("writer-200", "bench_writer, batch 200", writer(200), all_that_comes, sink=True),
    Row("reader-2500", "bench_reader, RDY 2500", reader(2500), backlog),
)

THROUGHPUT = (
    Row("pub", "PUB one by one", publisher(), all_that_comes, sink=True),
    Row("pub-pipelined", "PUB, 100 unanswered", publisher("-window=100"), all_that_comes, sink=True),
    Row("mpub-20", "MPUB 20", publisher("-batch=20"), all_that_comes, sink=True),
    Row("mpub-200", "MPUB 200", publisher("-batch=200"), all_that_comes, sink=True),
    Row("mpub-20-small", "MPUB 20, bodies of 20 B", publisher("-batch=20", "-size=20"), all_that_comes, sink=True),
    # An end by count: a second's worth of them fills a gigabyte of memory.
    Row(
        "mpub-20-large",
        "MPUB 20, bodies of 10 kB",
        publisher("-batch=20", "-size=10000", "-count=100000"),
        all_that_comes,
        sink=True,
    ),
    Row("consume-1", "consume, RDY 1", consumer(1), stored, sink=True),
    Row("consume-100", "consume, RDY 100", consumer(100), stored, sink=True),
    Row("consume-2500", "consume, RDY 2500", consumer(2500), stored, sink=True),
    Row("both", "publish (MPUB 20) and consume at once", both(0, 0, "-batch=20"), all_that_comes, sink=True),
    Row(
        "channels-4",
        "publish (MPUB 20) to 4 channels and consume at once, deliveries",
        both(0, 4, "-batch=20", "-channels=4"),
        all_that_comes,
        sink=True,
    ),
    Row("both-16", "16 publishers (PUB) and 16 consumers at once", both(16, 16), all_that_comes, sink=True),
    Row("http-pub", "HTTP /pub, 8 connections", publisher(http=8), all_that_comes, sink=True),
    Row("http-mpub", "HTTP /mpub 20, 8 connections", publisher("-batch=20", http=8), all_that_comes, sink=True),
    Row("tls-pub", "PUB one by one, TLS", publisher("-tls"), all_that_comes, sink=True, tls=True),
)

UPGRADED = tuple(
    row
    for layer, name in (("tls", "TLS"), ("deflate", "deflate"), ("snappy", "snappy"))
    for row in (
        Row(
            f"{layer}-mpub-20",
            f"MPUB 20, {name}",
            publisher("-batch=20", f"-{layer}"),
            all_that_comes,
            sink=True,
            tls=layer == "tls",
        ),
        Row(
            f"{layer}-consume",
            f"consume, RDY 2500, {name}",
            consumer(2500, f"-{layer}"),
            stored,
            sink=True,
            tls=layer == "tls",
        ),
    )
)

DISK = (
    # Each message is written twice: the topic's disk queue and the channel's.
    Row("disk-writer-1", "bench_writer, batch 1, to disk", writer(1), nothing, in_memory=False),
    Row("disk-writer-20", "bench_writer, batch 20, to disk", writer(20), nothing, in_memory=False),
    Row("disk-writer-200", "bench_writer, batch 200, to disk", writer(200), nothing, in_memory=False),
    Row("drain", "drain the backlog from disk, RDY 2500", drainer(2500), stored=True, in_memory=False),
    Row("exit", "clean exit with the backlog in memory", clean_exit, stored, SECONDS),
    Row("restart-empty", "restart, no backlog", restart, None, SECONDS, in_memory=False),
    Row("restart", "restart with the backlog on disk", restart, None, SECONDS, stored=True, in_memory=False),
    Row("topics", "1,000 topics", many_topics, None, SECONDS, in_memory=False, parts=STAGES),
)

DURABILITY = (
    *(
        Row(f"{name}-durability", f"{title}, durability", measure, all_that_comes, variants=BY_DURABILITY)
        for name, title, measure in (
            ("pub", "PUB one by one", publisher()),
            ("mpub-200", "MPUB 200", publisher("-batch=200")),
            ("both", "publish (MPUB 20) and consume at once", both(0, 0, "-batch=20")),
        )
    ),
    Row(
        "exit-durability",
        "clean exit with a backlog in 4 channels",
        clean_exit_of_channels,
        None,
        SECONDS,
        variants=BY_DURABILITY,
        parts=STAGES[2:],
    ),
    Row(
        "topics-durability",
        "1,000 topics, durability",
        many_topics,
        None,
        SECONDS,
        in_memory=False,
        variants=BY_DURABILITY,
        parts=STAGES,
    ),
    Row(
        "mpub-200-retention",
        "publish (MPUB 200) and consume at once, retention",
        both(0, 0, "-batch=200"),
        all_that_comes,
        variants=(*BY_RETENTION, FULL_RETENTION),
    ),
    Row(
        "rewind",
        "drain the backlog, retention: finished and rewound",
        drain_rewound,
        nothing,
        in_memory=False,
        variants=BY_RETENTION,
    ),
    Row(
        "trip-requeues",
        "longest PUB round trip while two channels requeue 40 % of a backlog",
        trip_beside_requeues,
        None,
        MILLISECONDS,
        in_memory=False,
        variants=BY_DURABILITY,
    ),
)

LATENCY = (
    Row("trip", "PUB round trip, alone", trip, all_that_comes, MILLISECONDS, sink=True, parts=TIMED),
    Row(
        "trip-neighbour",
        "PUB round trip, beside a saturating neighbour",
        trip_beside_neighbour,
        all_that_comes,
        MILLISECONDS,
        parts=TIMED,
    ),
    Row(
        "end-to-end",
        "publisher to consumer, unbuffered",
        end_to_end(("-unbuffered", "-rdy=100")),
        all_that_comes,
        MILLISECONDS,
        sink=True,
        parts=TIMED,
    ),
    *(
        Row(
            f"steady-{rate}{name}",
            f"publisher to {where}, {rate:,} messages a second",
            steady(rate, channels),
            None,
            MILLISECONDS,
            parts=TIMED,
        )
        for rate in (100, 1000)
        for name, where, channels in (("", "consumer", 1), ("-channels-4", "consumers of 4 channels", 4))
    ),
    Row(
        "many-topics",
        "PUB round trip, 1,000 topics of a message a second each",
        trip_to_topics,
        None,
        MILLISECONDS,
        parts=TIMED,
    ),
)

FAIRNESS = (
    Row("sharing", "4 equal consumers of a backlog: the worst served behind the best", sharing, backlog, SHARE),
    Row("stalling", "3 consumers of a backlog: what a stalled fourth costs them", stalling, backlog, SHARE),
)

FOOTPRINT = (
    Row("idle-memory", "resident memory after the start", idle_memory, None, MEGABYTES),
    Row("message-memory", "resident memory per 100,000 messages", message_memory, stored, MEGABYTES),
    Row("connection-memory", "resident memory per idle consumer", connection_memory, None, KILOBYTES),
    Row("heartbeats", "1,000 idle consumers, a heartbeat each second", heartbeats, None, PERCENT),
)

IN_PROCESS = (
    Row("put-topic", "topic put, in process", put("topic"), None, NANOSECONDS),
    Row("put-channel", "topic-to-channel put, in process", put("channel"), None, NANOSECONDS),
)

FIXTURE = (
    Row(
        "fixture",
        "start of a test's daemon",
        fixture,
        None,
        MILLISECONDS,
        parts=("cold", "preloaded", "longest"),
    ),
)

ROWS = (
    BENCH_PROGRAMS + THROUGHPUT + UPGRADED + DISK + DURABILITY + LATENCY + FAIRNESS + FOOTPRINT + IN_PROCESS + FIXTURE
)

# Those whose loads `floor` serves.
FLOOR_ROWS = (
    "writer-1", "writer-20", "writer-200", "pub", "mpub-20", "mpub-200", "both-16", "http-pub", "http-mpub", "tls-pub",
    "tls-mpub-20",
)  # fmt: skip
