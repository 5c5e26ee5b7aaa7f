"""A message that is published, logging in and out, and results that are kept. Called in threads."""

from typing import Any

from gnsqd.shared.names import is_valid_name
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.units import parse_duration, plural
from nsqadmin_cli.web.http import HTTPError, Redirect, Request, Response
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
