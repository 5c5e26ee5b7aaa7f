"""`gnsqadmin top`: a full screen of the queues, anew each second."""

import time

import click

from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.command import command
from nsqadmin_cli.options import Duration, cluster_options
from nsqadmin_cli.top_view import ORDERS, SUBJECTS, TopView
from nsqadmin_cli.watch import Watcher


@command(
    "top",
    examples="""
        gnsqadmin top
        gnsqadmin top --lookupd-http-address lookup.example:4161 --sort trouble
        gnsqadmin top --filter orders --interval 5
    """,
)
@click.option(
    "--interval", type=Duration(60), default=1.0, metavar="DURATION", help="How long between two looks. [default: 1]"
)
@click.option(
    "--sort",
    "order",
    type=click.Choice([order.heading for order in ORDERS]),
    default=ORDERS[0].heading,
    show_default=True,
    help="What to sort by at first.",
)
@click.option("--filter", "needle", default="", metavar="TEXT", help="Show only what has this text in its name.")
@click.option(
    "--show",
    "subject",
    type=click.Choice(SUBJECTS),
    default=SUBJECTS[0],
    show_default=True,
    help="What has a row at first.",
)
@cluster_options
def top(cluster: Cluster, interval: float, order: str, needle: str, subject: str) -> None:
    """Watch the queues on a full screen: rates, trends, when they will be empty, and what is wrong.

    Sorts and filters by a key; ? lists the keys, q leaves. Each node is asked on its own, so that one that hangs
    delays no other; it is shown as failed.

    What is wrong stands at the end of a row: no clients (messages wait and nobody takes them; with a number, on so
    many of the nodes), stuck (clients are there and finish nothing), paused, timeouts, requeues (more than are
    finished), growing (more comes than goes).
    """
    from nsqadmin_cli.render.layout import lay_out, lay_out_line
    from nsqadmin_cli.render.screen import Screen

    view = TopView(subject=subject, order=order, needle=needle, interval=interval)
    with Screen() as screen:
        watcher = Watcher(cluster, interval)
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
                lines += [[], *lay_out(table, width - 1, cut=True)]
                lines += [[]] * (height - len(lines) - 1)
                screen.draw([*lines[: height - 1], lay_out_line(foot)])
                if (key := screen.key(due - time.monotonic())) and not view.press(key):
                    return
                watcher.interval = view.interval
        finally:
            watcher.stop()
