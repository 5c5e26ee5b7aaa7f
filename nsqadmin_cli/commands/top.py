"""`gnsqadmin top`: a full screen of the queues, updated each second."""

import time

import click

from nsqadmin_cli.command import Duration, command, option
from nsqadmin_cli.context import ClusterSettings, Commands
from nsqadmin_cli.table import Tone
from nsqadmin_cli.top_view import CONSUMER, ORDERS, SUBJECTS, TopView, Watcher


@command(
    "top",
    examples="""
        gnsqadmin top
        gnsqadmin top --lookupd-http-address lookup.example:4161 --sort trouble
        gnsqadmin top --filter orders --interval 5
    """,
)
@option("--interval", type=Duration(60), default="1", help="Interval between updates.")
@option(
    "--sort",
    "order",
    type=click.Choice([order.heading for order in ORDERS]),
    default=ORDERS[0].heading,
    help="Initial sort column.",
)
@option("--filter", "needle", default="", metavar="TEXT", help="Show only names that contain this text.")
@option("--show", "subject", type=click.Choice(SUBJECTS), default=SUBJECTS[0], help="Initial view.")
def top(settings: ClusterSettings, interval: float, order: str, needle: str, subject: str) -> None:
    """Watch the queues on a full screen: rates, trends, drain times and problems.

    Keys sort and filter, and show the consumers of a channel. They also pause, empty, delete, peek at or tail the
    selected topic or channel, with the same confirmation as the commands. ? lists the keys, q quits. Nodes are queried
    separately, so a node that hangs does not delay the others; it is shown as failed.

    The last column shows problems: no clients (queued messages are not consumed; a number is the number of such nodes),
    stuck (clients are connected and finish nothing), paused, timeouts, requeues (more than are finished), growing (more
    messages arrive than are finished).
    """
    from nsqadmin_cli.render.layout import lay_out, lay_out_line
    from nsqadmin_cli.render.screen import Screen

    view = TopView(subject=subject, order=order, needle=needle, interval=interval)
    commands = Commands(settings)
    with Screen() as screen:
        watcher = Watcher(settings.cluster(), interval)
        watcher.start()
        started = time.monotonic()
        due = 0.0
        try:
            while True:
                now = time.monotonic()
                if now >= due:
                    if not view.held:
                        view.troubles = watcher.troubles
                        view.update(*watcher.see())
                    due = now + (0.1 if watcher.pending and now < started + 2 else view.interval)
                width, height = screen.size()
                head, table, foot = view.blocks(width, height)
                lines = [lay_out_line(line) for line in head]
                rows = [[("  ", Tone.PLAIN), *parts] for parts in lay_out(table, width - 3, cut=True)]
                if table.rows and not view.helping:  # below headings and a rule
                    text = "".join(text for text, _ in rows[view.cursor + 2])
                    rows[view.cursor + 2] = [(f"> {text[2:]}".ljust(width - 1), Tone.SELECTED)]
                lines += [[], *rows]
                lines += [[]] * (height - len(lines) - 1)
                screen.draw([*lines[: height - 1], lay_out_line(foot)])
                key = screen.key(due - time.monotonic())
                if words := view.action(key):
                    screen.run(commands.on_all(*words))
                elif key and not view.press(key):
                    return
                watcher.interval, watcher.clients = view.interval, view.subject == CONSUMER
        finally:
            watcher.stop()
