"""An order as a command: plan it, ask before anything is lost, do it and show how it went."""

from collections.abc import Sequence
from typing import Any

import click

from nsqadmin_cli.api import Lookupd, Nsqd
from nsqadmin_cli.cluster import Cluster, values_of
from nsqadmin_cli.consent import Consent
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.look import no_such
from nsqadmin_cli.order import (
    Order,
    Outcome,
    Result,
    do_at_lookupds,
    do_on_nodes,
    losses_of,
    plan_for_lookupds,
    plan_for_nodes,
    sum_of_losses,
)
from nsqadmin_cli.output import Output, report
from nsqadmin_cli.table import ALWAYS, Block, Cell, Column, Form, Grid, Line, Row, Table, Tone
from nsqadmin_cli.text import plural

DOCUMENT = """
    action    create, delete, empty, pause, unpause or tombstone
    topic
    channel   null where it is about the topic itself
    dry_run   true: nothing was done
    nodes     list, in the order asked: address, result, error (null, or why it
              failed), lost
    lookupds  list of the nsqlookupds that had to do with it: address, result, error
    lost      the sums over all nodes
    A result is "done", "already" (it was so before), "absent" (there is no such
    topic or channel), "failed", or "planned" in a dry run. What is lost is what was
    there shortly before: depth, in_flight_count, deferred_count, client_count,
    channel_count, as far as the action takes them; null where nothing is.
"""

_DONE = {
    "create": "created",
    "delete": "deleted",
    "empty": "emptied",
    "pause": "paused",
    "unpause": "unpaused",
    "tombstone": "hidden",
}
_ALREADY = {"create": "was there already", "pause": "was paused already", "unpause": "was not paused"}
_TAKING = {"delete": "Deleting", "empty": "Emptying"}

_LOSSES = {
    "channel_count": Column("channel_count", "channels", form=Form.COUNT, keep=6),
    "depth": Column("depth", "depth", form=Form.COUNT, keep=ALWAYS),
    "in_flight_count": Column("in_flight_count", "in flight", "inflt", Form.COUNT, keep=ALWAYS),
    "deferred_count": Column("deferred_count", "deferred", "def", Form.COUNT, keep=6),
    "client_count": Column("client_count", "clients", form=Form.COUNT, keep=ALWAYS),
}


def carry_out(
    ctx: click.Context,
    cluster: Cluster,
    output: Output,
    order: Order,
    consent: Consent | None = None,
    *,
    lookupd_only: bool = False,
) -> None:
    """Do `order` on all nodes that have what it is about, and end the command; destructive orders need `consent`."""
    if lookupd_only and not cluster.lookupds:
        raise click.UsageError("--lookupd-only needs an nsqlookupd: tell it by --lookupd-http-address.")
    nodes = [] if lookupd_only else cluster.nsqds()
    outcomes = plan_for_nodes(cluster, order, nodes)
    lookupds = plan_for_lookupds(cluster, order)
    errors = cluster.lookupd_errors
    _require(cluster, order, outcomes, lookupds, errors, lookupd_only=lookupd_only)
    dry_run = consent is not None and consent.dry_run
    if not dry_run:
        if consent is not None:
            ask_consent(consent, order, outcomes, lookupds)
        do_at_lookupds(cluster, order, lookupds)
        do_on_nodes(cluster, order, outcomes)
    show(output, order, outcomes, lookupds, dry_run=dry_run)
    ctx.exit(report([*errors, *failures(outcomes, lookupds, errors)]))


def _require(
    cluster: Cluster,
    order: Order,
    outcomes: Sequence[Outcome[Nsqd]],
    lookupds: Sequence[Outcome[Lookupd]],
    errors: Sequence[AdminError],
    *,
    lookupd_only: bool,
) -> None:
    """Raise unless there is something that the order is about."""
    if any(outcome.result in (Result.PLANNED, Result.ALREADY) for outcome in outcomes) or lookupd_only:
        return
    if any(outcome.result is Result.PLANNED for outcome in lookupds) and (
        order.action == "delete" or not order.channel
    ):
        return  # a topic or channel that nsqlookupds alone remember, or a topic for nodes that will come
    if order.action == "create" and order.channel and _is_listed(cluster, order.topic):
        return
    channel = "" if order.action == "create" else order.channel
    raise no_such(cluster, [*errors, *failures(outcomes, (), errors)], order.topic, channel)


def _is_listed(cluster: Cluster, topic: str) -> bool:
    return any(topic in topics for topics in values_of(cluster.ask_lookupds(Lookupd.topics)).values())


def failures(
    outcomes: Sequence[Outcome[Nsqd]], lookupds: Sequence[Outcome[Lookupd]], known: Sequence[AdminError]
) -> list[AdminError]:
    """The errors of `outcomes` but for those that are told of already in `known`."""
    told = {str(error) for error in known}
    errors = [outcome.error for outcome in lookupds] + [outcome.error for outcome in outcomes]
    return [error for error in errors if error is not None and str(error) not in told]


def ask_consent(
    consent: Consent,
    order: Order,
    outcomes: Sequence[Outcome[Nsqd]],
    lookupds: Sequence[Outcome[Lookupd]],
) -> None:
    """Return if it may be done; AdminError."""
    consent.ask(
        f"{_warning(order, outcomes)}.",
        blocks(order, outcomes, lookupds),
        "Empty it?" if order.action == "empty" else "Delete it?",
    )


def _warning(order: Order, outcomes: Sequence[Outcome[Nsqd]]) -> str:
    """Deleting the topic x on 2 nodes loses 7 messages and disconnects 3 clients"""
    count = sum(outcome.result in (Result.PLANNED, Result.DONE) for outcome in outcomes)
    lost = sum_of_losses(order, outcomes)
    messages = sum(lost.get(key, 0) for key in ("depth", "in_flight_count", "deferred_count"))
    where = f"on {plural(count, 'node')}" if count else "at nsqlookupd"
    text = f"{_TAKING[order.action]} {order} {where} loses {plural(messages, 'message') if messages else 'no messages'}"
    clients = lost.get("client_count", 0)
    return f"{text} and disconnects {plural(clients, 'client')}" if clients else text


def show(
    output: Output,
    order: Order,
    outcomes: Sequence[Outcome[Nsqd]],
    lookupds: Sequence[Outcome[Lookupd]],
    *,
    dry_run: bool = False,
    lookupd_action: str = "",
) -> None:
    """Print how it went. `lookupd_action` is what nsqlookupds were told, if that is another action."""

    def made() -> list[Block]:
        found = blocks(order, outcomes, lookupds, lookupd_action)
        if dry_run:
            warning = f"{_warning(order, outcomes)}. " if outcomes or not lookupd_action else ""
            found.append(Line.of(f"{warning}Nothing was done."))
        return found

    output.show(
        lambda: document(order, outcomes, lookupds, dry_run=dry_run, action=lookupd_action or order.action),
        made,
        lambda: _flat_table(order, outcomes, lookupds, lookupd_action),
    )


def document(
    order: Order,
    outcomes: Sequence[Outcome[Nsqd]],
    lookupds: Sequence[Outcome[Lookupd]],
    *,
    dry_run: bool = False,
    action: str = "",
) -> dict[str, Any]:
    return {
        "action": action or order.action,
        "topic": order.topic,
        "channel": order.channel or None,
        "dry_run": dry_run,
        "nodes": [_outcome_document(outcome) | {"lost": losses_of(order, outcome) or None} for outcome in outcomes],
        "lookupds": [_outcome_document(outcome) for outcome in lookupds],
        "lost": sum_of_losses(order, outcomes) or None,
    }


def _outcome_document(outcome: Outcome[Nsqd] | Outcome[Lookupd]) -> dict[str, Any]:
    error = outcome.error.reason if outcome.error is not None else None
    return {"address": str(outcome.peer.address), "result": str(outcome.result), "error": error}


def blocks(
    order: Order,
    outcomes: Sequence[Outcome[Nsqd]],
    lookupds: Sequence[Outcome[Lookupd]],
    lookupd_action: str = "",
) -> list[Block]:
    """For people: nodes that have nothing to do with it are counted only, where there are others."""
    shown = [outcome for outcome in outcomes if outcome.result is not Result.ABSENT]
    found: list[Block] = []
    if order.is_destructive:
        found += [_table(order, shown)] if shown else []
    else:
        found.append(Grid([[Cell(str(outcome.peer), Tone.NODE), _said(order.action, outcome)] for outcome in shown]))
    action = lookupd_action or order.action
    told = [outcome for outcome in lookupds if outcome.result is not Result.ABSENT]
    if told:
        rows: list[Sequence[Cell | str]] = [
            [Cell(str(outcome.peer), Tone.NODE), "nsqlookupd", _said(action, outcome)] for outcome in told
        ]
        found.append(Grid(rows))
    if absent := len(outcomes) - len(shown):
        others = "other node" if shown else "node"
        verb = "does" if absent == 1 else "do"
        what = f"the topic {order.topic}" if order.action == "create" else "it"
        found.append(Line.of(f"{plural(absent, others)} {verb} not have {what}", Tone.FAINT))
    return found


def _table(order: Order, outcomes: Sequence[Outcome[Nsqd]]) -> Table:
    """One row for each node: what is lost there, and how it went."""
    keys = list(sum_of_losses(order, outcomes))
    if not keys and order.is_destructive and outcomes:
        keys = ["depth"]
    table = Table(
        (
            Column("node", "node", tone=Tone.NODE),
            *(_LOSSES[key] for key in keys),
            Column("result", "result", keep=ALWAYS),
        )
    )
    done = 0
    for outcome in outcomes:
        lost = losses_of(order, outcome)
        done += outcome.result in (Result.PLANNED, Result.DONE)
        table.rows.append([str(outcome.peer), *(_lost(lost.get(key)) for key in keys), _said(order.action, outcome)])
    if done > 1:
        whole = sum_of_losses(order, outcomes)
        total: Row = [Cell(plural(done, "node"), Tone.STRONG), *(_lost(whole.get(key)) for key in keys), None]
        table.total = total if keys else None
    return table


def _flat_table(
    order: Order, outcomes: Sequence[Outcome[Nsqd]], lookupds: Sequence[Outcome[Lookupd]], lookupd_action: str
) -> Table:
    """One row for each node and nsqlookupd."""
    table = _table(order, outcomes)
    first, *others = table.columns
    table.columns = (first, Column("program", "program"), *others)
    table.rows = [[row[0], "nsqd", *row[1:]] for row in table.rows]
    blanks = [None] * (len(others) - 1)
    for outcome in lookupds:
        said = _said(lookupd_action or order.action, outcome)
        table.rows.append([str(outcome.peer), "nsqlookupd", *blanks, said])
    return table


def _lost(number: int | None) -> Cell | int | None:
    return Cell(number, Tone.NOTE) if number else number


def _said(action: str, outcome: Outcome[Nsqd] | Outcome[Lookupd]) -> Cell:
    """How it went, for people."""
    match outcome.result:
        case Result.DONE:
            return Cell(_DONE[action], Tone.GOOD)
        case Result.ALREADY:
            return Cell(_ALREADY[action], Tone.FAINT)
        case Result.ABSENT:
            return Cell("not there", Tone.FAINT)
        case Result.FAILED:
            reason = outcome.error.reason if outcome.error is not None else ""
            return Cell(f"failed: {reason}", Tone.BAD)
        case Result.PLANNED:
            return Cell(f"to be {_DONE[action]}", Tone.NOTE)
