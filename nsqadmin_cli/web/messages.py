"""The pages of messages: queued ones, live ones, and one that is published. Each view is called in a thread and returns
a template with its values."""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gnsqd.broker.dead_letter_format import DeadLetter, is_dead_letter_topic
from gnsqd.shared.names import is_valid_name
from nsqadmin_cli import units
from nsqadmin_cli.api import Nsqd
from nsqadmin_cli.cluster import failures_of
from nsqadmin_cli.errors import AdminError
from nsqadmin_cli.message import MOST, Peeked, PeekedQueue, hex_lines, peek_at, pretty_lines
from nsqadmin_cli.snapshot import ask_holders
from nsqadmin_cli.units import parse_duration, plural, printable, suggestion
from nsqadmin_cli.web.http import HTTPError, PageRequest, Redirect, Response
from nsqadmin_cli.web.monitor import FRESH
from nsqadmin_cli.web.present import View, common, query
from nsqadmin_cli.web.queues import unknown
from nsqadmin_cli.web.site import Exact, Multiline, Page, PageSite
from nsqadmin_cli.web.tail import SHOWN, TEMPORARY

_LONGEST_BODY = 20_480  # characters of a message that are shown
_LONGEST_DEFER = 30 * 86400.0  # seconds
_COMPLETED = 300  # topics that a form completes
VIEWS = {"": "formatted", "raw": "as it is", "hex": "in hexadecimal"}  # of bodies


def peek(site: PageSite, request: PageRequest) -> Page:
    """Shows the queued messages of a topic or channel, of every node that can show them."""
    given, number, find = request.query, request.query.get("count", "10"), request.query.get("find", "")
    topic, channel = given.get("topic", ""), given.get("channel", "")
    if not topic or not number.isdecimal() or not 0 < int(number[:9]) <= MOST:
        raise HTTPError(400, f"a topic is needed, and a count of 1 to {MOST}")
    count, page = int(number), min(View.of(request).page, MOST)
    most = MOST if find else min(page * count, MOST)
    answers = ask_holders(site.cluster, lambda nsqd: peek_at(nsqd, topic, channel, most), topic, channel)
    queues = {at: answer for at, answer in answers.items() if isinstance(answer, PeekedQueue)}
    nodes, longest = [], 0
    for at, queue in queues.items():
        matching = _matching(queue.messages, find)
        longest = max(longest, len(matching) if find else min(queue.depth, MOST))
        shown = [_message(each, given) for each in matching[(page - 1) * count : page * count]]
        nodes.append((str(at), queue.depth, len(matching) if find else None, shown))
    return Page(
        "peek.html",
        title="Queued messages",
        topic=topic,
        channel=channel,
        count=number,
        most=MOST,
        **_bodies(topic, given),
        nodes=nodes,
        pages=View(f"/peek?{query(**given | {'page': ''})}", page=page).pages(longest, count),
        errors=[str(error) for error in failures_of(answers)],
    )


def _bodies(topic: str, given: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values that the form of a page with messages needs."""
    values = {"find": given.get("find", ""), "views": VIEWS, "view": given.get("view", "")}
    return values | {"is_dead": is_dead_letter_topic(topic)}


def _matching(messages: Iterable[Peeked], find: str) -> list[Peeked]:
    """Returns those with this text in the body, in any case, or in the id; all for ""."""
    text = find.lower()
    return [each for each in messages if text in f"{each.message.id_text} {each.message.body_text}".lower()]


def _message(peeked: Peeked, given: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values of a message for the template: of a dead letter, the original body, unless it is shown raw."""
    message, view, letter = peeked.message, given.get("view", ""), None
    if not view and is_dead_letter_topic(message.topic):
        with suppress(ValueError):
            letter = DeadLetter.parse(message.body)
            message = replace(message, body=letter.body)
    lines = hex_lines(message.body) if view == "hex" else message.body_text.splitlines()
    if not view and len(pretty := pretty_lines(message.body_text)) > 1:
        lines = pretty
    text = "\n".join(lines)
    return {
        "letter": letter,
        "message": message,
        "age": units.duration(time.time() - message.timestamp / 1e9),
        "id": printable(message.id_text, 64),
        "size": units.size(peeked.size),
        "place": "on disk" if peeked.on_disk else "in memory",
        "cut": peeked.size > len(peeked.message.body) or len(text) > _LONGEST_BODY,
        "body": Multiline(text[:_LONGEST_BODY]),
    }


def tail(site: PageSite, request: PageRequest) -> Page:
    """Shows the latest messages of a topic. They are only consumed for live pages, which no other site can load."""
    name = request.query.get("topic", "")
    if not name:
        raise HTTPError(400, "a topic is needed")
    if site.security.read_only:
        raise HTTPError(403, "This page is read-only, and live messages need a temporary channel.")
    snapshot = site.snapshot(request)
    whole = snapshot.totals.topic(name)
    if whole is None:
        raise unknown(snapshot, f"the topic {name}", name, list(snapshot.topic_shares))
    # Its first channel, which this would be, would get all queued messages, and they would be lost with it.
    is_possible = any(not channel.channel_name.startswith(TEMPORARY) for channel in whole.channels)
    page = Page(
        "tail.html",
        **common(snapshot),
        **_bodies(name, request.query),
        title=f"Live messages of {printable(name, 64)}",
        topic=name,
        shown=SHOWN,
        is_possible=is_possible,
        messages=[],
        count=0,
    )
    if request.is_live and is_possible:
        tail = site.tails.look(name)
        matching = _matching(list(tail.latest), request.query.get("find", ""))
        page.values["messages"] = [_message(each, request.query) for each in matching]
        page.values["count"] = tail.count
        page.values["errors"] += tail.errors
    return page


def publish(site: PageSite, request: PageRequest) -> Page:
    return _publish_page(site, request.query.get("topic", ""))


def _publish_page(site: PageSite, topic: str, **more: Any) -> Page:
    """Shows the form to publish, with what was sent before. It completes the topics with the most messages."""
    snapshot = site.monitor.snapshot(10.0)
    topics = sorted(snapshot.totals.topics, key=lambda stats: stats.message_count, reverse=True)
    return Page(
        "publish.html",
        title="Publish",
        nodes=[str(at) for at in snapshot.nodes],
        topics=[stats.topic_name for stats in topics[:_COMPLETED]],
        topic=topic,
        **dict.fromkeys(("new", "node", "defer", "result", "failed"), "")
        | more
        | {"body": Exact(more.get("body", ""))},
    )


def send(site: PageSite, request: PageRequest) -> Page | Response:
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
            return _publish_page(site, topic, **given, body=body, new=new)
        node.publish(topic, [body.encode("utf-8", "surrogateescape")], defer_ms=round(seconds * 1000))
    except (AdminError, ValueError) as error:
        return _publish_page(site, topic, **given, body=body, result=str(error), failed=True)
    site.monitor.changed()
    result = f"{plural(1, 'message')} published to {topic} at {node}"
    page = _publish_page(site, topic, node=str(node), result=result)
    return Redirect(f"/done/{site.keep(page)}")
