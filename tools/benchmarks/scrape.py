"""How long a scrape of /metrics takes, and how long a publisher beside it waits.

The daemon has 1,000 topics with 3 channels each. It is scraped alone; then the load generator times PUBs, alone at
first, then while this process scrapes all the time. Two of these three processes work at a time, so this needs two
cores without other load.
"""

import http.client
import threading
import time
from collections.abc import Callable
from itertools import count
from statistics import median

from benchmarks.latency import trip
from benchmarks.row import MILLISECONDS, Load, Measurement
from kit.daemons import Daemon

FORMATS = {
    "text": "text/plain;version=0.0.4",
    # What Prometheus 3 sends.
    "openmetrics": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
}
SCRAPES = 20
TOPICS = ([f"topic{number}" for number in range(1000)], [f"channel{number}" for number in range(3)])
FIGURES = ("alone", "beside PUBs", "PUB p50", "PUB p99", "beside scrapes PUB p50", "beside scrapes PUB p99")
UNITS = dict.fromkeys(FIGURES, MILLISECONDS)
PROMISED = {"alone": 250.0, "beside scrapes PUB p99": 10.0}  # ms


def scraping(accept: str) -> Callable[[Daemon, Load], Measurement]:
    def measure(daemon: Daemon, load: Load) -> Measurement:
        stop = threading.Event()
        alone = scrape(daemon, accept, SCRAPES, stop)
        before = trip(daemon, load).parts
        beside: list[float] = []
        thread = threading.Thread(target=lambda: beside.extend(scrape(daemon, accept, 0, stop)))
        thread.start()
        try:
            during = trip(daemon, load).parts
        finally:
            stop.set()
            thread.join()
        figures = (median(alone), median(beside), *before.values(), *during.values())
        return Measurement(parts=dict(zip(FIGURES, figures, strict=True)))

    return measure


def scrape(daemon: Daemon, accept: str, most: int, stop: threading.Event) -> list[float]:
    """ms of one scrape after the other, over one connection: `most`, or with 0 until `stop`."""
    connection = http.client.HTTPConnection(*daemon.http_address)
    times = []
    for _ in range(most) if most else count():
        begin = time.monotonic()
        connection.request("GET", "/metrics", headers={"Accept": accept})
        response = connection.getresponse()
        page = response.read()
        times.append(1000 * (time.monotonic() - begin))
        assert response.status == 200, page
        if stop.is_set():
            break
    connection.close()
    return times
