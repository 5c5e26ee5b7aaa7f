"""The rules about nodes and nsqlookupds, and about a local data directory: availability, health, registrations, files.

Of files, only names, sizes, meta files and nsqd.dat are read, so that a running daemon is not disturbed; `gnsqadmin
data verify` reads the records.
"""

import os
import shlex
from collections.abc import Iterator, Sequence

from gnsq_shared.directory import METADATA, DataDirectory, Queue, is_held, list_directory, reason_of
from gnsqd.errors import StorageError
from nsqadmin_cli import units
from nsqadmin_cli.api import located
from nsqadmin_cli.cluster import errors_of, values_of
from nsqadmin_cli.diagnosis.examination import COMPARED, LOOKUPDS, Examination, Finding, Remedy, Severity, some_of
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import Address, NodeError
from nsqadmin_cli.node_options import shown
from nsqadmin_cli.units import plural

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
    missing = unregistered(seen)
    yield from _registrations(seen, missing)
    yield from _drift(seen, [key for key in COMPARED if not missing or key != LOOKUPDS])
    yield from _tombstones(seen)
    yield from _ghosts(seen)


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
    listed = values_of(seen.listed)
    return {lookupd: {address for address, _ in located(producers)} for lookupd, producers in listed.items()}


def unregistered(seen: Examination) -> dict[Address, list[Address]]:
    """The nodes that an nsqlookupd does not list, each with these nsqlookupds."""
    listing = _listing_nodes(seen)
    everywhere = set().union(*listing.values())
    # A node with a listed port may have been given by another name than its broadcast-address.
    ports = {producer.http_port for producers in values_of(seen.listed).values() for producer in producers}
    found: dict[Address, list[Address]] = {}
    for address in seen.after.nodes:
        missing = [lookupd for lookupd, nodes in listing.items() if address not in nodes]
        if missing and (address in everywhere or address.port not in ports):
            found[address] = missing
    return found


def _registrations(seen: Examination, unregistered: dict[Address, list[Address]]) -> Iterator[Finding]:
    lookupds = len(values_of(seen.listed))
    for address, missing in unregistered.items():
        yield Finding(
            Severity.WARNING,
            "not-registered",
            f"nsqd at {address} is not registered at nsqlookupd at {some_of(list(map(str, missing)))}",
            (
                "consumers that use this nsqlookupd do not find it",
                f"{lookupds - len(missing)} of {lookupds} list it",
            ),
            (_registration(seen, address, missing),),
            node=str(address),
        )


def _registration(seen: Examination, address: Address, missing: list[Address]) -> Remedy:
    """How to register a node: with the nsqlookupds of other nodes, and those whose TCP port is the default one."""
    lists = {node: _texts(options.get(LOOKUPDS)) for node, options in values_of(seen.options).items()}
    if address not in lists:
        return Remedy("Check that its --lookupd-tcp-address includes that nsqlookupd.")
    own = lists[address]
    known = {text for texts in lists.values() for text in texts}
    usual = {str(Address(lookupd.host, 4160)) for lookupd in missing if lookupd.port == 4161}
    if lacking := sorted((known or usual) - set(own)):
        return Remedy(
            "To register it until it restarts (then it needs these addresses as --lookupd-tcp-address):",
            seen.commands.on(address, f"config set {LOOKUPDS}", *own, *lacking),
        )
    if own:
        return Remedy(f"It has the nsqlookupds {', '.join(own)}. Its log has the reason if it cannot connect to them.")
    return Remedy("It has no nsqlookupd. Start it with --lookupd-tcp-address.")


def _texts(value: object) -> list[str]:
    return list(map(str, value)) if isinstance(value, list) else []


def _drift(seen: Examination, keys: Sequence[str]) -> Iterator[Finding]:
    """Options of which nodes have different values; nodes without the option do not count."""
    for key in keys:
        found: dict[str, list[str]] = {}
        for address, options in values_of(seen.options).items():
            if key in options:
                value = options[key]
                text = shown(key, sorted(_texts(value)) if key == LOOKUPDS else value)
                found.setdefault(text, []).append(str(address))
        if len(found) > 1:
            yield Finding(
                Severity.WARNING if key == LOOKUPDS else Severity.NOTE,
                "config-drift",
                f"nodes have {len(found)} different values of {key}",
                tuple(f"{text}: {some_of(nodes)}" for text, nodes in sorted(found.items())),
                (Remedy("To compare all options:", seen.commands.on_all("config get --different")),),
            )


def tombstones(seen: Examination) -> dict[tuple[str, Address], list[Address]]:
    """Topics that nsqlookupds hide on a node that has them, each with these nsqlookupds."""
    found: dict[tuple[str, Address], list[Address]] = {}
    for lookupd, producers in values_of(seen.listed).items():
        for address, producer in located(producers):
            for topic, dead in zip(producer.topics, producer.tombstones, strict=False):
                if dead and address in seen.after.topic_shares.get(topic, ()):
                    found.setdefault((topic, address), []).append(lookupd)
    return found


def _tombstones(seen: Examination) -> Iterator[Finding]:
    for (topic, address), lookupds in tombstones(seen).items():
        share = seen.after.topic_shares[topic][address]
        waiting = share.depth + sum(channel.depth for channel in share.channels)
        yield Finding(
            Severity.WARNING if waiting else Severity.NOTE,
            "tombstoned",
            f"topic {topic} is hidden at {address}: new consumers do not find it there",
            (
                f"tombstoned at {some_of(list(map(str, lookupds)))}, for 45 s by default",
                f"{plural(waiting, 'message')} queued there",
            ),
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


_LOW, _VERY_LOW = 0.10, 0.03  # of the disk


def examine_directory(path: str) -> Iterator[Finding]:
    """All problems of a data directory; AdminError if it cannot be read, or is not a data directory."""
    found = list_directory(path)
    yield from _disk(path)
    bad = {
        queue.file_name(number, bad=True): size for queue in found.queues.values() for number, size in queue.bad.items()
    }
    if bad:
        yield Finding(
            Severity.WARNING,
            "bad-files",
            f"{path} holds {plural(len(bad), 'damaged file')} set aside, which will not be read",
            (units.size(sum(bad.values())), some_of(sorted(bad))),
            (Remedy("Show what can be recovered, then recover it:", _data("recover-bad", path)),),
        )
    yield from _journals(found)
    unread = [queue for queue in found.queues.values() if _holds_messages(queue)]
    if found.listed is None:
        yield from _no_metadata(found, unread)
    elif orphans := [queue for queue in unread if not found.is_listed(queue)]:
        yield Finding(
            Severity.WARNING,
            "orphan-files",
            f"{path} has messages of {plural(len(orphans), 'queue')} that {METADATA} does not list, and which will "
            "not be read",
            (units.size(sum(queue.size for queue in orphans)), _names(orphans)),
            (
                Remedy(
                    "A topic or channel created with that name gets them. To show them:",
                    _data("ls", path),
                ),
            ),
        )


def _journals(found: DataDirectory) -> Iterator[Finding]:
    """Journals of a gnsqd with --durability, which only gnsqd reads."""
    path = found.path
    if found.journals and not is_held(path):
        size = sum(journal.size for journal in found.journals.values())
        yield Finding(
            Severity.NOTE,
            "journals",
            f"{path} has journals of {plural(len(found.journals), 'topic')}: only gnsqd reads them",
            (units.size(size), some_of(sorted(found.journals))),
            (
                Remedy("gnsqd loads them when it starts. To count their messages:", _data("verify", path)),
                Remedy("For the real nsqd, move the messages to disk queues:", _data("convert", path)),
            ),
        )


def _data(words: str, path: str) -> str:
    return shlex.join(["gnsqadmin", "data", words, path])


def _names(queues: Sequence[Queue]) -> str:
    return some_of(sorted(queue.name for queue in queues))


def _holds_messages(queue: Queue) -> bool:
    """Whether its files have unread messages."""
    if not queue.size:
        return False
    try:
        meta = queue.read_meta()
    except StorageError:
        return True
    return meta.read_position != meta.write_position


def _disk(path: str) -> Iterator[Finding]:
    try:
        disk = os.statvfs(path)
    except OSError as error:
        raise AdminError(f"cannot get the free space of the disk of {path}: {reason_of(error)}") from None
    rooms = (
        ("room", disk.f_bavail, disk.f_blocks, f"{units.size(disk.f_bavail * disk.f_frsize)} free"),
        ("inodes", disk.f_favail, disk.f_files, f"{disk.f_favail:,} free"),
    )
    for what, free, whole, text in rooms:
        if whole and free / whole < _LOW:
            yield Finding(
                Severity.CRITICAL if free / whole < _VERY_LOW else Severity.WARNING,
                "disk-full",
                f"the disk of {path} has {free / whole:.1%} of its {what} left",
                (text, "nsqd refuses messages that it cannot write"),
                (Remedy("Free disk space, or let consumers catch up. To show the size of queues:", _data("ls", path)),),
            )


def _no_metadata(found: DataDirectory, unread: list[Queue]) -> Iterator[Finding]:
    """nsqd.dat does not exist, or cannot be read."""
    file = os.path.join(found.path, METADATA)
    queues = f"{plural(len(unread), 'queue')} with messages: {_names(unread)}" if unread else "no messages on disk"
    if os.path.lexists(file):
        yield Finding(
            Severity.CRITICAL,
            "bad-metadata",
            f"{file} cannot be used: no daemon starts with it",
            (found.metadata_error, queues),
            (Remedy("Restore it, or move it away and create the topics and channels again."),),
        )
    elif unread:
        yield Finding(
            Severity.CRITICAL,
            "no-metadata",
            f"{found.path} has no {METADATA}: a daemon that starts there finds no topics",
            (queues,),
            (Remedy("Restore it, or create the topics and channels again: they get their messages back."),),
        )
