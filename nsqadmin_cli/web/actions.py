"""What changes the cluster, by the operations of gnsqadmin: plan, confirm, do, report. Called in threads."""

from typing import Any, get_args

from gnsqd.shared.names import NAME_RULE, is_valid_name
from nsqadmin_cli.api import Action, Nsqd
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.operations import Operation, Result, Work, plan_tombstone
from nsqadmin_cli.operations import plan as plan_operation
from nsqadmin_cli.units import parse_duration, plural
from nsqadmin_cli.web.http import HTTPError, Request, Response
from nsqadmin_cli.web.present import address_of, html_table
from nsqadmin_cli.web.site import Page, Site
from nsqadmin_cli.web.views import publish_page

_LONGEST_DEFER = 30 * 86400.0  # seconds


def _work(site: Site, form: dict[str, str]) -> Work:
    """The plan for the fields of a form; HTTPError, AdminError."""
    action, topic, channel = form.get("action", ""), form.get("topic", ""), form.get("channel", "")
    create = action in ("create", "create-at-lookupd")
    for text in (topic, *([channel] if channel else [])):
        # What exists may be named in any way by a daemon that is not NSQ's.
        if not text or (create and not is_valid_name(text)):
            raise HTTPError(400, f"Not a valid name: expected {NAME_RULE}.")
    if action == "tombstone":
        if not site.cluster.lookupds:
            raise HTTPError(400, "tombstones are kept by nsqlookupd, and none is given")
        return plan_tombstone(site.cluster, topic, form.get("node", ""), with_delete=bool(form.get("with_delete")))
    if action == "create-at-lookupd":
        if not site.cluster.lookupds:
            raise HTTPError(400, "no nsqlookupd is given")
        return plan_operation(site.cluster, Operation("create", topic, channel, lookupd_only=True))
    if action not in get_args(Action):
        raise HTTPError(400, "unknown action")
    with_channels = bool(form.get("with_channels")) and not channel and action == "empty"
    return plan_operation(site.cluster, Operation(action, topic, channel, with_channels))  # type: ignore[arg-type]


def _page(site: Site, form: dict[str, str], work: Work, *, done: bool) -> Page:
    operation = work.operation
    gone = done and operation.action == "delete" and work.at_lookupds == "delete"
    back = "/" if gone and not operation.channel else address_of(operation.topic)
    if operation.channel and not gone:
        back = address_of(operation.topic, operation.channel)
    fields = {name: text for name, text in form.items() if name in _FIELDS and text}
    errors = [*site.cluster.lookupd_errors]
    destructive = operation.is_destructive and bool(work.nodes or work.at_lookupds == "delete")
    failed = any(outcome.result is Result.FAILED for outcome in work.nodes)
    failed = failed or any(outcome.result is Result.FAILED for outcome in work.lookupds)
    return Page(
        "operation.html",
        {
            "title": "Result" if done else "Confirm",
            "done": done,
            "what": f"{work.at_lookupds} {operation}",
            "warning": f"{work.warning()}." if destructive and not done else "",
            "table": html_table("Targets", work.table(work.nodes, work.lookupds or None)),
            "fields": fields,
            "back": back,
            "errors": [str(error) for error in [*errors, *work.failures(errors)]],
            "failed": failed,
        },
    )


_FIELDS = ("action", "topic", "channel", "node", "with_channels", "with_delete")


def plan(site: Site, request: Request) -> Page:
    """What an action would do, and lose; nothing is done."""
    return _page(site, request.query, _work(site, request.query), done=False)


def act(site: Site, request: Request) -> Response:
    """Do it. A destructive action must have been confirmed: without that, its plan is shown."""
    form = request.form
    work = _work(site, form)
    if (work.operation.is_destructive or form.get("action") == "tombstone") and form.get("confirmed") != "yes":
        return Response(200, site.render(request, _page(site, form, work, done=False)))
    work.do(site.cluster)
    site.monitor.changed()
    return Response.redirect(site.keep(_page(site, form, work, done=True)))


def done(site: Site, request: Request) -> Page:
    page = site.kept(request.segments[1])
    if page is None:
        raise HTTPError(404, "This result is no longer kept.")
    return page


def publish(site: Site, request: Request) -> Page | Response:
    """Publish one message to one node."""
    form: dict[str, Any] = request.form
    topic, body, defer = form.get("topic", ""), form.get("body", ""), form.get("defer", "").strip()
    nodes = {str(node): node for node in site.cluster.nsqds()}
    node: Nsqd | None = nodes.get(form.get("node", "")) or next(iter(nodes.values()), None)
    body = body.replace("\r\n", "\n")  # which forms make of line ends
    try:
        if not is_valid_name(topic):
            raise AdminError("this is not a valid name of a topic")
        if not body:
            raise AdminError("a message cannot be empty")
        if node is None:
            raise AdminError("there is no node")
        seconds = parse_duration(defer) if defer else 0.0
        if seconds > _LONGEST_DEFER:
            raise AdminError("30 days is the longest delay")
        node.pub(topic, body.encode("utf-8", "surrogateescape"), defer_ms=round(seconds * 1000))
    except (AdminError, ValueError) as error:
        more = {"node": form.get("node", ""), "body": body, "defer": defer, "result": str(error), "failed": True}
        return publish_page(list(nodes), topic, **more)
    site.monitor.changed()
    result = f"{plural(1, 'message')} published to {topic} at {node}"
    page = publish_page(list(nodes), topic, node=str(node), result=result)
    return Response.redirect(site.keep(page))


def login(site: Site, request: Request) -> Page | Response:
    if not site.security.has_tokens:
        return Response.redirect("/")
    to = request.form.get("next", "/")
    if (cookie := site.security.log_in(request.form.get("token", "").strip())) is None:
        return Response(403, site.render(request, Page("login.html", {"title": "Log in", "next": to, "failed": True})))
    local = to.startswith("/") and not to.startswith(("//", "/\\")) and to.isprintable()
    return Response.redirect(to if local else "/", [("Set-Cookie", cookie)])


def logout(site: Site, request: Request) -> Response:
    return Response.redirect("/", [("Set-Cookie", site.security.log_out(request))])
