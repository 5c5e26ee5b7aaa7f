"""Procedures about how a daemon shares a backlog between the consumers of a channel, three times the usual one."""

from benchmarks.programs import ON_CHANNEL, fill, generate, neighbour
from benchmarks.queues import CHANNEL, TOPIC, channel_stats
from benchmarks.row import Load, Measurement
from kit.daemons import Daemon, eventually
from kit.nsq_client import Client

CONSUMERS = 4
RDY = 2500


def sharing(daemon: Daemon, load: Load) -> Measurement:
    """How much less the worst served of equal consumers gets of two thirds than the best, in %."""
    fill(daemon, 3 * load.stored)
    with neighbour(daemon, ON_CHANNEL, f"-consumers={CONSUMERS}", f"-rdy={RDY}"):
        eventually(lambda: channel_stats(daemon)["depth"] < load.stored, "two thirds consumed")
        counts = [client["finish_count"] for client in channel_stats(daemon)["clients"]]
    return Measurement(100 * (1 - min(counts) / max(counts)))


def stalling(daemon: Daemon, load: Load) -> Measurement:
    """How much less three consumers get beside a fourth that takes its window and then reads nothing, in %."""
    fill(daemon, 3 * load.stored)
    alone = rate(daemon, load)
    with Client(daemon.tcp_address) as stalled:
        stalled.subscribe(TOPIC, CHANNEL, RDY)
        beside = rate(daemon, load)
    return Measurement(max(100 * (1 - beside / alone), 0.0))


def rate(daemon: Daemon, load: Load) -> float:
    """Messages per second that all consumers but one finish, of a third."""
    to = [ON_CHANNEL, f"-consumers={CONSUMERS - 1}", f"-rdy={RDY}", f"-count={load.stored}"]
    loaded = generate(daemon, "move", load.seconds, *to)
    return loaded.consumed / loaded.seconds
