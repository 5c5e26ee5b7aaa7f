"""The commands that change the cluster as pages: a form, the plan, and after confirmation what was done.

A form has an input for each parameter that is the command's own. Its values are parsed as those of the command line,
and the command makes the same Change of them. Called in threads.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import NamedTuple

import click

from gnsqd.shared.names import is_valid_name
from nsqadmin_cli.change import Change, Shown
from nsqadmin_cli.cli import cli
from nsqadmin_cli.cluster import Cluster
from nsqadmin_cli.command_base import ON_PAGE, ChangeCommand
from nsqadmin_cli.errors import AdminError, NotOnNode
from nsqadmin_cli.http_client import NodeError
from nsqadmin_cli.output import collected
from nsqadmin_cli.table import ALWAYS, Block, Grid, Paragraph, Table
from nsqadmin_cli.units import printable
from nsqadmin_cli.web.http import HTTPError, PageRequest, Redirect, Response
from nsqadmin_cli.web.present import HTMLTable, address_of, facts, html_table, node_address, query, with_query
from nsqadmin_cli.web.site import Multiline, Page, PageSite

TARGETS = ("topic", "channel", "node")  # fields that are not shown if they are given


class Field(NamedTuple):
    """An input for one parameter: a checkbox, a text, or with `choices`, values and their texts, a selection."""

    param: click.Parameter
    name: str  # the option without hyphens, or the name of the argument
    value: str
    help: str
    choices: list[tuple[str, str]]
    is_check: bool
    is_text: bool
    is_hidden: bool

    def words(self) -> list[str]:
        """Returns what stands for it on a command line; nothing for a field that is empty."""
        if not self.value:
            return []
        if isinstance(self.param, click.Argument):
            return self.value.split() if self.param.nargs == -1 else [self.value]
        if self.param.secondary_opts and self.value == "no":
            return [self.param.secondary_opts[0]]
        is_flag = getattr(self.param, "is_flag", False)
        return [f"--{self.name}" if is_flag else f"--{self.name}={self.value}"]


def _fields(command: ChangeCommand, given: Mapping[str, str]) -> Iterator[Field]:
    """Yields a field for each of the command's own parameters, with the value that is given for it."""
    for param in command.own:
        if getattr(param, "on_page", True):
            name = max(param.opts, key=len).lstrip("-")
            value = given.get(name, "")
            choices = ["yes", "no"] if param.secondary_opts else list(getattr(param.type, "choices", ()))
            pairs = [("", "no change")] if choices and not param.required else []
            pairs += [(choice, choice) for choice in choices]
            is_check = getattr(param, "is_flag", False) and not param.secondary_opts
            is_text = getattr(param.type, "is_text", False)
            help = getattr(param, "help", None) or ""
            yield Field(param, name, value, help, pairs, is_check, is_text, name in TARGETS and bool(value))


def _command_of(request: PageRequest) -> ChangeCommand:
    """Returns the command whose words follow in the path; raises HTTPError."""
    command: click.Command | None = cli
    for word in request.segments[1:]:
        command = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
    if not isinstance(command, ChangeCommand):
        raise HTTPError(404, "NOT_FOUND")
    return command


def _plan(site: PageSite, command: ChangeCommand, fields: list[Field], node: str) -> Change:
    """Makes the change; raises click.UsageError for values that the command line would refuse, and AdminError."""
    options = [word for field in fields if not isinstance(field.param, click.Argument) for word in field.words()]
    arguments = [word for field in fields if isinstance(field.param, click.Argument) for word in field.words()]
    parser = click.Command(command.name, params=list(command.own))
    values = parser.make_context(command.name, [*options, "--", *arguments], obj=ON_PAGE).params
    cluster = Cluster([site.node(node).address], [], site.cluster.http) if node else site.cluster
    return command.plan(cluster=cluster, **values)


def show(site: PageSite, request: PageRequest) -> Page:
    """Shows the form and, as soon as all that the command requires is given, the plan."""
    return _page(site, request, request.query, is_confirmed=False)


def act(site: PageSite, request: PageRequest) -> Page | Response:
    """Does a change that was confirmed, else shows its plan. One that loses nothing ends on the page of its topic."""
    is_confirmed = request.form.get("confirmed") == "yes"
    page = _page(site, request, request.form, is_confirmed=is_confirmed)
    if not is_confirmed or page.status != 200:
        return page
    site.monitor.changed()
    if page.values["warning"] or page.values["errors"]:
        return Redirect(f"/done/{site.keep(page)}")
    notice = site.keep(f"Done: {page.values['what']}")
    return Redirect(with_query(page.values["back"], notice=notice))


def done(site: PageSite, request: PageRequest) -> Page:
    page = site.kept(request.segments[1])
    if not isinstance(page, Page):
        raise HTTPError(404, "This result is no longer kept.")
    return page


def _page(site: PageSite, request: PageRequest, form: dict[str, str], *, is_confirmed: bool) -> Page:
    command = _command_of(request)
    given = {name: Multiline(text.strip().replace("\r\n", "\n")) for name, text in form.items()}
    fields = [*_fields(command, given)]
    names = {field.name for field in fields}
    node = "" if "node" in names else given.get("node", "")
    change: Change | None = None
    shown, errors, status, seen = Shown({}, []), list[str](), 200, ""
    with collected(errors):
        try:
            # Nothing can be done, or reported as done, without a plan: the parser reports what is missing.
            if is_confirmed or all(field.value for field in fields if field.param.required):
                change = _plan(site, command, fields, node)
                if change.matches:  # of a pattern, for which this stands in the form
                    seen = sha256("\n".join(map(str, change.matches)).encode()).hexdigest()[:32]
                if is_confirmed and seen != given.get("seen", ""):
                    errors, status = ["Others match than were shown: nothing was done. Look at the plan again."], 409
                elif is_confirmed and change.do:
                    change.do()
                elif is_confirmed:
                    errors, status = ["Nothing was done: there is nothing to change."], 400
                shown = change.show(False)
        except click.UsageError as error:
            errors, status = [error.format_message()], 400
        except AdminError as error:
            is_upstream = isinstance(error, NodeError) or error.causes
            status = 404 if isinstance(error, NotOnNode) else 502 if is_upstream else 400
            errors = [*map(str, (error, *error.causes))]
    words = " ".join(request.segments[1:])
    kept = {field.name: field.value for field in fields if field.value} | ({"node": node} if node else {})
    # No page has the address of a pattern, or of TOPIC/CHANNEL as one text.
    place = topic, channel = [name if is_valid_name(name := given.get(key, "")) else "" for key in ("topic", "channel")]
    if is_confirmed and words.endswith(" delete"):
        topic, channel = (topic if channel else ""), ""
    back = address_of(*filter(None, (topic, channel))) if topic else node_address(node) if node else "/"
    is_cancellable = "cancel" in names and not given.get("cancel") and site.security.may_change(request)

    def link(key: str, row: dict[str, object]) -> str:
        return f"{request.path}?{query(**kept, cancel=row['id'])}" if is_cancellable and key == "id" else ""

    return Page(
        "change.html",
        status,
        title=words.capitalize(),
        words=words,
        about=[" ".join(part.split()) for part in (command.help or "").split("\n\n")],
        what=" ".join([words, *(given[name] for name in TARGETS if given.get(name))]),
        action=request.path,
        fields=fields,
        kept=kept,
        place=place,
        seen=seen,
        blocks=[_shown(block, link) for block in shown.blocks],
        errors=[printable(text, 2000) for text in (*errors, *map(str, shown.errors))],
        warning=change.warning if change and change.do else "",
        question=change.question if change and change.do else "",
        done=is_confirmed and status == 200,
        back=back,
    )


def _shown(block: Block, link: Callable[[str, dict[str, object]], str]) -> HTMLTable | list[tuple[str, str, str]] | str:
    """Returns a table, the rows of a grid, or a text, for the template."""
    if isinstance(block, Table):
        block.columns = [replace(column, keep=ALWAYS) if column.key == "due" else column for column in block.columns]
        return html_table("Result", block, link)
    if isinstance(block, Grid):
        return facts(block)
    return block.text if isinstance(block, Paragraph) else "".join(text for text, _ in block.parts)
