"""How long a scrape of /metrics takes, and how long a publisher beside it waits.

The daemon has 1,000 topics with 3 channels each. It is scraped alone; then the load generator times PUBs, alone at
first, then while this process scrapes all the time. Two of these three processes work at a time, so this needs two
cores without other load.
"""

import threading
from functools import partial
from itertools import islice
from statistics import median

from benchmarks.latency import get_times, trip
from benchmarks.row import MILLISECONDS, Load, Measurement, procedure
from kit.daemons import Daemon

FORMATS = {
    "text": "text/plain;version=0.0.4",
    # What Prometheus 3 sends.
    "openmetrics": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
}
SCRAPES = 20
TOPICS = [f"topic{number}" for number in range(1000)]
CHANNELS = [f"channel{number}" for number in range(3)]
FIGURES = ("alone", "beside PUBs", "PUB p50", "PUB p99", "beside scrapes PUB p50", "beside scrapes PUB p99")
UNITS = dict.fromkeys(FIGURES, MILLISECONDS)
PROMISED = {"alone": 250.0, "beside scrapes PUB p99": 10.0}  # ms


@procedure
def scraping(daemon: Daemon, load: Load, accept: str) -> Measurement:
    scrapes = partial(get_times, "{}:{}".format(*daemon.http_address), "/metrics", Accept=accept)
    stop = threading.Event()
    beside: list[float] = []

    def scrape() -> None:
        for milliseconds in scrapes():
            beside.append(milliseconds)
            if stop.is_set():
                return

    thread = threading.Thread(target=scrape)
    alone = list(islice(scrapes(), SCRAPES))
    before = trip(daemon, load).parts
    thread.start()
    try:
        during = trip(daemon, load).parts
    finally:
        stop.set()
        thread.join()
    figures = (median(alone), median(beside), *before.values(), *during.values())
    return Measurement(parts=dict(zip(FIGURES, figures, strict=True)))
