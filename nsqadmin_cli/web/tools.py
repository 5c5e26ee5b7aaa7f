"""Commands of gnsqadmin as pages: a form, what the command shows or will do, and the result once it is confirmed.

The functions of the commands do the work. A command that asks for confirmation is stopped there, and its question is
the plan. Called in threads.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import click

from gnsqd.options import IDLE_POLICIES
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.errors import AdminError, NotFound
from nsqadmin_cli.message import MOST
from nsqadmin_cli.output import Confirm, Output, collected
from nsqadmin_cli.table import ALWAYS, Block, Grid, Paragraph, Table
from nsqadmin_cli.units import plural, printable
from nsqadmin_cli.web.http import HTTPError, Request, Response
from nsqadmin_cli.web.present import HTMLTable, address_of, facts, html_table, node_address, query
from nsqadmin_cli.web.site import Page, Site

Values = dict[str, str]  # of the fields of a form, without empty ones


class Field(NamedTuple):
    """An input of a form, or with `choices` a selection; `label` is what a person reads."""

    name: str
    label: str
    placeholder: str = ""
    choices: tuple[tuple[str, str], ...] = ()  # values and texts
    is_required: bool = False


class Shown(Output):
    """Keeps what a command shows."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[Block] = []

    def _tables(self, blocks: Sequence[Block], number: int | None) -> None:
        self.blocks += blocks


class Planned(Exception):
    """A command has asked for confirmation; nothing was done yet."""

    def __init__(self, warning: str, blocks: Sequence[Block]) -> None:
        super().__init__(warning)
        self.blocks = blocks


class Planning(Confirm):
    """Stops a command where it asks."""

    def ask(self, warning: str, blocks: Sequence[Block], question: str, more: str = "") -> None:
        raise Planned(warning, blocks)


Run = Callable[[Cluster, Output, Confirm, Values], object]


@dataclass(frozen=True)
class Tool:
    """One page. `run` calls the command; `plan` is the plan of a command that does not ask for confirmation, or "" if
    it changes nothing. Without `shows`, nothing is run until the form is sent."""

    title: str
    about: str
    of_node: bool
    fields: tuple[Field, ...]
    button: str
    run: Run
    shows: bool = True
    plan: Callable[[Values], str] = field(default=lambda given: "")


def _call(command: click.Command, *args: object, **values: object) -> object:
    """Calls the function that the command was made of."""
    assert command.callback is not None
    function: Callable[..., object] = inspect.unwrap(command.callback)
    return function(*args, **values)


def _number(given: Values, name: str, kind: type[int] | type[float]) -> Any:
    text = given.get(name)
    try:
        return kind(text) if text else None
    except ValueError:
        raise click.UsageError(f"--{name}: {printable(repr(text), 100)} is not a number.") from None


def _limit(given: Values, default: int) -> int:
    limit: int | None = _number(given, "limit", int)
    if limit is not None and not 0 < limit <= MOST:
        raise click.UsageError(f"--limit: {limit} is not 1 to {MOST}.")
    return limit or default


def _rewind(cluster: Cluster, output: Output, confirm: Confirm, given: Values) -> object:
    from nsqadmin_cli.commands.rewind import rewind

    points = {"to": given.get("to", ""), "until": given.get("until")}
    return _call(rewind, cluster, output, confirm, given["topic"], given["channel"], **points)


def _rules(cluster: Cluster, output: Output, confirm: Confirm, given: Values) -> object:
    from nsqadmin_cli.commands.rules import rules

    values = {"rate": _number(given, "rate", float), "burst": _number(given, "burst", int)}
    values["ordered"] = {"yes": True, "no": False}.get(given.get("ordered", ""))
    values |= {name: given.get(name) for name in ("idle_timeout", "idle_policy")}
    return _call(rules, cluster, output, confirm, given["topic"], given["channel"], **values)


def _deferred(cluster: Cluster, output: Output, confirm: Confirm, given: Values) -> object:
    from nsqadmin_cli.commands.deferred import deferred

    if "cancel" not in given:
        confirm = Confirm(yes=False, dry_run=False)  # which the command accepts without --cancel
    values = {"limit": _limit(given, 20), "since": given.get("from"), "cancel": given.get("cancel")}
    return _call(deferred, cluster, output, confirm, given["topic"], given["channel"], **values)


def _replay_dead(cluster: Cluster, output: Output, confirm: Confirm, given: Values) -> object:
    from nsqadmin_cli.commands.replay_dead import replay_dead

    places = {"topic": given["topic"], "channel": given["channel"], "destination": given.get("to")}
    limit = _limit(given, 100)
    more = {"limit": limit, "dry_run": not confirm.yes, "rate": 0.0, "auth_secret": ""}
    return _call(replay_dead, cluster, output, **places, **more)


def _plan_of_replay(given: Values) -> str:
    if not (limit := given.get("limit", "")).isdecimal():
        return ""  # or an error
    to = given.get("to") or "the topics that they come from"
    return (
        f"At most {plural(int(limit[:9]), 'message')} will be published again to {to}. All channels there receive them."
    )


def _drain(cluster: Cluster, output: Output, confirm: Confirm, given: Values) -> object:
    from nsqadmin_cli.commands import drain

    match given.get("action"):
        case "start":
            return _call(drain.start, cluster, output, confirm, is_watched=False)
        case "cancel" if confirm.yes:
            return _call(drain.cancel, cluster, output)
    return _call(drain.status, cluster, output)


def _plan_of_drain(given: Values) -> str:
    return "The node accepts publishers again, and does not exit." if given.get("action") == "cancel" else ""


def _config(cluster: Cluster, output: Output, confirm: Confirm, given: Values) -> object:
    from nsqadmin_cli.commands import config

    if "value" in given and confirm.yes:
        return _call(config.set_, cluster, output, given.get("option", ""), tuple(given["value"].split()))
    names = (given["option"],) if "value" in given and "option" in given else ()
    return _call(config.get, cluster, output, names, different=False)


def _plan_of_config(given: Values) -> str:
    if "value" not in given:
        return ""
    return f"{given.get('option', '')} becomes {given['value']} until the node is started again."


_OPTIONS = ("log_level", "nsqlookupd_tcp_addresses")

TOOLS = {
    "rewind": Tool(
        "Rewind",
        "Finished messages are delivered again. A point is a time ago (-15m), a time with its zone "
        "(2026-11-23T14:00:00Z), the id of a message, or first. Only gnsqd keeps finished messages, with "
        "--retention-bytes.",
        False,
        (
            Field("to", "To", "the first message that comes again", is_required=True),
            Field("until", "Until", "the first message that does not"),
        ),
        "Show the plan",
        _rewind,
        shows=False,
    ),
    "rules": Tool(
        "Rules",
        "A field that is empty does not change. Each node limits the rate and keeps the order of its own messages. "
        "Only gnsqd has rules.",
        False,
        (
            Field("rate", "Rate", "messages a second, 0 for no limit"),
            Field("burst", "Burst", "messages that may come at once"),
            Field("ordered", "One at a time, oldest first", choices=(("", "no change"), ("yes", "yes"), ("no", "no"))),
            Field("idle_timeout", "Idle after", "a time without consumers, as in 72h, 0 for never"),
            Field(
                "idle_policy", "When idle", choices=(("", "no change"), *((policy, policy) for policy in IDLE_POLICIES))
            ),
        ),
        "Show the plan",
        _rules,
    ),
    "deferred": Tool(
        "Deferred messages",
        "Messages published or requeued with a delay. The id of a message leads to the plan to cancel it. Only gnsqd "
        "shows them.",
        False,
        (Field("limit", "At most", "20"), Field("from", "Due from", "a time, or as in 7d")),
        "Show",
        _deferred,
    ),
    "replay-dead": Tool(
        "Replay dead letters",
        "gnsqd moves messages that failed too often to a dead-letter topic. They are published again with new ids, and "
        "finished there. Nothing is lost, but a run that ends early may leave duplicates.",
        False,
        (
            Field("limit", "At most", "a number of messages, as in 100", is_required=True),
            Field("to", "To another topic", "instead of the topics that they come from"),
        ),
        "Show the plan",
        _replay_dead,
        plan=_plan_of_replay,
    ),
    "drain": Tool(
        "Drain",
        "A node that drains refuses publishers, lets consumers empty it, and exits. Only gnsqd can drain.",
        True,
        (
            Field(
                "action",
                "Drain",
                choices=(("", "only show the state"), ("start", "start to drain"), ("cancel", "cancel the drain")),
            ),
        ),
        "Show the plan",
        _drain,
        plan=_plan_of_drain,
    ),
    "config": Tool(
        "Options",
        "Two options can be changed while a node runs. Its config file is not changed.",
        True,
        (
            Field("option", "Option", choices=tuple((name, name) for name in _OPTIONS)),
            Field("value", "Value", "as in debug, or lookup-1:4160 lookup-2:4160", is_required=True),
        ),
        "Show the plan",
        _config,
        plan=_plan_of_config,
    ),
}


def show(site: Site, request: Request) -> Response:
    """The form of a tool with what it shows, or its plan."""
    return _response(site, request, request.query)


def act(site: Site, request: Request) -> Response:
    """Do it if it was confirmed; without that, its plan is shown."""
    form = dict(request.form)
    if form.pop("confirmed", "") != "yes":
        return _response(site, request, form)
    name, tool, given = _asked(request, form)
    page, status = _page(site, request, name, tool, given, is_confirmed=True)
    site.monitor.changed()
    return Response.redirect(site.keep(page)) if status == 200 else Response(status, site.render(request, page))


def _response(site: Site, request: Request, form: Values) -> Response:
    page, status = _page(site, request, *_asked(request, form), is_confirmed=False)
    return Response(status, site.render(request, page))


def _asked(request: Request, form: Values) -> tuple[str, Tool, Values]:
    """The name of the tool, the tool and the values of its fields; HTTPError."""
    name = request.segments[0]
    tool = TOOLS[name]
    names = [*(form_field.name for form_field in tool.fields), *(["node"] if tool.of_node else ["topic", "channel"])]
    names += ["cancel"] if name == "deferred" else []
    given = {key: form[key].strip() for key in names if form.get(key, "").strip()}
    if missing := [key for key in ("node", "topic", "channel") if key in names and key not in given]:
        raise HTTPError(400, f"a {missing[0]} is needed")
    return name, tool, given


def _page(
    site: Site, request: Request, name: str, tool: Tool, given: Values, *, is_confirmed: bool
) -> tuple[Page, int]:
    """The page, and its status."""
    cluster, output, warning, status = _cluster(site, tool, given), Shown(), tool.plan(given), 200
    blocks: Sequence[Block] = output.blocks
    errors: list[str] = []
    is_asked = tool.shows or any(form_field.name in given for form_field in tool.fields)
    with collected(errors):
        try:
            if is_asked:
                confirm = Confirm(yes=True, dry_run=False) if is_confirmed else Planning(yes=False, dry_run=False)
                tool.run(cluster, output, confirm, given)
        except Planned as plan:
            warning, blocks = str(plan), plan.blocks
        except click.UsageError as error:
            errors.append(error.format_message().removeprefix("--"))
            status = 400
        except AdminError as error:
            errors.append("; ".join(map(str, (error, *error.causes))))
            status = 404 if isinstance(error, NotFound) else 502
    is_done = is_confirmed and status == 200
    targets = {key: given[key] for key in ("node", "topic", "channel") if key in given}
    cancel = name == "deferred" and "cancel" not in given and site.security.may_change(request)

    def link(key: str, row: dict[str, object]) -> str:
        return f"/deferred?{query(**targets, cancel=row['id'])}" if cancel and key == "id" else ""

    page = Page(
        "tool.html",
        {
            "title": tool.title,
            "name": name,
            "about": tool.about,
            "targets": targets,
            "fields": tool.fields,
            "given": given,
            "button": tool.button,
            "warning": f"{warning.rstrip('.')}." if warning and not is_done and status == 200 else "",
            "blocks": [_shown(block, link) for block in blocks],
            "errors": [printable(text, 2000) for text in errors],
            "done": is_done,
            "back": node_address(given["node"]) if tool.of_node else address_of(given["topic"], given["channel"]),
        },
    )
    return page, status


def _cluster(site: Site, tool: Tool, given: Values) -> Cluster:
    """The whole cluster, or only the node of a tool for nodes; NotFound."""
    if not tool.of_node:
        return site.cluster
    for node in site.cluster.nsqds():
        if str(node.address) == given["node"]:
            return Cluster([node.address], [], site.cluster.http)
    raise NotFound(f"no node has the address {printable(given['node'], 100)}")


def _shown(block: Block, link: Callable[[str, dict[str, object]], str]) -> HTMLTable | list[tuple[str, str, str]] | str:
    """A table, the rows of a grid, or a text, for the template."""
    if isinstance(block, Table):
        block.columns = [replace(column, keep=ALWAYS) if column.key == "due" else column for column in block.columns]
        return html_table("Result", block, link)
    if isinstance(block, Grid):
        return facts(block)
    if isinstance(block, Paragraph):
        return block.text
    return "".join(text for text, _ in block.parts)
