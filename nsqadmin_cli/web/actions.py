"""A message that is published, logging in and out, and results that are kept. Called in threads."""

from typing import Any

from gnsqd.shared.names import is_valid_name
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.units import parse_duration, plural, suggestion
from nsqadmin_cli.web.http import HTTPError, Redirect, Request, Response
from nsqadmin_cli.web.monitor import FRESH
from nsqadmin_cli.web.site import Page, Site
from nsqadmin_cli.web.views import publish_page

_LONGEST_DEFER = 30 * 86400.0  # seconds


def done(site: Site, request: Request) -> Page:
    page = site.kept(request.segments[1])
    if not isinstance(page, Page):
        raise HTTPError(404, "This result is no longer kept.")
    return page


def publish(site: Site, request: Request) -> Page | Response:
    """Publish one message to one node."""
    form: dict[str, Any] = request.form
    topic, body, defer = form.get("topic", ""), form.get("body", ""), form.get("defer", "").strip()
    given: dict[str, Any] = {"node": form.get("node", ""), "defer": defer}
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
        snapshot = site.monitor.snapshot(FRESH)
        if topic not in snapshot.topic_shares and form.get("new") != topic:  # it may be misspelt
            what = "is not on the nodes that answered" if snapshot.errors else "is a new topic"
            new = f"{topic} {what}{suggestion(topic, snapshot.topic_shares)}"
            return publish_page(site, topic, **given, body=body, new=new)
        node.publish(topic, [body.encode("utf-8", "surrogateescape")], defer_ms=round(seconds * 1000))
    except (AdminError, ValueError) as error:
        return publish_page(site, topic, **given, body=body, result=str(error), failed=True)
    site.monitor.changed()
    result = f"{plural(1, 'message')} published to {topic} at {node}"
    page = publish_page(site, topic, node=str(node), result=result)
    return Redirect(f"/done/{site.keep(page)}")


def login(site: Site, request: Request) -> Page | Response:
    if not site.security.has_tokens:
        return Redirect("/")
    to = request.form.get("next", "/")
    local = to.startswith("/") and not to.startswith(("//", "/\\")) and to.isprintable()
    answer = site.security.log_in(request.form.get("token", "").strip(), to if local else "/")
    return answer or Page("login.html", {"title": "Log in", "next": to, "failed": True}, 403)


def logout(site: Site, request: Request) -> Response:
    return site.security.log_out(request)
