"""`gnsqadmin replay-dead`: publishes dead letters again, as the original messages."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import click

from gnsqd.broker.dead_letter_format import DeadLetter, dead_letter_topic, is_dead_letter_topic
from nsqadmin_cli.change import Change, Shown
from nsqadmin_cli.cluster import Cluster, errors_of, values_of
from nsqadmin_cli.command_base import Name, argument, change_command, flag, option
from nsqadmin_cli.consumer import ConsumerOptions, Source, auth_option, transfer
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.message import MOST, MessageRow, clock, peek_at
from nsqadmin_cli.output import Advance, note
from nsqadmin_cli.publisher import PATIENCE, NodeCount, Sender, TopicCount, rate_option, shown_by_topic
from nsqadmin_cli.snapshot import no_such
from nsqadmin_cli.table import Form, Tone, column, described, json_only, table_of
from nsqadmin_cli.units import grouped, plural

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


@change_command(
    asks=False,
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
def replay_dead(
    cluster: Cluster,
    topic: str,
    channel: str | None = argument(Name("channel"), required=False),
    destination: str | None = option(
        "Publish to this topic, instead of the original topics.", Name("topic"), "--to", metavar="TOPIC"
    ),
    limit: int | None = option("Stop after N messages.", click.IntRange(1), "-n", "--limit"),
    rate: float = rate_option,
    auth_secret: str = auth_option,
    dry_run: bool = flag(f"Show dead letters, at most {MOST:,} of each node, and do nothing.", on_page=False),
) -> Change:
    """gnsqd moves messages that failed --max-attempts times to the topic TOPIC.CHANNEL.dead. This command publishes the
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
    run = _Run(source=source, destination=destination)

    def show(_: bool) -> Shown:
        if run.publisher.is_dry:
            run.show_letters(cluster, limit)
        more = {"source": source, "channel": CHANNEL, "letters": run.letters, "left": len(run.left)}
        detail = table_of(LetterRow, run.letters) if run.publisher.is_dry else None
        shown = shown_by_topic(run.publisher, more, detail)
        if run.left:
            count = plural(len(run.left), "message")
            run.errors.append(AdminError(f"{count} of {source} {CHANNEL} cannot be replayed: not dead letters"))
        return replace(shown, errors=run.errors, is_interrupted=run.is_interrupted)

    def do() -> None:
        run.publisher = Sender(cluster.nsqds(), patience=PATIENCE, rate=rate)
        options = ConsumerOptions(CHANNEL, min(_WINDOW, limit or _WINDOW), auth_secret=auth_secret)
        letters = Source(options, limit, follow=False, create=True, yes=False)
        run.errors, run.is_interrupted = transfer(cluster, source, letters, "replaying", run.deliver, run.done)

    return Change(show, None if dry_run else do)


@dataclass
class _Run:
    """`left` is what is not a dead letter, by node and id."""

    source: str
    destination: str | None
    publisher: Sender = field(default_factory=lambda: Sender(None))
    letters: list[LetterRow] = field(default_factory=list)
    left: set[tuple[str, bytes]] = field(default_factory=set)
    errors: list[AdminError] = field(default_factory=list)
    is_interrupted: bool = False

    def show_letters(self, cluster: Cluster, limit: int | None) -> None:
        count = min(limit or MOST, MOST)
        # Of the channel, or, if it does not exist yet, of the topic.
        peek = partial(peek_at, topic=self.source, count=count)
        answers = cluster.ask(lambda node: peek(node, channel=CHANNEL) or peek(node, channel=""))
        self.errors += [*cluster.lookupd_errors, *errors_of(answers)]
        queues = [answer for answer in values_of(answers).values() if answer is not None]
        if not queues:
            raise no_such(cluster, self.errors, self.source)
        for peeked in [peeked for queue in queues for peeked in queue.messages][:limit]:
            if (letter := self._read(peeked.message)) is not None:
                # The node may show no more than the beginning of it.
                size = peeked.size - (len(peeked.message.body) - len(letter.body))
                place = letter.id, letter.topic, letter.channel, peeked.message.node
                times = clock(letter.timestamp), clock(letter.died)
                row = LetterRow(*place, *times, letter.attempts, letter.reason, size, letter.timestamp, letter.died)
                self.letters.append(row)
                self.publisher.topics[self.destination or letter.topic] += 1
                self.publisher.bytes += size
        waiting = sum(queue.depth for queue in queues)
        shown = len(self.letters) + len(self.left)
        if shown < min(waiting, limit or waiting):
            note(f"{shown:,} of {plural(waiting, 'message')} shown")

    def done(self) -> str:
        return f"{plural(self.publisher.total, 'message')} replayed"

    def deliver(self, messages: Sequence[MessageRow], advance: Advance) -> list[MessageRow]:
        """Publishes the original messages, topic by topic; returns the published ones."""
        letters = ((message, letter) for message in messages if (letter := self._read(message)))
        by_topic = grouped((self.destination or letter.topic, (message, letter)) for message, letter in letters)
        for topic, pairs in by_topic.items():
            for count in self.publisher.publish(topic, [letter.body for _, letter in pairs]):
                advance(count)
        return [message for pairs in by_topic.values() for message, _ in pairs]

    def _read(self, message: MessageRow) -> DeadLetter | None:
        try:
            letter = DeadLetter.parse(message.body)
        except ValueError:
            letter = None
        if letter is None or not letter.body:  # NSQ does not accept empty messages
            self.left.add((message.node, message.id))
            return None
        return letter
