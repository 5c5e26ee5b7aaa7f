"""The offset of a stream, which NSQ itself lacks: what a batch is to read, so that Spark's replays read the same.

Spark stores it as JSON in its checkpoint:

    {"version": 2, "stream": "5f0c...", "batch": 7, "channel": "archive",
     "chains": [["node-a:4150", [{"carts": 2, "views": 7}]], ["node-a:4150", [{"clicks": 5000}, {"clicks": 5000}]]],
     "addresses": {"node-a:4150": ["node-a", 4150, "node-a", 4151]}}

`stream` names the directory in the spool, `batch` counts from 1 (0: nothing read yet). Each chain of the spool has an
nsqd, and for each of its tasks the quotas: the most messages that the task takes of each topic. What the tasks really
got is in the spool. `addresses` are those of all nsqds known then (TCP, HTTP), for the time when no nsqlookupd answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_nsq.discovery import Depth, Nsqd
from pyspark_nsq.errors import NsqSourceError

VERSION = 2
_MOST_TOPICS = 64  # of a task: it has a connection for each

Key = tuple[str, str]  # topic, name of the nsqd
Chains = list[tuple[str, list[dict[str, int]]]]  # nsqd, and quotas by topic for each task


@dataclass(frozen=True)
class Offset:
    """Everything up to and with batch `batch` of `stream`."""

    stream: str
    batch: int
    channel: str
    chains: Chains = field(default_factory=list)
    nsqds: Mapping[str, Nsqd] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What Spark is given."""
        return {
            "version": VERSION,
            "stream": self.stream,
            "batch": self.batch,
            "channel": self.channel,
            "chains": [[name, tasks] for name, tasks in self.chains],
            "addresses": {name: [*nsqd.tcp, *nsqd.http] for name, nsqd in self.nsqds.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Offset":
        """The offset that Spark gives back; NsqSourceError if it is none of ours."""
        if value.get("version") != VERSION:
            raise NsqSourceError(
                f"the checkpoint has offsets of version {value.get('version')!r}, expected {VERSION}: "
                "it was written by another version of pyspark_nsq, or by another source"
            )
        try:
            chains = [(name, [dict(task) for task in tasks]) for name, tasks in value["chains"]]
            nsqds = {
                name: Nsqd(name, (tcp_host, tcp_port), (http_host, http_port))
                for name, (tcp_host, tcp_port, http_host, http_port) in value["addresses"].items()
            }
            return cls(value["stream"], int(value["batch"]), value["channel"], chains, nsqds)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NsqSourceError(f"the checkpoint has an offset that makes no sense ({error!r}): {value}") from None


def share(waiting: Mapping[Key, int], limit: int | None) -> dict[Key, int]:
    """How many queued messages are taken: `limit` in all, none getting more than the others while these have more."""
    if limit is None or sum(waiting.values()) <= limit:
        return dict(waiting)
    taken: dict[Key, int] = {}
    left = limit
    for place, (key, count) in enumerate(sorted(waiting.items(), key=lambda item: item[1])):
        taken[key] = min(count, left // (len(waiting) - place))
        left -= taken[key]
    return taken


def plan_tasks(quotas: Mapping[Key, int], most: int, min_partitions: int | None) -> Chains:
    """Returns the chains for the quotas. A topic of an nsqd has one task, or more to have at least `min_partitions`
    tasks, as far as there are messages; topics of an nsqd share a task if they have at most `most` messages together.
    """
    least = min_partitions or 1
    largest = -(-sum(quotas.values()) // least)  # messages of a task
    while True:
        chains: Chains = []
        last: dict[str, dict[str, int]] = {}  # of each nsqd, the task that may have room for more topics
        for (topic, name), quota in sorted(quotas.items(), key=lambda item: item[1]):
            task, parts = last.get(name, {}), -(-quota // largest) if quota else 0
            if task and len(task) < _MOST_TOPICS and sum(task.values()) + quota <= min(most, largest):
                task[topic] = quota
            elif quota:
                tasks = [{topic: quota // parts + (part < quota % parts)} for part in range(parts)]
                chains.append((name, tasks))
                last[name] = tasks[0]
        if largest <= 1 or sum(len(tasks) for _, tasks in chains) >= least:
            return chains
        largest = largest * 9 // 10


def report(offset: Offset, depths: Mapping[Key, Depth], taken: Mapping[Key, int]) -> dict[str, Any]:
    """What Spark shows as the latest offset of its progress: by topic and nsqd, the queued messages that are unread
    besides those `taken` by the batch, and the messages in flight when it was planned."""
    unread: dict[str, dict[str, int]] = {}
    in_flight: dict[str, dict[str, int]] = {}
    for (topic, name), at in depths.items():
        unread.setdefault(topic, {})[name] = max(0, at.waiting - taken.get((topic, name), 0))
        in_flight.setdefault(topic, {})[name] = at.in_flight
    progress = {"version": VERSION, "stream": offset.stream, "batch": offset.batch}
    return {**progress, "unread": unread, "in_flight": in_flight}
