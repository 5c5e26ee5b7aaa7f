"""What is measured: the table ROWS. The procedures are in the modules of this directory.

Bodies have 200 bytes unless the row differs. Nearly all rows of the load generator are also run against the sink.
"""

from functools import partial

from benchmarks import row
from benchmarks.fairness import sharing, stalling
from benchmarks.footprint import CREATED, PEAKS, connection_memory, creation, idle_memory, message_memory, peaks
from benchmarks.instructions import LOADS, instructions
from benchmarks.latency import end_to_end, trip, trip_beside_neighbour, trip_to_topics
from benchmarks.lookupd import FIGURES as LOOKUPD
from benchmarks.lookupd import many_nsqds
from benchmarks.ranges import FIGURES as RANGES
from benchmarks.ranges import PROMISED as PROMISED_RANGES
from benchmarks.ranges import read_ranges
from benchmarks.row import BY_RETENTION, OURS, SHARE, TIMED, Row, all_that_comes, stored, write_topics
from benchmarks.scale import SCALE
from benchmarks.schedule import FIGURES as SCHEDULE
from benchmarks.schedule import many_deferred
from benchmarks.scrape import CHANNELS, FORMATS, PROMISED, TOPICS, UNITS, scraping
from benchmarks.starts import STARTS, fixture
from benchmarks.storage import clean_exit, drain_all, drain_rewound, restart, with_backlog
from benchmarks.throughput import both, consumer, publisher, reader, writer

moving = partial(Row, mem_queue_size=all_that_comes, sink=True, floor=True)
upgraded = partial(moving, floor=False)
consuming = partial(Row, mem_queue_size=stored, sink=True)

# fmt: off
THROUGHPUT = (
    # nsq's own programs
    moving("writer-1", "bench_writer, batch 1", writer(1)),
    moving("writer-20", "bench_writer, batch 20", writer(20)),
    moving("writer-200", "bench_writer, batch 200", writer(200)),
    Row("reader-2500", "bench_reader, RDY 2500", reader(2500), all_that_comes),
    # the load generator
    moving("pub", "PUB one by one", publisher()),
    moving("pub-pipelined", "PUB, 100 unanswered", publisher("-window=100")),
    moving("mpub-20", "MPUB 20", publisher("-batch=20")),
    moving("mpub-200", "MPUB 200", publisher("-batch=200")),
    moving("mpub-20-small", "MPUB 20, bodies of 20 B", publisher("-batch=20", "-size=20")),
    # An end by count: a second's worth of them fills a gigabyte of memory.
    moving("mpub-20-large", "MPUB 20, bodies of 10 kB", publisher("-batch=20", "-size=10000", "-count=100000")),
    consuming("consume-1", "consume, RDY 1", consumer(1)),
    consuming("consume-100", "consume, RDY 100", consumer(100)),
    consuming("consume-2500", "consume, RDY 2500", consumer(2500)),
    moving("both", "publish (MPUB 20) and consume at once", both(0, 0, "-batch=20")),
    moving("channels-4", "publish (MPUB 20) to 4 channels and consume at once, deliveries",
           both(0, 4, "-batch=20", "-channels=4"), floor=False),
    moving("both-16", "16 publishers (PUB) and 16 consumers at once", both(16, 16)),
    moving("http-pub", "HTTP /pub, 8 connections", publisher(http=8)),
    moving("http-mpub", "HTTP /mpub 20, 8 connections", publisher("-batch=20", http=8)),
    upgraded("tls-pub", "PUB one by one, TLS", publisher("-tls"), tls=True),
    upgraded("tls-mpub-20", "MPUB 20, TLS", publisher("-batch=20", "-tls"), tls=True),
    consuming("tls-consume", "consume, RDY 2500, TLS", consumer(2500, "-tls"), tls=True),
    upgraded("deflate-mpub-20", "MPUB 20, deflate", publisher("-batch=20", "-deflate")),
    consuming("deflate-consume", "consume, RDY 2500, deflate", consumer(2500, "-deflate")),
    upgraded("snappy-mpub-20", "MPUB 20, snappy", publisher("-batch=20", "-snappy")),
    consuming("snappy-consume", "consume, RDY 2500, snappy", consumer(2500, "-snappy")),
)

on_disk = partial(Row, in_memory=False, flags=("--mem-queue-size=0",))

DISK = (
    # Each message is written twice: the topic's disk queue and the channel's.
    on_disk("disk-writer-1", "bench_writer, batch 1, to disk", writer(1)),
    on_disk("disk-writer-20", "bench_writer, batch 20, to disk", writer(20)),
    on_disk("disk-writer-200", "bench_writer, batch 200, to disk", writer(200)),
    on_disk("drain", "drain the backlog from disk, RDY 2500", with_backlog(drain_all)),
    Row("exit", "clean exit with the backlog in memory", clean_exit, stored, row.SECONDS),
    Row("restart-empty", "restart, no backlog", restart, unit=row.SECONDS),
    on_disk("restart", "restart with the backlog on disk", with_backlog(restart), unit=row.SECONDS),
)

by_durability = partial(Row, variants=row.BY_DURABILITY)

DURABILITY = (
    by_durability("pub-durability", "PUB one by one, durability", publisher(), all_that_comes),
    by_durability("mpub-200-durability", "MPUB 200, durability", publisher("-batch=200"), all_that_comes),
    by_durability("both-durability", "publish (MPUB 20) and consume at once, durability", both(0, 0, "-batch=20"),
                  all_that_comes),
    Row("mpub-200-retention", "publish (MPUB 200) and consume at once, retention", both(0, 0, "-batch=200"),
        all_that_comes, variants=(*row.BY_RETENTION, row.FULL_RETENTION)),
    on_disk("rewind", "drain the backlog, retention: finished and rewound", drain_rewound, variants=row.BY_RETENTION),
)

timing = partial(Row, parts=TIMED)

LATENCY = (
    timing("trip", "PUB round trip, alone", trip, all_that_comes, sink=True),
    timing("trip-neighbour", "PUB round trip, beside a saturating neighbour", trip_beside_neighbour, all_that_comes),
    timing("end-to-end", "publisher to consumer, unbuffered", end_to_end(flags=("-unbuffered",)), all_that_comes,
           sink=True),
    *(timing(f"steady-{rate}{name}", f"publisher to {where}, {rate:,} messages a second", end_to_end(rate, channels))
      for rate in (100, 1000)
      for name, where, channels in (("", "consumer", 1), ("-channels-4", "consumers of 4 channels", 4))),
    timing("many-topics", "PUB round trip, 1,000 topics of a message a second each", trip_to_topics),
)

FOOTPRINT = (
    Row("sharing", "4 equal consumers of a backlog: the worst served behind the best", sharing, all_that_comes, SHARE),
    Row("stalling", "3 consumers of a backlog: what a stalled fourth costs them", stalling, all_that_comes, SHARE),
    Row("idle-memory", "resident memory after the start", idle_memory, unit=row.MEGABYTES),
    Row("message-memory", "resident memory per 100,000 messages", message_memory, stored, row.MEGABYTES),
    Row("connection-memory", "resident memory per idle consumer", connection_memory, unit=row.KILOBYTES),
    Row("fixture", "start of a test's daemon", fixture, parts=STARTS),
)

apart = partial(Row, apart=True)

APART = (
    *(apart(f"memory-{size}", f"peak memory of a backlog, bodies of {size:,} B", peaks(size), parts=PEAKS)
      for size in (1000, 100_000)),
    apart("create-topics", "creating topics", creation("topics"), parts=CREATED),
    apart("create-channels", "creating channels, one of each topic", creation("channels"), parts=CREATED),
    apart("create-ephemeral", "creating ephemeral channels with consumers", creation("ephemeral"), parts=CREATED),
    apart("schedule", "deferred messages", many_deferred, parts=SCHEDULE, flags=("--max-req-timeout=24h",),
          our_flags=("--durability=process",)),
    *(apart(f"scrape-{form}", f"/metrics, {form}", scraping(accept), variants=OURS, parts=UNITS, limits=PROMISED,
            prepare=partial(write_topics, topics=TOPICS, channels=CHANNELS))
      for form, accept in FORMATS.items()),
    apart("ranges", "a backlog read by ranges, beside 1,000 PUBs a second", read_ranges, all_that_comes, parts=RANGES,
          limits=PROMISED_RANGES, variants=BY_RETENTION[:1]),
    apart("lookupd", "nsqlookupd with many nsqds", many_nsqds, parts=LOOKUPD),
    *(apart(f"instructions-{name}", f"instructions, {name}", instructions(name), stored, row.INSTRUCTIONS, tls=True,
            variants=OURS, floor=not name.startswith("tls"))
      for name in LOADS),
)

ROWS = THROUGHPUT + DISK + DURABILITY + LATENCY + FOOTPRINT + APART + SCALE
