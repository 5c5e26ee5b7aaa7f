"""The rules about nodes and nsqlookupds, and about a local data directory: availability, health, registrations, files.

Of files, only names, sizes, meta files and nsqd.dat are read, so that a running daemon is not disturbed; `gnsqadmin
data verify` reads the records.
"""

import os
import shlex
from collections.abc import Iterator, Sequence

from gnsqd.shared.directory import METADATA, is_held, list_directory, make_plan
from gnsqd.shared.errors import reason_of
from nsqadmin_cli import units
from nsqadmin_cli.api import located
from nsqadmin_cli.cluster import errors_of, values_of
from nsqadmin_cli.diagnosis.examination import COMPARED, LOOKUPDS, Examination, Finding, Remedy, Severity, some_of
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.http_client import Address, NodeError
from nsqadmin_cli.node_options import shown
from nsqadmin_cli.units import grouped, plural

CRITICAL, WARNING, NOTE = Severity
_BROADCAST = Remedy(
    "If it runs, it needs a --broadcast-address and --broadcast-tcp-port that consumers can connect to; "
    "--broadcast-address=auto of gnsqd is the address from which it connects to nsqlookupd."
)
_SKEW = 2.0  # seconds between clocks that are too many
_STORE_REMEDY = "Its log has the reason: the network, the credentials, or the limits of the store."
_RENEWED = 2 * 24 * 3600  # seconds before it expires, at which a certificate is renewed where that works
_LAG = 30.0  # seconds that the log store may be behind: a put and its retries take less


def examine_nodes(examination: Examination) -> Iterator[Finding]:
    for error in examination.discovery:
        if isinstance(error, NodeError):
            remedy = Remedy("Set --broadcast-address of that node to a host name or an IP address.")
            yield Finding(WARNING, "bad-listing", str(error), (), (remedy,))
    yield from _unreachable(examination)
    if not examination.after.answers:
        remedy = Remedy("Start nsqd with --lookupd-tcp-address, or name nodes with --nsqd-http-address.")
        yield Finding(CRITICAL, "no-nodes", "there are no nodes to examine", (), (remedy,))
    yield from _health(examination)
    yield from _low_disks(examination)
    yield from _log_stores(examination)
    yield from _certificates(examination)
    yield from _versions(examination)
    yield from _clocks(examination)
    missing = unregistered(examination)
    yield from _registrations(examination, missing)
    yield from _drift(examination, [key for key in COMPARED if not missing or key != LOOKUPDS])
    yield from _tombstones(examination)
    yield from _ghosts(examination)


def _unreachable(examination: Examination) -> Iterator[Finding]:
    start = "Start it, or make it reachable from this machine"
    for error in errors_of(examination.after.answers):
        answered = not isinstance(examination.before.answers[error.address], NodeError)
        lists = [lookupd for lookupd, nodes in _listing_nodes(examination).items() if error.address in nodes]
        evidence = [error.reason, *([f"it answered {examination.seconds:.1f} s ago"] if answered else [])]
        evidence += [f"nsqlookupd at {some_of(lists)} sends consumers to {error.address.host}"] if lists else []
        text, node = f"nsqd at {error.address} does not answer", str(error.address)
        remedies = [Remedy(f"{start}; then:", examination.commands.on(error.address, "nodes"))]
        remedies += [_BROADCAST] if lists else []
        yield Finding(CRITICAL, "unreachable", text, tuple(evidence), tuple(remedies), node=node)
    for error in errors_of(examination.tcp):
        text, node = f"nsqd at {error.address} does not answer on its TCP port for consumers", str(error.address)
        yield Finding(CRITICAL, "tcp-unreachable", text, (error.reason,), (_BROADCAST,), node=node)
    some = len(values_of(examination.listed)) > 0
    others = "others answer" if some else "none answers: consumers cannot find new nodes"
    for error in errors_of(examination.listed):
        text, node = f"nsqlookupd at {error.address} does not answer", str(error.address)
        severity = WARNING if some else CRITICAL
        yield Finding(severity, "lookupd-unreachable", text, (error.reason, others), (Remedy(f"{start}."),), node=node)


def _health(examination: Examination) -> Iterator[Finding]:
    for address, node in examination.after.nodes.items():
        if node.health != "OK":
            healed = "nsqd is healthy again after the next successful write."
            target, remedy = "disk", Remedy(f"Free space on its disk, or repair it. {healed}")
            if "log store" in node.health:  # with --durability=store
                target, remedy = "its log store", Remedy(f"{_STORE_REMEDY} {healed}")
            text = f"nsqd at {address} is unhealthy: its last write to {target} failed"
            yield Finding(CRITICAL, "unhealthy", text, (node.health,), (remedy,), node=str(address))
    for address, state in values_of(examination.drains).items():
        if state.draining:
            text = f"nsqd at {address} is draining: it accepts no new messages and exits when it is empty"
            evidence = (plural(state.messages, "message") + " left",)
            watch = Remedy("Watch it:", examination.commands.on(address, "drain watch"))
            cancel = Remedy("To cancel:", examination.commands.on(address, "drain cancel"))
            yield Finding(NOTE, "draining", text, evidence, (watch, cancel), node=str(address))


def _low_disks(examination: Examination) -> Iterator[Finding]:
    for address, node in examination.after.nodes.items():
        if (process := node.process) is not None and process.is_low_on_disk:
            free, share = units.size(process.free_disk_bytes), process.free_disk_bytes / process.disk_bytes
            largest = "the largest queues", examination.commands.on(address, "stats --sort backend_depth")
            yield _low_disk(f"nsqd at {address}", "room", share, free, *largest, node=str(address))


def _log_stores(examination: Examination) -> Iterator[Finding]:
    for address, node in examination.after.nodes.items():
        if (process := node.process) is not None and process.log_store_lag_seconds > _LAG:
            text = f"the log store of nsqd at {address} is {units.duration(process.log_store_lag_seconds)} behind"
            size = f"{units.size(process.log_store_lag_bytes)} of its log are only on that machine"
            risk = "if it is lost, so are acknowledged messages; with --durability=store, publishers wait instead"
            yield Finding(WARNING, "log-store-behind", text, (size, risk), (Remedy(_STORE_REMEDY),), node=str(address))


def _certificates(examination: Examination) -> Iterator[Finding]:
    remedy = Remedy("Renew it: gnsqd loads a changed file within seconds, without a restart.")
    for address, node in examination.after.nodes.items():
        for path, end in ({} if node.process is None else node.process.certificates).items():
            if (left := end - examination.after.clock) < _RENEWED:
                when = f"expires in {units.duration(left)}" if left > 0 else f"expired {units.duration(-left)} ago"
                evidence = path, "clients that verify it, or are verified by it, cannot connect then"
                severity = WARNING if left > 0 else CRITICAL
                text = f"a certificate of nsqd at {address} {when}"
                yield Finding(severity, "certificate-expiry", text, evidence, (remedy,), node=str(address))


def _low_disk(of: str, what: str, share: float, free: str, queues: str, command: str, node: str = "") -> Finding:
    severity = CRITICAL if share < _VERY_LOW else WARNING
    text = f"the disk of {of} has {share:.1%} of its {what} left"
    evidence = f"{free} free", "nsqd refuses messages that it cannot write"
    catch_up = Remedy(f"Free disk space, or let consumers catch up. To show {queues}:", command)
    return Finding(severity, "disk-full", text, evidence, (catch_up,), node=node)


def _versions(examination: Examination) -> Iterator[Finding]:
    nodes_by_version = grouped((node.version, str(address)) for address, node in examination.after.nodes.items())
    if len(nodes_by_version) > 1:
        evidence = tuple(f"{version}: {some_of(nodes)}" for version, nodes in sorted(nodes_by_version.items()))
        remedy = Remedy("Update all nodes to one version. To list them:", examination.commands.on_all("nodes"))
        text = f"nodes have {len(nodes_by_version)} different versions"
        yield Finding(WARNING, "version-mix", text, evidence, (remedy,))


def _clocks(examination: Examination) -> Iterator[Finding]:
    """Yields clocks that differ from this machine's; if all differ alike, this machine's clock is wrong."""
    offsets = {address: span for address, span in values_of(examination.clocks).items() if span is not None}
    wrong = {address: span for address, span in offsets.items() if span[0] > _SKEW or span[1] < -_SKEW}
    synchronize = "timedatectl set-ntp true"
    if len(offsets) > 1 and len(wrong) == len(offsets):
        least, most = max(span[0] for span in offsets.values()), min(span[1] for span in offsets.values())
        if least <= most:
            text = f"the clock of this machine is {_ahead((-most, -least))} those of all nodes"
            evidence = f"{plural(len(offsets), 'node')} agree with each other"
            remedy = Remedy("Synchronize this machine's clock:", synchronize)
            yield Finding(WARNING, "clock-skew", text, (evidence,), (remedy,))
            return
    evidence = "it determines message timestamps, latencies and delays kept on disk"
    remedy = Remedy("Synchronize the clock on that machine:", synchronize)
    for address, span in wrong.items():
        text = f"the clock of nsqd at {address} is {_ahead(span)} this machine's"
        yield Finding(WARNING, "clock-skew", text, (evidence,), (remedy,), node=str(address))


def _ahead(span: tuple[float, float]) -> str:
    middle = (span[0] + span[1]) / 2
    return f"{units.latency(abs(middle))} {'ahead of' if middle > 0 else 'behind'}"


def _listing_nodes(examination: Examination) -> dict[Address, set[Address]]:
    listed = values_of(examination.listed)
    return {lookupd: {address for address, _ in located(producers)} for lookupd, producers in listed.items()}


def unregistered(examination: Examination) -> dict[Address, list[Address]]:
    """Returns the nodes that an nsqlookupd does not list, each with these nsqlookupds."""
    listing = _listing_nodes(examination)
    everywhere = set().union(*listing.values())
    # A node with a listed port may have been given by another name than its broadcast-address.
    ports = {producer.http_port for producers in values_of(examination.listed).values() for producer in producers}
    unlisted: dict[Address, list[Address]] = {}
    for address in examination.after.nodes:
        missing = [lookupd for lookupd, nodes in listing.items() if address not in nodes]
        if missing and (address in everywhere or address.port not in ports):
            unlisted[address] = missing
    return unlisted


def _registrations(examination: Examination, unregistered: dict[Address, list[Address]]) -> Iterator[Finding]:
    lookupds = len(values_of(examination.listed))
    for address, missing in unregistered.items():
        text = f"nsqd at {address} is not registered at nsqlookupd at {some_of(missing)}"
        listing = f"{lookupds - len(missing)} of {lookupds} list it"
        evidence = "consumers that use this nsqlookupd do not find it", listing
        remedy = _registration(examination, address, missing)
        yield Finding(WARNING, "not-registered", text, evidence, (remedy,), node=str(address))


def _registration(examination: Examination, address: Address, missing: list[Address]) -> Remedy:
    """Returns how to register a node: at the nsqlookupds of others, and those whose TCP port is the default."""
    lists = {node: _texts(options.get(LOOKUPDS)) for node, options in values_of(examination.options).items()}
    if address not in lists:
        return Remedy("Check that its --lookupd-tcp-address includes that nsqlookupd.")
    own = lists[address]
    known = {text for texts in lists.values() for text in texts}
    usual = {str(Address(lookupd.host, 4160)) for lookupd in missing if lookupd.port == 4161}
    if lacking := sorted((known or usual) - set(own)):
        return Remedy(
            "To register it until it restarts (then it needs these addresses as --lookupd-tcp-address):",
            examination.commands.on(address, f"config set {LOOKUPDS}", *own, *lacking),
        )
    if own:
        return Remedy(f"It has the nsqlookupds {', '.join(own)}. Its log has the reason if it cannot connect to them.")
    return Remedy("It has no nsqlookupd. Start it with --lookupd-tcp-address.")


def _texts(value: object) -> list[str]:
    return list(map(str, value)) if isinstance(value, list) else []


def _drift(examination: Examination, keys: Sequence[str]) -> Iterator[Finding]:
    """Yields options of which nodes have different values; nodes without the option do not count."""
    options_by_node = values_of(examination.options)
    for key in keys:
        values = {address: options[key] for address, options in options_by_node.items() if key in options}
        if key == LOOKUPDS:
            values = {at: sorted(_texts(value)) for at, value in values.items() if at not in examination.embedding}
        nodes_by_value = grouped((shown(key, value), str(address)) for address, value in values.items())
        if len(nodes_by_value) > 1:
            severity = WARNING if key == LOOKUPDS else NOTE
            evidence = tuple(f"{text}: {some_of(nodes)}" for text, nodes in sorted(nodes_by_value.items()))
            remedy = Remedy("To compare all options:", examination.commands.on_all("config get --different"))
            text = f"nodes have {len(nodes_by_value)} different values of {key}"
            yield Finding(severity, "config-drift", text, evidence, (remedy,))


def tombstones(examination: Examination) -> dict[tuple[str, Address], list[Address]]:
    """Returns the topics that nsqlookupds hide on a node that has them, each with these nsqlookupds."""
    return grouped(
        ((topic, address), lookupd)
        for lookupd, producers in values_of(examination.listed).items()
        for address, producer in located(producers)
        for topic, dead in zip(producer.topics, producer.tombstones, strict=False)
        if dead and address in examination.after.topic_shares.get(topic, ())
    )


def _tombstones(examination: Examination) -> Iterator[Finding]:
    for (topic, address), lookupds in tombstones(examination).items():
        share = examination.after.topic_shares[topic][address]
        waiting = share.depth + sum(channel.depth for channel in share.channels)
        text = f"topic {topic} is hidden at {address}: new consumers do not find it there"
        hidden = f"tombstoned at {some_of(lookupds)}, for 45 s by default"
        evidence = hidden, f"{plural(waiting, 'message')} queued there"
        remedy = Remedy("To remove the topic from the node:", examination.commands.on(address, "topic delete", topic))
        severity = WARNING if waiting else NOTE
        yield Finding(severity, "tombstoned", text, evidence, (remedy,), topic=topic, node=str(address))


def _ghosts(examination: Examination) -> Iterator[Finding]:
    """Yields topics that only nsqlookupd lists; unknown while a node does not answer."""
    if not examination.whole or errors_of(examination.after.answers) or examination.discovery:
        return
    known = {topic for topics in values_of(examination.known_topics).values() for topic in topics}
    for topic in sorted(known - examination.after.topic_shares.keys()):
        remedy = Remedy("If it is no longer needed:", examination.commands.on_all("topic delete", topic))
        text = f"topic {topic} is listed by nsqlookupd, but no node has it"
        yield Finding(NOTE, "ghost-topic", text, (), (remedy,), topic=topic)


_LOW, _VERY_LOW = 0.10, 0.03  # of the disk


def examine_directory(path: str) -> Iterator[Finding]:
    """Yields all problems of a data directory; raises AdminError if it cannot be read, or is none."""
    directory = list_directory(path)
    queues = directory.queues.values()
    yield from _disk(path)
    bad = {queue.file_name(number, bad=True): size for queue in queues for number, size in queue.bad.items()}
    if bad:
        text = f"{path} holds {plural(len(bad), 'damaged file')} set aside, which will not be read"
        remedy = Remedy("Show what can be recovered, then recover it:", _data("recover-bad", path))
        yield Finding(WARNING, "bad-files", text, (units.size(sum(bad.values())), some_of(sorted(bad))), (remedy,))
    if directory.journals and not is_held(path):
        size = units.size(sum(journal.size for journal in directory.journals.values()))
        text = f"{path} has journals of {plural(len(directory.journals), 'topic')}: only gnsqd reads them"
        verify = Remedy("gnsqd loads them when it starts. To count their messages:", _data("verify", path))
        convert = Remedy("For the real nsqd, move the messages to disk queues:", _data("convert", path))
        yield Finding(NOTE, "journals", text, (size, some_of(sorted(directory.journals))), (verify, convert))
    metas = [(queue, make_plan(queue).meta) for queue in queues if queue.size]
    unread = [queue for queue, meta in metas if meta is None or meta.read_position != meta.write_position]
    file = os.path.join(path, METADATA)
    names = some_of(sorted(queue.name for queue in unread))
    left = f"{plural(len(unread), 'queue')} with messages: {names}" if unread else "no messages on disk"
    if directory.listed is None and os.path.lexists(file):
        text = f"{file} cannot be used: no daemon starts with it"
        remedy = Remedy("Restore it, or move it away and create the topics and channels again.")
        yield Finding(CRITICAL, "bad-metadata", text, (directory.metadata_error, left), (remedy,))
    elif directory.listed is None and unread:
        text = f"{path} has no {METADATA}: a daemon that starts there finds no topics"
        remedy = Remedy("Restore it, or create the topics and channels again: they get their messages back.")
        yield Finding(CRITICAL, "no-metadata", text, (left,), (remedy,))
    elif orphans := [queue for queue in unread if not directory.is_listed(queue)]:
        unlisted = f"{plural(len(orphans), 'queue')} that {METADATA} does not list, and which will not be read"
        evidence = units.size(sum(queue.size for queue in orphans)), some_of(sorted(queue.name for queue in orphans))
        remedy = Remedy("A topic or channel created with that name gets them. To show them:", _data("ls", path))
        yield Finding(WARNING, "orphan-files", f"{path} has messages of {unlisted}", evidence, (remedy,))


def _data(words: str, path: str) -> str:
    return shlex.join(["gnsqadmin", "data", words, path])


def _disk(path: str) -> Iterator[Finding]:
    try:
        disk = os.statvfs(path)
    except OSError as error:
        raise AdminError(f"cannot get the free space of the disk of {path}: {reason_of(error)}") from None
    room = "room", disk.f_bavail, disk.f_blocks, units.size(disk.f_bavail * disk.f_frsize)
    inodes = "inodes", disk.f_favail, disk.f_files, f"{disk.f_favail:,}"
    for what, free, whole, left in (room, inodes):
        if whole and free / whole < _LOW:
            yield _low_disk(path, what, free / whole, left, "the size of queues", _data("ls", path))
