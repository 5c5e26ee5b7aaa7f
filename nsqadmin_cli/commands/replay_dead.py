"""`gnsqadmin replay-dead`: publishes dead letters again, as the original messages."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import click

from gnsqd.broker.envelope import Letter, dead_letter_topic, is_dead_letter_topic
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.cluster import Cluster, errors_of, values_of
from nsqadmin_cli.command import command
from nsqadmin_cli.completion import complete_channels, complete_topics
from nsqadmin_cli.consumer import Consumer
from nsqadmin_cli.consuming import auth_option
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.look import no_such
from nsqadmin_cli.message import Message, clock
from nsqadmin_cli.options import Name, cluster_options, output_options, topic_argument
from nsqadmin_cli.output import Output, note, report
from nsqadmin_cli.peeking import MOST, Found, peek_at
from nsqadmin_cli.publisher import Publisher, amount, pace, rate_option
from nsqadmin_cli.render.progress import progress
from nsqadmin_cli.subscription import Received, Wish
from nsqadmin_cli.table import Block, Column, Form, Line, Row, Table, Tone
from nsqadmin_cli.text import plural
from nsqadmin_cli.transfer import look_at_rest, transfer

CHANNEL = "replay"  # of the dead-letter topic, to take letters from
_PATIENCE = 20.0  # seconds that all nodes may be away; a message in flight times out after 60
_WINDOW = 1000  # messages on their way here


class Shown(NamedTuple):
    """A dead letter on a node; `size` is that of the original body."""

    node: str
    letter: Letter
    size: int


@command(
    "replay-dead",
    examples="""
        gnsqadmin replay-dead orders billing --dry-run
        gnsqadmin replay-dead orders billing
        gnsqadmin replay-dead orders.billing.dead --limit 100 --to orders_retry
        gnsqadmin replay-dead orders billing --dry-run --json | jq '.letters[].reason'
    """,
    document="""
        source, channel
                 the dead-letter topic, and its channel they are consumed from
        letters  list, filled with --dry-run: node that has it, topic, channel, id,
                 timestamp (ns since 1970, when it was published), attempts, reason
                 ("requeued" or "timed out"), died (ns), size (of its body)
        topics   list: topic, messages published to it (with --dry-run: to publish)
        messages, bytes, seconds
                 what was or would be published, and the duration
        left     messages left because they are not dead letters
        nodes    list: address, messages that it accepted
    """,
)
@topic_argument
@click.argument("channel", type=Name("channel"), default=None, required=False, shell_complete=complete_channels)
@click.option(
    "--to",
    "destination",
    type=Name("topic"),
    default=None,
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="Publish to this topic, instead of the original topics.",
)
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="Stop after N messages.")
@click.option("--dry-run", is_flag=True, help=f"Show dead letters, at most {MOST:,} of each node, and do nothing.")
@rate_option
@auth_option
@cluster_options
@output_options
@click.pass_context
def replay_dead(
    ctx: click.Context,
    cluster: Cluster,
    output: Output,
    topic: str,
    channel: str | None,
    destination: str | None,
    limit: int | None,
    dry_run: bool,
    rate: float,
    auth_secret: str,
) -> None:
    """Publish the dead letters of a channel, or of a dead-letter topic, again.

    gnsqd moves messages that failed --max-attempts times to the topic TOPIC.CHANNEL.dead. Their original bodies are
    published, with a new id and timestamp, to their original topic. All channels of that topic get them again, not only
    the one where they failed; to avoid that, specify another topic by --to.

    They are consumed from a channel named replay, which the first run creates and which remains. If it is the first
    channel, it receives all dead letters, else only later ones. Each dead letter is finished only after
    its message is published. Messages in flight when a run ends are requeued, so there may be duplicates, but none is
    lost. A message that is not a dead letter is left in the channel, and the exit code is 1.
    """
    if channel is None and not is_dead_letter_topic(topic):
        raise click.UsageError(f"{topic} is not a dead-letter topic, which ends in .dead: also give the CHANNEL.")
    source = topic if channel is None else dead_letter_topic(topic, channel)
    run = _Run(source, destination)
    if dry_run:
        run.look(cluster, limit)
    else:
        run.publisher = Publisher(cluster.nsqds(), patience=_PATIENCE, rate=rate)
        run.replay(cluster, limit, Wish(CHANNEL, min(_WINDOW, limit or _WINDOW), auth_secret=auth_secret))
    run.show(output)
    if run.interrupted:
        raise KeyboardInterrupt
    if run.left:
        count = plural(len(run.left), "message")
        run.errors.append(AdminError(f"{count} of {source} {CHANNEL} cannot be replayed: not dead letters"))
    ctx.exit(report(run.errors))


class _Run:
    """Progress: messages by topic, their bytes, and `left`, by node and id, what is not a dead letter."""

    def __init__(self, source: str, destination: str | None) -> None:
        self.publisher: Publisher | None = None
        self.topics: Counter[str] = Counter()
        self.bytes = 0
        self.letters: list[Shown] = []
        self.left: set[tuple[str, bytes]] = set()
        self.errors: list[AdminError] = []
        self.interrupted = False
        self._source = source
        self._destination = destination
        self._started = time.monotonic()

    # A dry run

    def look(self, cluster: Cluster, limit: int | None) -> None:
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
                self.letters.append(Shown(peeked.message.node, letter, size))
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

    def replay(self, cluster: Cluster, limit: int | None, wish: Wish) -> None:
        source = self._source
        total = limit or look_at_rest(cluster, source, CHANNEL).waiting or None
        with Consumer(cluster, [source], wish) as consumer:
            consumer.start(create_channel=True)
            with progress("replaying", total) as advance:

                def deliver(messages: Sequence[Received]) -> Sequence[Received]:
                    done = self._deliver(messages)
                    advance(len(done))
                    return done

                try:
                    transfer(consumer, cluster, source, CHANNEL, deliver, count=limit, follow=False)
                except KeyboardInterrupt:
                    self.interrupted = True
                except AdminError as error:
                    raise AdminError(f"{error}; {plural(self.topics.total(), 'message')} replayed") from None
        consumer.warn()
        self.errors += [*cluster.lookupd_errors, *consumer.errors]

    def _deliver(self, messages: Sequence[Received]) -> list[Received]:
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
        seconds = time.monotonic() - self._started
        topics = sorted(self.topics.items())
        nodes = sorted(self.publisher.sent.items()) if self.publisher else []
        document = {
            "source": self._source,
            "channel": CHANNEL,
            "letters": [_document(shown) for shown in self.letters],
            "topics": [{"topic": name, "messages": count} for name, count in topics],
            "messages": self.topics.total(),
            "bytes": self.bytes,
            "seconds": round(seconds, 3),
            "left": len(self.left),
            "nodes": [{"address": str(address), "messages": count} for address, count in nodes],
        }
        by_topic = Table(
            [Column("topic", "topic"), Column("messages", "messages", form=Form.COUNT)],
            [[name, count] for name, count in topics],
        )
        table = by_topic if self.publisher else _table(self.letters)
        where = f" to {topics[0][0]}" if len(topics) == 1 else ""
        told = f"{'Published' if self.publisher else 'Would publish'} {amount(self.topics.total(), self.bytes)}{where}"
        if self.publisher:
            told += pace(self.topics.total(), seconds)
        blocks: list[Block] = [table] if self.letters else []
        if len(topics) > 1:
            blocks.append(by_topic)
        output.show(lambda: document, lambda: [*blocks, Line.of(told)], lambda: table)


def _document(shown: Shown) -> dict[str, object]:
    letter = shown.letter
    return {
        "node": shown.node,
        "topic": letter.topic,
        "channel": letter.channel,
        "id": letter.id,
        "timestamp": letter.timestamp,
        "attempts": letter.attempts,
        "reason": letter.reason,
        "died": letter.died,
        "size": shown.size,
    }


def _table(letters: Sequence[Shown]) -> Table:
    columns = [
        Column("id", "id", keep=9),
        Column("topic", "topic"),
        Column("channel", "channel"),
        Column("node", "node", keep=2, tone=Tone.NODE),
        Column("published", "published", keep=6),
        Column("died", "died", keep=7),
        Column("attempts", "attempts", form=Form.COUNT, keep=6),
        Column("reason", "reason", keep=8),
        Column("size", "size", form=Form.BYTES, keep=3),
    ]
    rows: list[Row] = []
    for node, letter, size in letters:
        published, died = clock(letter.timestamp), clock(letter.died)
        rows.append(
            [letter.id, letter.topic, letter.channel, node, published, died, letter.attempts, letter.reason, size]
        )
    return Table(columns, rows)
