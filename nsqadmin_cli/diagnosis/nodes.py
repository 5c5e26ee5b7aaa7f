"""The rules about nodes and nsqlookupds: availability, health, clocks, versions and registrations."""

from collections.abc import Iterator

from nsqadmin_cli import units
from nsqadmin_cli.address import Address
from nsqadmin_cli.cluster import errors_of, producer_address, values_of
from nsqadmin_cli.diagnosis.examination import Examination
from nsqadmin_cli.diagnosis.finding import Finding, Remedy, Severity, some_of
from nsqadmin_cli.http_client import NodeError
from nsqadmin_cli.text import plural

_SKEW = 2.0  # seconds between clocks that are too many


def examine_nodes(seen: Examination) -> Iterator[Finding]:
    """All problems of nodes and nsqlookupds."""
    for error in seen.discovery:
        if isinstance(error, NodeError):
            remedy = Remedy("Set --broadcast-address of that node to a host name or an IP address.")
            yield Finding(Severity.WARNING, "bad-listing", str(error), (), (remedy,))
    yield from _unreachable(seen)
    if not seen.after.answers:
        remedy = Remedy("Start nsqd with --lookupd-tcp-address, or name nodes with --nsqd-http-address.")
        yield Finding(Severity.CRITICAL, "no-nodes", "there are no nodes to examine", (), (remedy,))
    yield from _health(seen)
    yield from _versions(seen)
    yield from _clocks(seen)
    if seen.listed:
        yield from _listings(seen)


def _unreachable(seen: Examination) -> Iterator[Finding]:
    commands = seen.commands
    first = seen.before.answers
    for error in errors_of(seen.after.answers):
        once = f"it answered {seen.seconds:.1f} s ago" if not isinstance(first[error.address], NodeError) else ""
        lists = [str(lookupd) for lookupd, nodes in _listing_nodes(seen).items() if error.address in nodes]
        listed = f"listed by nsqlookupd at {some_of(lists)}" if lists else ""
        yield Finding(
            Severity.CRITICAL,
            "unreachable",
            f"nsqd at {error.address} does not answer",
            tuple(filter(None, (error.reason, once, listed))),
            (Remedy("Start it, or make it reachable from this machine; then:", commands.on(error.address, "nodes")),),
            node=str(error.address),
        )
    for error in errors_of(seen.listed):
        some = len(values_of(seen.listed)) > 0
        yield Finding(
            Severity.WARNING if some else Severity.CRITICAL,
            "lookupd-unreachable",
            f"nsqlookupd at {error.address} does not answer",
            (error.reason, "others answer" if some else "none answers: consumers cannot find new nodes"),
            (Remedy("Start it, or make it reachable from this machine."),),
            node=str(error.address),
        )


def _health(seen: Examination) -> Iterator[Finding]:
    for address, node in seen.after.nodes.items():
        if node.health != "OK":
            yield Finding(
                Severity.CRITICAL,
                "unhealthy",
                f"nsqd at {address} is unhealthy: its last write to disk failed",
                (node.health,),
                (
                    Remedy(
                        "Free space on its disk, or repair it. nsqd is healthy again after the next successful write."
                    ),
                ),
                node=str(address),
            )
    for address, state in values_of(seen.drains).items():
        if state["draining"]:
            left = state.get("messages")
            evidence = (plural(left, "message") + " left",) if isinstance(left, int) else ()
            yield Finding(
                Severity.NOTE,
                "draining",
                f"nsqd at {address} is draining: it accepts no new messages and exits when it is empty",
                evidence,
                (
                    Remedy("Watch it:", seen.commands.on(address, "drain watch")),
                    Remedy("To cancel:", seen.commands.on(address, "drain cancel")),
                ),
                node=str(address),
            )


def _versions(seen: Examination) -> Iterator[Finding]:
    found: dict[str, list[str]] = {}
    for address, node in seen.after.nodes.items():
        found.setdefault(node.version, []).append(str(address))
    if len(found) > 1:
        evidence = [f"{version}: {some_of(nodes)}" for version, nodes in sorted(found.items())]
        yield Finding(
            Severity.WARNING,
            "version-mix",
            f"nodes have {len(found)} different versions",
            tuple(evidence),
            (Remedy("Update all nodes to one version. To list them:", seen.commands.on_all("nodes")),),
        )


def _clocks(seen: Examination) -> Iterator[Finding]:
    """Clocks that differ from this machine's; if all differ alike, this machine's clock is wrong."""
    told = {address: span for address, span in values_of(seen.clocks).items() if span is not None}
    wrong = {address: span for address, span in told.items() if span[0] > _SKEW or span[1] < -_SKEW}
    if len(told) > 1 and len(wrong) == len(told):
        least, most = max(span[0] for span in told.values()), min(span[1] for span in told.values())
        if least <= most:
            yield Finding(
                Severity.WARNING,
                "clock-skew",
                f"the clock of this machine is {_ahead((-most, -least))} those of all nodes",
                (f"{plural(len(told), 'node')} agree with each other",),
                (Remedy("Synchronize this machine's clock:", "timedatectl set-ntp true"),),
            )
            return
    for address, span in wrong.items():
        yield Finding(
            Severity.WARNING,
            "clock-skew",
            f"the clock of nsqd at {address} is {_ahead(span)} this machine's",
            ("it determines message timestamps, latencies and delays kept on disk",),
            (Remedy("Synchronize the clock on that machine:", "timedatectl set-ntp true"),),
            node=str(address),
        )


def _ahead(span: tuple[float, float]) -> str:
    middle = (span[0] + span[1]) / 2
    return f"{units.latency(abs(middle))} {'ahead of' if middle > 0 else 'behind'}"


def _listing_nodes(seen: Examination) -> dict[Address, set[Address]]:
    """The nodes that each nsqlookupd lists."""
    found: dict[Address, set[Address]] = {}
    for lookupd, producers in values_of(seen.listed).items():
        nodes = found.setdefault(lookupd, set())
        for producer in producers:
            try:
                nodes.add(producer_address(producer))
            except ValueError:
                continue  # already reported
    return found


def _listings(seen: Examination) -> Iterator[Finding]:
    listing = _listing_nodes(seen)
    everywhere = set().union(*listing.values())
    for address in seen.after.nodes:
        missing = [str(lookupd) for lookupd, nodes in listing.items() if address not in nodes]
        if not missing or (address not in everywhere and _is_known_by_another_name(seen, address)):
            continue
        yield Finding(
            Severity.WARNING,
            "not-registered",
            f"nsqd at {address} is not registered at nsqlookupd at {some_of(missing)}",
            (
                "consumers that use this nsqlookupd do not find it",
                f"{len(listing) - len(missing)} of {len(listing)} list it",
            ),
            (
                Remedy(
                    "Check that the node has the TCP address of that nsqlookupd:",
                    seen.commands.on(address, "config get nsqlookupd_tcp_addresses"),
                ),
            ),
            node=str(address),
        )
    yield from _tombstones(seen)
    yield from _ghosts(seen)


def _is_known_by_another_name(seen: Examination, address: Address) -> bool:
    """Whether a listed node has that port: it may have been given by another name than its broadcast-address."""
    return any(
        producer.http_port == address.port for producers in values_of(seen.listed).values() for producer in producers
    )


def _tombstones(seen: Examination) -> Iterator[Finding]:
    hidden: dict[tuple[str, Address], list[str]] = {}
    for lookupd, producers in values_of(seen.listed).items():
        for producer in producers:
            for topic, dead in zip(producer.topics, producer.tombstones, strict=False):
                if dead and topic in seen.after.topic_shares:
                    try:
                        hidden.setdefault((topic, producer_address(producer)), []).append(str(lookupd))
                    except ValueError:
                        continue  # already reported
    for (topic, address), lookupds in hidden.items():
        share = seen.after.topic_shares[topic].get(address)
        if share is None:
            continue
        waiting = share.depth + sum(channel.depth for channel in share.channels)
        yield Finding(
            Severity.WARNING if waiting else Severity.NOTE,
            "tombstoned",
            f"topic {topic} is hidden at {address}: new consumers do not find it there",
            (f"tombstoned at {some_of(lookupds)}, for 45 s by default", f"{plural(waiting, 'message')} queued there"),
            (Remedy("To remove the topic from the node:", seen.commands.on(address, "topic delete", topic)),),
            topic=topic,
            node=str(address),
        )


def _ghosts(seen: Examination) -> Iterator[Finding]:
    """Topics that only nsqlookupd lists; unknown while a node does not answer."""
    if not seen.whole or errors_of(seen.after.answers) or seen.discovery:
        return
    known = {topic for topics in values_of(seen.known_topics).values() for topic in topics}
    for topic in sorted(known - seen.after.topic_shares.keys()):
        yield Finding(
            Severity.NOTE,
            "ghost-topic",
            f"topic {topic} is listed by nsqlookupd, but no node has it",
            (),
            (Remedy("If it is no longer needed:", seen.commands.on_all("topic delete", topic)),),
            topic=topic,
        )
