"""`python -m spark.patterns`: what lazy actions of Spark do to a batch frame with a spool, with `peek`, without both:
the second table of contrib/docs/spark.md."""

import shutil
import tempfile
from collections import Counter
from pathlib import Path

from kit.daemons import Daemon, own_command
from spark.patterns.actions import PATTERNS
from spark.sessions import start_session
from spark.topics import bodies, daemon_options, publish, take

MESSAGES = 2000
MODES = ({"spoolLocation": ""}, {"peek": "true"}, {"spool": "off"})


def main() -> None:
    top = Path(tempfile.mkdtemp(prefix="nsq-patterns-"))
    spark = start_session(top / "spark")
    print("| action | with a spool | `peek` | `spool` = `off` |\n| --- |" + " --- |" * len(MODES), flush=True)
    with Daemon(own_command(), top / "nsqd") as daemon:
        options = daemon_options(daemon) | {"channel": "spark", "idleTimeoutMs": "1000"}
        for row, (name, (act, times)) in enumerate(PATTERNS.items()):
            outcomes = []
            for column, mode in enumerate(MODES):
                topic = f"t{row}-{column}"
                published = bodies(MESSAGES)
                publish(daemon, topic, published)
                more = {option: value or str(top / "spool") for option, value in mode.items()}
                frame = spark.read.format("nsq").options(**options, **more, subscribe=topic).load()
                found = act(frame, top / topic)
                left = daemon.channel_stats(topic, "spark")["depth"]
                lost = MESSAGES - len(found.keys() | set(take(daemon, topic, left, "spark")))
                right = found == Counter(dict.fromkeys(published, times))
                rows = "all rows" if right else f"{found.total():,} of {times * MESSAGES:,} rows"
                outcomes.append(f"{rows}, {lost:,} lost" if lost else rows)
            print(f"| {' | '.join([name, *outcomes])} |", flush=True)
    spark.stop()
    shutil.rmtree(top)


if __name__ == "__main__":
    main()
