"""Finds the nsqds, and how much waits in them: one HTTP request for each question.

nsqlookupds are asked in turn and their answers joined. One that doesn't answer is a warning as long as another one
does: nsqds register with all of them.
"""

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from pyspark_nsq.client import name_of
from pyspark_nsq.errors import DiscoveryError
from pyspark_nsq.http_api import ask, refusal
from pyspark_nsq.option_values import Address
from pyspark_nsq.options import Settings

_log = logging.getLogger(__name__)


class KnownNsqd(NamedTuple):
    """One nsqd; `name` is `{host}:{TCP port}` as in nsqlookupd or the options."""

    name: str
    tcp: Address
    http: Address


class Depth(NamedTuple):
    """Queued messages on an nsqd. `topic` moves to the channel, once that is there; what is in flight or deferred is
    not part of `channel`. `consumers` are those of the channel. `paused`: topic or channel."""

    channel: int = 0
    in_flight: int = 0
    deferred: int = 0
    topic: int = 0
    channel_exists: bool = False
    topic_exists: bool = False
    paused: bool = False
    consumers: int = 0

    @property
    def waiting(self) -> int:
        """Messages that a stream of the channel can read now."""
        return 0 if self.paused else self.channel + self.topic


def find_nsqds(settings: Settings, topic: str = "") -> list[KnownNsqd]:
    """Returns, by name, the nsqds configured, or the ones that nsqlookupds list for that topic; without a topic, all,
    or with a pattern those with a topic that matches it.

    Raises DiscoveryError if no nsqlookupd answers.
    """
    tcp, offset = settings.nsqd_tcp_addresses, 1 + settings.nsqd_http_tls
    http = settings.nsqd_http_addresses or [(host, port + offset) for host, port in tcp]
    found = {name_of(address): KnownNsqd(name_of(address), address, at) for address, at in zip(tcp, http, strict=True)}
    failures = []
    for address in settings.lookupd_http_addresses:
        try:
            found |= {nsqd.name: nsqd for nsqd in _producers(address, topic, settings)}
        except DiscoveryError as error:
            failures.append(error)
    if failures and len(failures) == len(settings.lookupd_http_addresses):
        raise DiscoveryError("; ".join(map(str, failures)))
    for failure in failures:
        _log.warning("%s; others do", failure)
    return [found[name] for name in sorted(found)]


def _producers(lookupd: Address, topic: str, settings: Settings) -> list[KnownNsqd]:
    path = f"/lookup?{urlencode({'topic': topic})}" if topic else "/nodes"
    who = f"nsqlookupd {name_of(lookupd)}"
    status, answer = ask(who, lookupd, path, settings.discovery_timeout)
    if status == 404 and topic:
        return []  # a topic that nobody has
    if status != 200:
        raise DiscoveryError(f"{who} answered {status} to {path}")
    try:
        nodes = answer["producers"] or ()
        if settings.topic_pattern and not topic:
            nodes = [one for one in nodes if any(map(settings.matches, one["topics"]))]
        nodes = [(one["broadcast_address"], one["tcp_port"], one["http_port"]) for one in nodes]
        return [
            KnownNsqd(name_of((host, tcp)), (host, int(tcp)), (host, int(http) + settings.nsqd_http_tls))
            for host, tcp, http in nodes
        ]
    except (LookupError, TypeError, ValueError):
        raise DiscoveryError(f"{who} does not answer as nsqlookupd does; is that its HTTP address?") from None


def depths(settings: Settings, nsqd: KnownNsqd) -> dict[str, Depth]:
    """Returns the queued messages of each topic to read, by one request; zeros if the nsqd does not have the topic or
    channel. Raises DiscoveryError if it doesn't answer."""
    topics = settings.topics
    # If also asked for a channel, nsqd leaves out topics without it, and their queued messages.
    query = {"format": "json", "include_clients": "false", "include_mem": "false"}
    if len(topics) == 1:
        query["topic"] = topics[0]
    who = f"nsqd {nsqd.name}"
    status, answer = ask(who, nsqd.http, f"/stats?{urlencode(query)}", settings.discovery_timeout, settings)
    if status != 200:
        raise refusal(status, f"{who} answered {status} to /stats at HTTP address {name_of(nsqd.http)}")
    try:
        found = {one["topic_name"]: one for one in answer["topics"] or ()}
        return {
            topic: _depth(found.get(topic), settings.channel) for topic in topics or filter(settings.matches, found)
        }
    except (LookupError, TypeError, ValueError):
        raise DiscoveryError(f"{who} does not answer as nsqd does at HTTP address {name_of(nsqd.http)}") from None


def _depth(topic: Mapping[str, Any] | None, channel: str) -> Depth:
    if topic is None:
        return Depth()
    depth, paused = int(topic["depth"]), bool(topic["paused"])
    for one in topic["channels"] or ():
        if one["channel_name"] == channel:
            counts = int(one["depth"]), int(one["in_flight_count"]), int(one["deferred_count"])
            return Depth(*counts, depth, True, True, paused or bool(one["paused"]), int(one["client_count"]))
    return Depth(topic=depth, topic_exists=True, paused=paused)
