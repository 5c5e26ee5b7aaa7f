"""`gnsqadmin replay-dead`: publishes dead letters again, as the original messages."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import click

from gnsqd.broker.envelope import Letter, dead_letter_topic, is_dead_letter_topic
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.cluster import Cluster, errors_of, values_of
from nsqadmin_cli.command import Name, command, option
from nsqadmin_cli.completion import complete_channels, complete_topics
from nsqadmin_cli.consumer import Source, auth_option, transfer
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.message import MOST, Found, Message, clock, peek_at
from nsqadmin_cli.output import Advance, Output, note, report
from nsqadmin_cli.publisher import PATIENCE, NodeCount, Publisher, TopicCount, rate_option, show_by_topic
from nsqadmin_cli.snapshot import no_such
from nsqadmin_cli.subscription import ConsumerOptions, Received
from nsqadmin_cli.table import Form, Tone, column, described, json_only, table_of
from nsqadmin_cli.units import plural

CHANNEL = "replay"  # of the dead-letter topic, to take letters from
_WINDOW = 1000  # messages on their way here


@dataclass(slots=True)
class LetterRow:
    """A dead letter on a node; `size` is that of the original body."""

    id: str = column("id", keep=9)
    topic: str = column("topic")
    channel: str = column("channel")
    node: str = column("node", keep=2, tone=Tone.NODE, help="that has it")
    published: str = column("published", keep=6, json=False)
    died_at: str = column("died", key="died", keep=7, json=False)
    attempts: int = column("attempts", form=Form.COUNT, keep=6)
    reason: str = column("reason", keep=8, help='"requeued" or "timed out"')
    size: int = column("size", form=Form.BYTES, keep=3, help="of its body")
    timestamp: int = json_only("ns since 1970, when it was published")
    died: int = json_only("ns")

    @classmethod
    def of(cls, node: str, letter: Letter, size: int) -> "LetterRow":
        times = clock(letter.timestamp), clock(letter.died)
        place = letter.id, letter.topic, letter.channel, node
        return cls(*place, *times, letter.attempts, letter.reason, size, letter.timestamp, letter.died)


@command(
    "replay-dead",
    examples="""
        gnsqadmin replay-dead orders billing --dry-run
        gnsqadmin replay-dead orders billing
        gnsqadmin replay-dead orders.billing.dead --limit 100 --to orders_retry
        gnsqadmin replay-dead orders billing --dry-run --json | jq '.letters[].reason'
    """,
    document=(
        """
        source, channel
                 the dead-letter topic, and its channel they are consumed from
        """,
        described("letters", "list, filled with --dry-run", LetterRow),
        described("topics", "list", TopicCount),
        """
        messages, bytes, seconds
                 what was or would be published, and the duration
        left     messages left because they are not dead letters
        """,
        described("nodes", "list", NodeCount),
    ),
)
@click.argument("channel", type=Name("channel"), default=None, required=False, shell_complete=complete_channels)
@option(
    "--to",
    "destination",
    type=Name("topic"),
    default=None,
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="Publish to this topic, instead of the original topics.",
)
@option("-n", "--limit", type=click.IntRange(1), help="Stop after N messages.")
@option("--dry-run", is_flag=True, help=f"Show dead letters, at most {MOST:,} of each node, and do nothing.")
@rate_option
@auth_option
def replay_dead(
    cluster: Cluster,
    output: Output,
    topic: str,
    channel: str | None,
    destination: str | None,
    limit: int | None,
    dry_run: bool,
    rate: float,
    auth_secret: str,
) -> int:
    """Publish the dead letters of a channel, or of a dead-letter topic, again.

    gnsqd moves messages that failed --max-attempts times to the topic TOPIC.CHANNEL.dead. This command publishes the
    original bodies to the original topics, with new ids and timestamps. All channels of a topic receive them again, not
    only the channel where they failed; to avoid that, give another topic with --to.

    Dead letters are consumed from the channel replay, which the first run creates and does not delete. If it is the
    first channel of the dead-letter topic, it receives all dead letters; otherwise only dead letters published later.
    Each dead letter is finished only after its message is published. Messages in flight when a run ends are requeued,
    so there may be duplicates, but none is lost. A message that is not a dead letter is left in the channel, and the
    exit code is 1.
    """
    if channel is None and not is_dead_letter_topic(topic):
        raise click.UsageError(f"{topic} is not a dead-letter topic, which ends in .dead: also give the CHANNEL.")
    source = topic if channel is None else dead_letter_topic(topic, channel)
    run = _Run(source, destination)
    if dry_run:
        run.show_letters(cluster, limit)
    else:
        run.publisher = Publisher(cluster.nsqds(), patience=PATIENCE, rate=rate)
        options = ConsumerOptions(CHANNEL, min(_WINDOW, limit or _WINDOW), auth_secret=auth_secret)
        run.replay(cluster, Source(options, limit, follow=False, create=True, yes=False))
    run.show(output)
    if run.interrupted:
        raise KeyboardInterrupt
    if run.left:
        count = plural(len(run.left), "message")
        run.errors.append(AdminError(f"{count} of {source} {CHANNEL} cannot be replayed: not dead letters"))
    return report(run.errors)


class _Run:
    """Progress: messages by topic, their bytes, and `left`, by node and id, what is not a dead letter."""

    def __init__(self, source: str, destination: str | None) -> None:
        self.publisher: Publisher | None = None
        self.topics: Counter[str] = Counter()
        self.bytes = 0
        self.letters: list[LetterRow] = []
        self.left: set[tuple[str, bytes]] = set()
        self.errors: list[AdminError] = []
        self.interrupted = False
        self._source = source
        self._destination = destination
        self._started = time.monotonic()

    # A dry run

    def show_letters(self, cluster: Cluster, limit: int | None) -> None:
        """Show the dead letters, without consuming them."""
        answers = cluster.ask(lambda node: self._peek(node, min(limit or MOST, MOST)))
        self.errors += [*cluster.lookupd_errors, *errors_of(answers)]
        found = [answer for answer in values_of(answers).values() if answer is not None]
        if not found:
            raise no_such(cluster, self.errors, self._source)
        for peeked in [one for answer in found for one in answer.messages][:limit]:
            letter = self._read(peeked.message)
            if letter is not None:
                # The node may show no more than the beginning of it.
                size = peeked.size - (len(peeked.message.body) - len(letter.body))
                self.letters.append(LetterRow.of(peeked.message.node, letter, size))
                self.topics[self._destination or letter.topic] += 1
                self.bytes += size
        waiting = sum(answer.depth for answer in found)
        shown = len(self.letters) + len(self.left)
        if shown < min(waiting, limit or waiting):
            note(f"{shown:,} of {plural(waiting, 'message')} shown")

    def _peek(self, node: Nsqd, count: int) -> Found | None:
        """The messages queued in the channel, or, if it does not exist yet, in the topic."""
        found = peek_at(node, self._source, CHANNEL, count)
        return peek_at(node, self._source, "", count) if found is None else found

    # A replay

    def replay(self, cluster: Cluster, source: Source) -> None:
        def done() -> str:
            return f"{plural(self.topics.total(), 'message')} replayed"

        errors, self.interrupted = transfer(cluster, self._source, source, "replaying", self._deliver, done)
        self.errors += errors

    def _deliver(self, messages: Sequence[Received], advance: Advance) -> list[Received]:
        """Publish the original messages, topic by topic; returns the published ones."""
        assert self.publisher is not None
        by_topic: dict[str, list[tuple[Received, Letter]]] = {}
        for message in messages:
            letter = self._read(message)
            if letter is not None:
                by_topic.setdefault(self._destination or letter.topic, []).append((message, letter))
        for topic, found in by_topic.items():
            for count in self.publisher.publish(topic, [letter.body for _, letter in found]):
                self.topics[topic] += count
                advance(count)
        self.bytes = self.publisher.bytes
        return [message for found in by_topic.values() for message, _ in found]

    def _read(self, message: Message) -> Letter | None:
        try:
            letter = Letter.parse(message.body)
        except ValueError:
            letter = None
        if letter is None or not letter.body:  # NSQ does not accept empty messages
            self.left.add((message.node, message.id))
            return None
        return letter

    # The end

    def show(self, output: Output) -> None:
        more = {"source": self._source, "channel": CHANNEL, "letters": self.letters, "left": len(self.left)}
        detail = None if self.publisher else table_of(LetterRow, self.letters)
        seconds = time.monotonic() - self._started
        show_by_topic(output, self.topics, self.bytes, seconds, self.publisher, more, detail)
